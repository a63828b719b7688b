"""Maximum flow: graphs whose answer is known, and the ratio of the tap-withdrawal circuit to random circuits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import flow
import numpy as np
import pytest
from flow import Flow, flow_to
from reproduce import PROTOCOLS

from nac_drive.experiments.paper import PaperTask
from nac_drive.experiments.protocol import load
from nac_drive.policies.wiring.tap_withdrawal import NEURONS, tap_withdrawal_circuit

SIZE = len(NEURONS)
FWD = NEURONS.index("FWD")


def graph(**synapses: int) -> np.ndarray:
    """Capacities of synapses, such as AVA_REV=3."""
    capacities = np.zeros((SIZE, SIZE), dtype=int)
    for synapse, capacity in synapses.items():
        source, target = (NEURONS.index(name) for name in synapse.split("_"))
        capacities[source, target] = capacity
    return capacities


@pytest.mark.parametrize(
    ("capacities", "expected"),
    [
        (graph(AVM_AVB=3, AVB_FWD=5), 3),  # the narrowest synapse of a path
        (graph(AVM_AVB=3, PVD_PVC=4, PVC_AVB=2, AVB_FWD=9), 5),  # two paths, two sensory neurons
        (graph(AVM_AVB=3, PVD_PVC=4, PVC_AVB=2, AVB_FWD=4), 4),
        (graph(PLM_AVD=9, AVD_DVA=3, AVD_PVC=2, DVA_AVB=2, PVC_AVB=8, AVB_FWD=99), 4),
        (graph(AVM_AVB=3, AVB_AVB=7, AVB_FWD=5), 3),  # a synapse of a neuron with itself carries nothing
        (graph(PVC_AVB=3, AVB_FWD=5), 0),
        (graph(AVM_AVA=3, AVA_REV=5), 0),
    ],
)
def test_flows_are_those_found_by_hand(capacities: np.ndarray, expected: int) -> None:
    assert flow_to(capacities, FWD) == expected


def test_the_flow_is_the_smallest_cut_of_a_random_graph() -> None:
    """The maximum flow is the capacity of the smallest of all cuts between the sensory neurons and FWD."""
    rng = np.random.default_rng(0)
    for seed in range(3):
        capacities = rng.integers(0, 9, (SIZE, SIZE)) * (tap_withdrawal_circuit("d", seed) != 0)
        cuts = []
        for bits in range(2**6):  # which of the inter, command and REV neurons are on the side of the sensors
            inside = np.array([True] * 4 + [bool(bits >> i & 1) for i in range(5)] + [False, bool(bits >> 5 & 1)])
            cuts.append(capacities[inside][:, ~inside].sum())
        assert flow_to(capacities, FWD) == min(cuts)


def test_the_ratio_is_one_for_the_same_circuit_and_finite_without_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = Flow(graphs=30, runs=2)
    place = experiment.places()[1]
    assert place == (("run", 1),)
    first = experiment.measure(Path(), PaperTask("x", "tap-withdrawal", {"wiring": "a"}, place))
    assert first == experiment.measure(Path(), PaperTask("x", "tap-withdrawal", {"wiring": "a"}, place))
    for motor in ("FWD", "REV"):
        assert first[f"ratio_{motor}"] == pytest.approx(first[f"animal_{motor}"] / first[f"flow_{motor}"])
        assert first[f"cut_off_{motor}"] > 0  # some circuits have no flow at all
        assert 1.0 < first[f"ratio_{motor}"] < 2.0
        assert 0 < first[f"flow_{motor}"] < 28 * 0.5
    monkeypatch.setattr(flow, "tap_withdrawal_circuit", lambda *arguments: tap_withdrawal_circuit())
    same = replace(experiment, rho=1.0).measure(Path(), PaperTask("x", "tap-withdrawal", {"wiring": "d"}, place))
    assert same["ratio_FWD"] == same["ratio_REV"] == 1.0
    assert same["flow_FWD"] == same["flow_REV"] == 28  # all capacities are E, and one synapse reaches a motor neuron


def test_the_numbers_of_a_row_are_means_over_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    flows = iter((np.array([[2.0, 4.0], [4.0, 8.0]]), np.array([[1.0, 0.0], [3.0, 2.0]])))  # the animal's, then drawn
    monkeypatch.setattr(Flow, "_flows", lambda *arguments: next(flows))
    row = Flow(graphs=2).measure(Path(), PaperTask("x", "tap-withdrawal", {"wiring": "a"}, (("run", 0),)))
    assert row == {
        "ratio_FWD": 1.5, "flow_FWD": 2.0, "animal_FWD": 3.0, "cut_off_FWD": 0.0,
        "ratio_REV": 6.0, "flow_REV": 1.0, "animal_REV": 6.0, "cut_off_REV": 0.5,
    }  # fmt: skip


def test_the_protocol_has_the_printed_lines() -> None:
    printed = [entry.printed for entry in load("thesis-4.1", PROTOCOLS).entries]
    assert [line["FWD"] for line in printed] == [1.15, 1.12, 1.03, 1.01]
    assert [line["REV"] for line in printed] == [1.14, 1.10, 1.04, 1.01]
