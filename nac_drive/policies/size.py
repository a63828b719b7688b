"""Neurons and synapses of cores, counted as in Table 6.6 of Hasani's thesis (2020).

A neuron is a unit of the recurrent state. It counts once, however many numbers it remembers: an LSTM's h and c belong
to one neuron. A synapse is a trained weight from an input or a neuron to a neuron, or to one of its gates. Weights that
are fixed at zero do not count, nor do biases, time constants, the other numbers of an LTC synapse, and readouts.
Sensory neurons that hold an input count as inputs, as in the 19 neurons of the thesis' NCP.

NAC has no recurrent state. Its neurons and synapses are those of its circuits in every head: the sensory gates of q, k
and v, and the backbones. Neurons of disabled groups do not count, although the NAC paper lists them.
"""

from __future__ import annotations

from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.cfc import CfC, CfCLayer, WiredCfC
from nac_drive.policies.cores.circuitnet import CircuitNet
from nac_drive.policies.cores.ct_gru import CTGRU
from nac_drive.policies.cores.ct_rnn import CTRNN
from nac_drive.policies.cores.gru_ode import GRUODE
from nac_drive.policies.cores.lds import LDS
from nac_drive.policies.cores.ltc import LTC, NCP
from nac_drive.policies.cores.mmrnn import MMRNN
from nac_drive.policies.cores.nac import NACCore
from nac_drive.policies.cores.ode_rnn import ODERNN
from nac_drive.policies.cores.pdna import PDNA, PDNAODE, NoisyCfC
from nac_drive.policies.cores.phased_lstm import PhasedLSTM
from nac_drive.policies.cores.rnn import GRU, LSTM, RIN, RNN, SparseLSTM
from nac_drive.policies.cores.tap_withdrawal import TapWithdrawal

_SYNAPSES: dict[type[Core], tuple[str, ...]] = {
    **dict.fromkeys((RNN, RIN, GRU, LSTM), ("cell.weight_ih_l0", "cell.weight_hh_l0")),
    **dict.fromkeys((SparseLSTM, CTRNN), ("input.values", "recurrent.values")),
    **dict.fromkeys((LTC, NCP), ("network.sensory.weight", "network.recurrent.weight")),
    TapWithdrawal: ("network.sensory.weight", "network.electrical.weight", "network.recurrent.weight"),
    CTGRU: ("input.weight", "scales.weight", "event.weight"),
    GRUODE: ("input.weight", "recurrent.weight", "ode_gates.weight", "ode_target.weight"),
    PhasedLSTM: ("input.weight", "recurrent.weight"),
    MMRNN: ("input.weight", "recurrent.weight", "field.weight"),
    LDS: ("drive.weight", "dynamics"),
}
"""Core -> its parameters of which every number is a synapse."""

_RECURRENT = {*_SYNAPSES, ODERNN, CfC, WiredCfC, NoisyCfC, PDNA, PDNAODE, CircuitNet}
"""Cores whose first tensor of the state has neurons on its last axis."""


def neurons(core: Core) -> int | None:
    """Return the number of neurons of a core.

    Returns:
        The number; None for cores that have no neurons in this sense: without memory, with a window of past frames,
        with attention, and state space models.
    """
    if isinstance(core, NACCore):
        nac = core.nac
        biases = [nac.query_gate.bias, nac.context_gate.bias, *nac.backbone.bias.values()]  # one of each neuron
        return sum(bias.numel() for bias in biases)
    if type(core) in _RECURRENT:
        return core.state_shapes()[0][0][-1]
    return None


def synapses(core: Core) -> int | None:
    """Return the number of synapses of a core.

    Returns:
        The number; None where `neurons` returns None, and where no weight belongs to a pair of neurons: a hidden layer
        lies between those of a CfC and of an ODE-RNN, and those of a CircuitNet may interact by attention or products.
    """
    if isinstance(core, NACCore):
        nac = core.nac
        gates = sum(int(gate.mask.sum()) for gate in (nac.query_gate, nac.context_gate))
        return gates + nac.num_heads * sum(int(mask.sum()) for mask in nac.backbone.buffers())
    if isinstance(core, WiredCfC):
        layers = [layer for layer in core.layers if isinstance(layer, CfCLayer)]
        return sum(int(layer.mask.sum()) + layer.recurrent.numel() for layer in layers)
    if isinstance(core, CircuitNet) and core.attention is None and core.product is None:
        return _numbers(core, ("input.weight", "linear", "between"))
    if type(core) in _SYNAPSES:
        return _numbers(core, _SYNAPSES[type(core)])
    return None


def _numbers(core: Core, names: tuple[str, ...]) -> int:
    return sum(core.get_parameter(name).numel() for name in names)
