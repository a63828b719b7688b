"""Every core by name."""

from __future__ import annotations

from typing import Any

from nac_drive.policies.cores.attention import LinearAttention, Performer, SoftmaxAttention
from nac_drive.policies.cores.base import Core, CoreFactory
from nac_drive.policies.cores.cfc import CfC, WiredCfC
from nac_drive.policies.cores.circuitnet import CircuitNet
from nac_drive.policies.cores.contiformer import ContiFormer
from nac_drive.policies.cores.ct_gru import CTGRU
from nac_drive.policies.cores.ct_rnn import CTRNN
from nac_drive.policies.cores.cta import CTA
from nac_drive.policies.cores.deepstate import DeepState
from nac_drive.policies.cores.gru_ode import GRUODE
from nac_drive.policies.cores.lds import LDS
from nac_drive.policies.cores.ltc import LTC, NCP
from nac_drive.policies.cores.memoryless import Bojarski, Feedforward
from nac_drive.policies.cores.mmrnn import MMRNN
from nac_drive.policies.cores.mtan import MTAN
from nac_drive.policies.cores.nac import NACCore
from nac_drive.policies.cores.odeformer import ODEFormer
from nac_drive.policies.cores.pdna import PDNA, PDNAODE, NoisyCfC
from nac_drive.policies.cores.phased_lstm import PhasedLSTM
from nac_drive.policies.cores.rnn import GRU, LSTM, RNN, SparseLSTM
from nac_drive.policies.cores.s4d import S4D
from nac_drive.policies.nac.variants import NAC_VARIANTS

_NAC = (
    "num_heads",
    "window",
    "top_k",
    "sparsity",
    "phi_activation",
    "output",
    "delta_t",
    "settle_steps",
    "seed",
    "backbone",
)


def _nac(settings: dict[str, Any]) -> CoreFactory:
    """A named variant: accepts every setting that its name does not fix and that has an effect on it."""
    free = {*_NAC, "euler_steps"} if settings.get("mode") == "euler" else {*_NAC}
    if settings.get("selection") == "pairwise":
        free.remove("top_k")
    return CoreFactory(NACCore, tuple(sorted(free - set(settings))), **settings)


_HEADS = ("num_heads", "window")
_NCP = ("inter", "command", "motor", "sparsity", "seed", "unfolds")
_CIRCUIT = ("units", "neurons", "iterations")
_UNITS = ("backbone_units",)

CORES: dict[str, CoreFactory] = {
    **{name: _nac(settings) for name, settings in NAC_VARIANTS.items() if name != "nac-block"},  # see NACCore
    # without memory
    "cnn": CoreFactory(Feedforward, ()),
    "cnn-bojarski": CoreFactory(Bojarski, ()),
    # discrete time
    "rnn": CoreFactory(RNN, ()),
    "lstm": CoreFactory(LSTM, ()),
    "lstm-sparse": CoreFactory(SparseLSTM, ("sparsity", "seed")),
    "gru": CoreFactory(GRU, ()),
    # continuous time
    "ct-rnn": CoreFactory(CTRNN, ("unfolds",)),
    "ct-rnn-sparse": CoreFactory(CTRNN, ("unfolds", "seed"), sparsity=0.95),
    "ct-gru": CoreFactory(CTGRU, ("num_scales",)),
    "gru-ode": CoreFactory(GRUODE, ("unfolds",)),
    "phased-lstm": CoreFactory(PhasedLSTM, ("open_ratio", "leak")),
    "mmrnn": CoreFactory(MMRNN, ("unfolds",)),
    "ltc": CoreFactory(LTC, ("unfolds",)),
    "ncp": CoreFactory(NCP, _NCP, wiring="ncp"),
    "ncp-random": CoreFactory(NCP, _NCP, wiring="random"),
    "ncp-full": CoreFactory(NCP, tuple(name for name in _NCP if name not in ("sparsity", "seed")), wiring="full"),
    "cfc": CoreFactory(CfC, _UNITS, mode="gated"),
    "cfc-no-gate": CoreFactory(CfC, _UNITS, mode="no-gate"),
    "cfc-pure": CoreFactory(CfC, _UNITS, mode="pure"),
    "cfc-ncp": CoreFactory(WiredCfC, ("units", "sparsity", "seed")),
    "lds": CoreFactory(LDS, ("unfolds", "margin")),
    # state space
    "deepstate": CoreFactory(DeepState, ("rnn_size",)),
    "s4d": CoreFactory(S4D, ("state_size",)),
    # attention
    "attention": CoreFactory(SoftmaxAttention, ("window",), num_heads=1),
    "mha": CoreFactory(SoftmaxAttention, _HEADS),
    "linear-attention": CoreFactory(LinearAttention, _HEADS),
    "performer": CoreFactory(Performer, (*_HEADS, "num_features", "seed")),
    # continuous-time attention
    "mtan": CoreFactory(MTAN, (*_HEADS, "time_size")),
    "cta": CoreFactory(CTA, ("ode_steps",)),
    "odeformer": CoreFactory(ODEFormer, (*_HEADS, "euler_steps")),
    "contiformer": CoreFactory(ContiFormer, (*_HEADS, "ode_steps")),
    # oscillating
    "pdna-a": CoreFactory(PDNA, _UNITS, pulse=False, self_attend=False),
    "pdna-b": CoreFactory(NoisyCfC, _UNITS),
    "pdna-c": CoreFactory(PDNA, _UNITS, pulse=True, self_attend=False),
    "pdna-d": CoreFactory(PDNA, _UNITS, pulse=False, self_attend=True),
    "pdna-e": CoreFactory(PDNA, _UNITS, pulse=True, self_attend=True),
    "pdna-ode": CoreFactory(PDNAODE, _UNITS),
    # circuits
    "circuitnet-l": CoreFactory(CircuitNet, _CIRCUIT, attention=False, product=False),
    "circuitnet-la": CoreFactory(CircuitNet, _CIRCUIT, attention=True, product=False),
    "circuitnet-lp": CoreFactory(CircuitNet, _CIRCUIT, attention=False, product=True),
}


def build_core(name: str, input_size: int, output_size: int, **settings: Any) -> Core:
    """`CORES[name](input_size, output_size, **settings)`; ValueError if the name or a setting is unknown or unfit."""
    if name not in CORES:
        raise ValueError(f"core: unknown name {name!r}; known are {', '.join(CORES)}.")
    try:
        return CORES[name](input_size, output_size, **settings)
    except TypeError as error:
        raise ValueError(f"core_args: a setting of {name!r} has the wrong type, got {settings} ({error}).") from error
