"""The tap-withdrawal circuit: the thesis' counts, and the constraints of the random circuits of its size."""

from __future__ import annotations

import numpy as np
import pytest

from nac_drive.policies.wiring.tap_withdrawal import (
    CIRCUITS,
    COMMAND,
    ELECTRICAL,
    EXCITATORY,
    INHIBITORY,
    INTER,
    MOTOR,
    NEURONS,
    SENSORY,
    tap_withdrawal_circuit,
)

HIDDEN = slice(INTER.start, COMMAND.stop)
SEEDS = range(40)


def test_the_animal_has_the_synapses_of_the_thesis() -> None:
    kinds = tap_withdrawal_circuit()
    assert len(NEURONS) == 11
    assert (kinds != 0).sum() == 28
    assert round(100 * (1 - 28 / 11**2)) == 77
    counts = [(kinds == kind).sum() for kind in (EXCITATORY, INHIBITORY, ELECTRICAL)]
    assert counts == [9, 17, 2]
    assert (kinds[SENSORY] != 0).sum() == 12
    assert (kinds[HIDDEN, HIDDEN] != 0).sum() == 14
    assert not np.diag(kinds).any()


def test_the_forward_and_the_backward_half_inhibit_each_other() -> None:
    """AVA drives REV and AVB drives FWD. Each command neuron inhibits the other and the other's inter neuron."""
    kinds = tap_withdrawal_circuit()

    def kind(source: str, target: str) -> int:
        return kinds[NEURONS.index(source), NEURONS.index(target)]

    assert kind("AVA", "REV") == kind("AVB", "FWD") == EXCITATORY
    assert kind("AVA", "FWD") == kind("AVB", "REV") == 0
    for pair in (("AVA", "AVB"), ("AVB", "AVA"), ("AVA", "PVC"), ("AVB", "AVD")):
        assert kind(*pair) == INHIBITORY
    assert kind("AVM", "AVD") == kind("PLM", "PVC") == ELECTRICAL


@pytest.mark.parametrize("wiring", CIRCUITS)
def test_sensory_neurons_receive_and_motor_neurons_send_nothing(wiring: str) -> None:
    for seed in SEEDS:
        kinds = tap_withdrawal_circuit(wiring, seed)
        assert not kinds[:, SENSORY].any()
        assert not kinds[MOTOR].any()
        assert not kinds[SENSORY, MOTOR].any()
        assert (kinds[:, MOTOR] != 0).sum() == 2
        assert not (kinds[SENSORY.stop :] == ELECTRICAL).any()


@pytest.mark.parametrize(("wiring", "repeats", "selves", "commands"), [
    ("a", True, True, False), ("b", True, True, True), ("c", False, True, True), ("d", False, False, True)
])  # fmt: skip
def test_random_circuits_keep_the_constraints_of_figure_4_2(
    wiring: str, repeats: bool, selves: bool, commands: bool
) -> None:
    drawn = [tap_withdrawal_circuit(wiring, seed) for seed in SEEDS]
    sizes = {int((kinds != 0).sum()) for kinds in drawn}
    assert (min(sizes) < 28) == repeats
    assert max(sizes) <= 28
    assert any(np.diag(kinds).any() for kinds in drawn) == selves
    assert any(kinds[SENSORY, COMMAND].any() for kinds in drawn) == commands
    if not repeats:
        assert {int((kinds[SENSORY] != 0).sum()) for kinds in drawn} == {11}
        assert {int((kinds[HIDDEN, HIDDEN] != 0).sum()) for kinds in drawn} == {15}
    assert np.array_equal(drawn[3], tap_withdrawal_circuit(wiring, 3))
    assert len({kinds.tobytes() for kinds in drawn}) == len(drawn)


def test_an_unknown_wiring_is_named() -> None:
    with pytest.raises(ValueError, match="wiring: must be one of tap-withdrawal, a, b, c, d, got 'e'"):
        tap_withdrawal_circuit("e")
