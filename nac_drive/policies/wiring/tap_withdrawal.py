"""The tap-withdrawal circuit of C. elegans, and random circuits.

The random ones have its size (Hasani's thesis, Chapter 4).

Wiring and polarities follow the authors' published circuit: github.com/mlech26l/ordinary_neural_circuits,
`mountaincar_gym/tw_pure.bnn`, whose neurons are in the order of Figure S1 of Lechner et al. 2018 (Neuronal Circuit
Policies, arXiv 1803.08554). It has the thesis' 28 synapses, two of them electrical; 77 % of the 11 x 11 pairs have
none. 12 synapses (43 %) leave sensory neurons, 14 (50 %) join inter and command neurons, and 2 reach motor neurons.
The thesis says 40 %, 53 % and the rest.
"""

from __future__ import annotations

import numpy as np

NEURONS = ("PVD", "PLM", "AVM", "ALM", "AVD", "PVC", "DVA", "AVA", "AVB", "FWD", "REV")
SENSORY, INTER, COMMAND, MOTOR = slice(0, 4), slice(4, 7), slice(7, 9), slice(9, 11)
EXCITATORY, INHIBITORY, ELECTRICAL = 1, -1, 2
CIRCUITS = ("tap-withdrawal", "a", "b", "c", "d")

_SOURCES = {
    "AVD": "-PLM =AVM -ALM +PVC -AVA -AVB",
    "PVC": "-PVD =PLM -AVM -ALM +AVD -DVA -AVA",
    "DVA": "-PVD -PLM +PVC",
    "AVA": "-PVD -PLM +AVD +PVC -AVB",
    "AVB": "-AVM +AVD +PVC -DVA -AVA",
    "FWD": "+AVB",
    "REV": "+AVA",
}
"""Neuron -> the neurons that send to it: + excitatory, - inhibitory, = electrical."""
_KINDS = {"+": EXCITATORY, "-": INHIBITORY, "=": ELECTRICAL}

_FROM_SENSORY, _RECURRENT = 11, 15
"""Draws of Algorithm 4: 40 % and 53 % of 28 synapses. The other two join command and motor neurons."""
_HIDDEN = range(INTER.start, COMMAND.stop)


def tap_withdrawal_circuit(wiring: str = "tap-withdrawal", seed: int = 0) -> np.ndarray:
    """Return the synapses of a circuit of 11 neurons.

    "tap-withdrawal" is the animal's. The others are drawn by Algorithm 4, in 28 draws, as in Fig. 4.2:

    - "a": sensory neurons send to inter neurons, inter and command neurons to each other;
    - "b": sensory neurons send to inter and command neurons;
    - "c": as "b", and no synapse is drawn twice;
    - "d": as "c", and no neuron sends to itself.

    In "a" and "b" a repeated draw adds nothing, so that they have fewer than 28 synapses. The command neurons send to
    the motor neurons as in the animal. Kinds are drawn with equal chance. Electrical synapses leave sensory neurons
    only, as in the animal.

    Args:
        wiring: One of CIRCUITS.
        seed: Seed of the draws; without effect on "tap-withdrawal".

    Returns:
        (11, 11) int8, row = source, column = target, in the order of NEURONS: EXCITATORY, INHIBITORY, ELECTRICAL or 0.

    Raises:
        ValueError: `wiring` is unknown.
    """
    if wiring not in CIRCUITS:
        raise ValueError(f"wiring: must be one of {', '.join(CIRCUITS)}, got {wiring!r}.")
    kinds = np.zeros((len(NEURONS), len(NEURONS)), dtype=np.int8)
    for target, sources in _SOURCES.items():
        for source in sources.split():
            kinds[NEURONS.index(source[1:]), NEURONS.index(target)] = _KINDS[source[0]]
    if wiring == "tap-withdrawal":
        return kinds
    kinds[:, : MOTOR.start] = 0
    rng = np.random.default_rng(seed)
    targets = range(INTER.start, INTER.stop) if wiring == "a" else _HIDDEN
    entering = [(source, target) for source in range(SENSORY.stop) for target in targets]
    inner = [(source, target) for source in _HIDDEN for target in _HIDDEN if wiring != "d" or source != target]
    for pairs, draws, choice in (
        (entering, _FROM_SENSORY, (EXCITATORY, INHIBITORY, ELECTRICAL)), (inner, _RECURRENT, (EXCITATORY, INHIBITORY))
    ):  # fmt: skip
        drawn = rng.choice(len(pairs), size=draws, replace=wiring in ("a", "b"))
        sources, ends = np.array(pairs)[drawn].T
        kinds[sources, ends] = rng.choice(choice, size=draws)
    return kinds
