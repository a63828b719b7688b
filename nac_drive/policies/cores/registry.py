"""Every core by name."""

from __future__ import annotations

from typing import Any

import torch

from nac_drive.markdown import markdown_table
from nac_drive.plain import whole
from nac_drive.policies.cores.adapted import factory_of_module
from nac_drive.policies.cores.attention import LinearAttention, Performer, ReLUAttention, SoftmaxAttention
from nac_drive.policies.cores.base import Core, CoreFactory
from nac_drive.policies.cores.cfc import CfC, WiredCfC
from nac_drive.policies.cores.circuitnet import CircuitNet
from nac_drive.policies.cores.contiformer import ContiFormer
from nac_drive.policies.cores.ct_gru import CTGRU
from nac_drive.policies.cores.ct_rnn import CTRNN
from nac_drive.policies.cores.cta import CTA
from nac_drive.policies.cores.deepstate import DeepState
from nac_drive.policies.cores.delays import NARX, TDNN
from nac_drive.policies.cores.gru_ode import GRUODE
from nac_drive.policies.cores.lds import LDS
from nac_drive.policies.cores.lrc import LRC
from nac_drive.policies.cores.ltc import LTC, NCP
from nac_drive.policies.cores.memoryless import Bojarski, Feedforward
from nac_drive.policies.cores.mmrnn import MMRNN
from nac_drive.policies.cores.mtan import MTAN
from nac_drive.policies.cores.nac import NACCore
from nac_drive.policies.cores.nac_transformer import NACTransformer
from nac_drive.policies.cores.ode_rnn import ODERNN
from nac_drive.policies.cores.odeformer import ODEFormer
from nac_drive.policies.cores.pdna import PDNA, PDNAODE, NoisyCfC
from nac_drive.policies.cores.phased_lstm import PhasedLSTM
from nac_drive.policies.cores.rnn import GRU, LSTM, RIN, RNN, SparseLSTM
from nac_drive.policies.cores.s4 import S4
from nac_drive.policies.cores.s4d import S4D
from nac_drive.policies.cores.tap_withdrawal import TapWithdrawal
from nac_drive.policies.cores.transformer import Transformer
from nac_drive.policies.nac.variants import NAC_VARIANTS
from nac_drive.policies.ranges import check_number, check_type, check_whole
from nac_drive.registry import Registry

_NAC = (
    "num_heads",
    "window",
    "time_unit",
    "top_k",
    "sparsity",
    "phi_activation",
    "output",
    "delta_t",
    "settle_steps",
    "seed",
    "backbone",
    "gain",
    "scored",
    "recency",
    "value",
)
_WIDE = 64
"""Window, in frames, of the variants that differ from nac-exact in the choice of keys. In its window of 8 frames,
top_k = 8, top_k = 32, "pairwise" and "learned" all keep every key, so the four would be one function."""


def _nac(name: str, about: str, **defaults: Any) -> CoreFactory:
    """A factory of a named variant. It accepts the settings that the name does not fix and that have an effect."""
    settings = NAC_VARIANTS[name]
    free = {*_NAC, "euler_steps"} if settings.get("mode") == "euler" else {*_NAC}
    if settings.get("selection") == "pairwise":
        free.remove("top_k")
    needs = {"delta_t": ("output", ("riemann",))}
    if settings.get("wiring") == "mlp":  # no synapses from a layer to an earlier one
        needs["settle_steps"] = ("wiring", ("ncp",))
        if settings["sparsity"] == 0.0:  # no synapse is left out, so none is drawn
            needs["seed"] = ("wiring", ("ncp",))
    return CoreFactory(NACCore, about, tuple(sorted(free - set(settings))), defaults, needs, **settings)


_HEADS = ("num_heads", "window")
_FANS = ("sensory_fanout", "inter_fanout", "recurrent_command_synapses", "motor_fanin")
_NCP = ("inter", "command", "motor", "sparsity", "seed", "unfolds", *_FANS)
_CIRCUIT = ("units", "neurons", "iterations")
_PURE = ("backbone_units",)
_UNITS = ("backbone_units", "time_unit")

SHIPPED: dict[str, CoreFactory] = {
    # Neuronal Attention Circuits; nac-block is a layer only, see NACCore
    "nac-exact": _nac(
        "nac-exact", "Neuronal Attention Circuit over the last 8 frames ([nac.md](nac.md)); exact logits"
    ),
    "nac-euler": _nac("nac-euler", "the same, logits by explicit Euler steps"),
    "nac-steady": _nac("nac-steady", "the same, logits in their steady state"),
    "nac-2k": _nac("nac-2k", "nac-exact with 2 of the 8 keys"),
    "nac-32k": _nac("nac-32k", f"the 32 best keys of the last {_WIDE} frames", window=_WIDE),
    "nac-pw": _nac("nac-pw", f"all keys of the last {_WIDE} frames", window=_WIDE),
    "nac-02s": _nac("nac-02s", "nac-exact, circuits of sparsity 0.2 in place of 0.5"),
    "nac-09s": _nac("nac-09s", "nac-exact, circuits of sparsity 0.9"),
    "nac-phi-linear": _nac("nac-phi-linear", "nac-exact, φ linear in place of a sigmoid"),
    "nac-phi-tanh": _nac("nac-phi-tanh", "nac-exact, φ = tanh"),
    "nac-fc": _nac("nac-fc", "nac-exact, the circuits replaced by dense multi-layer perceptrons of the same sizes"),
    "nac-09sfc": _nac("nac-09sfc", "nac-fc with 90 % of the weights left out"),
    "nac-05sfc": _nac("nac-05sfc", "nac-fc with 50 % of the weights left out"),
    "nac-02sfc": _nac("nac-02sfc", "nac-fc with 20 % of the weights left out"),
    "nac-learned": _nac(
        "nac-learned",
        f"8 keys of the last {_WIDE} frames, chosen by a trained score ([learned_selection.md](learned_selection.md))",
        window=_WIDE,
    ),
    "nac-sharp": _nac(
        "nac-sharp",
        "beyond the paper: sharp logits, a learned loss per frame of age, whole inputs as values",
        num_heads=4,
    ),
    # without memory
    "cnn": CoreFactory(Feedforward, "no memory: one dense layer"),
    "cnn-bojarski": CoreFactory(
        Bojarski, "no memory: the dense layers of Hasani's thesis, Table 6.3; the dropouts are the encoder's"
    ),
    # discrete time
    "rnn": CoreFactory(RNN, "torch.nn.RNN, one layer"),
    "rin": CoreFactory(RIN, "Hu et al. 2018: rnn with an identity beside the recurrent weights (thesis, Eq. 2.7)"),
    "tdnn": CoreFactory(TDNN, "time-delay network: one dense layer over the last 8 frames", ("window",)),
    "narx": CoreFactory(NARX, "the same, and over its last 4 outputs (thesis, Eq. 2.6)", ("window", "delays")),
    "lstm": CoreFactory(LSTM, "torch.nn.LSTM, one layer"),
    "lstm-sparse": CoreFactory(
        SparseLSTM, "LSTM with 95 % of the weights fixed at zero by a seed (thesis, Table 6.1)", ("sparsity", "seed")
    ),
    "gru": CoreFactory(GRU, "torch.nn.GRU, one layer"),
    # continuous time
    "ct-rnn": CoreFactory(
        CTRNN, "Funahashi & Nakamura 1993: τ dh/dt = -h + tanh(Wx + Uh + b), exponential Euler", ("unfolds",)
    ),
    "ct-rnn-sparse": CoreFactory(
        CTRNN, "ct-rnn with 95 % of the weights fixed at zero (thesis, Table 6.1)", ("unfolds", "seed"), sparsity=0.95
    ),
    "ct-gru": CoreFactory(
        CTGRU, "Mozer et al. 2017; time scales from 0.02 to 20 s; outputs come before the decay", ("num_scales",)
    ),
    "gru-ode": CoreFactory(
        GRUODE, "De Brouwer et al. 2019: GRU-ODE between frames, a GRU at each; no Bayesian part", ("unfolds",)
    ),
    "ode-rnn": CoreFactory(
        ODERNN, "Rubanova et al. 2019: an ODE network between frames, a GRU at each; midpoint steps", ("ode_steps",)
    ),
    "phased-lstm": CoreFactory(
        PhasedLSTM, "Neil et al. 2016; no peepholes; the open ratio is a setting, 0.1", ("open_ratio", "leak")
    ),
    "mmrnn": CoreFactory(
        MMRNN, "mixed memory (Lechner & Hasani 2020): an LSTM memory, a CT-RNN as continuous state", ("unfolds",)
    ),
    "ltc": CoreFactory(LTC, "liquid time constants, hybrid solver (thesis, Eq. 3.72)", ("unfolds",)),
    "lrc": CoreFactory(
        LRC,
        "liquid resistance and capacitance (Farsang et al. 2024), symmetric elastance; implicit step",
        ("time_unit",),
    ),
    "ncp": CoreFactory(
        NCP,
        "LTC neurons wired as a Neural Circuit Policy: 12 inter, 6 command, 3 motor; starts from a trained encoder",
        _NCP,
        wiring="ncp",
    ),
    "ncp-random": CoreFactory(
        NCP, "the same neurons, as many synapses at random places (thesis, Table 6.1)", _NCP, wiring="random"
    ),
    "ncp-full": CoreFactory(
        NCP,
        "the same neurons with all synapses (thesis, Table 6.1)",
        tuple(name for name in _NCP if name not in ("sparsity", "seed", *_FANS)),
        wiring="full",
    ),
    "tap-withdrawal": CoreFactory(
        TapWithdrawal,
        "LTC neurons wired as a reflex of C. elegans: 11 neurons, 28 synapses, two inputs (thesis, Chapter 4)",
        ("wiring", "seed", "unfolds"),
        needs={"seed": ("wiring", ("a", "b", "c", "d"))},
    ),
    "cfc": CoreFactory(
        CfC, "closed-form continuous time (Hasani et al. 2022); variant A of the PDNA paper", _UNITS, mode="gated"
    ),
    "cfc-no-gate": CoreFactory(CfC, "its mode without the first gate", _UNITS, mode="no-gate"),
    "cfc-pure": CoreFactory(CfC, "its pure closed form, Cf-S", _PURE, mode="pure"),
    "cfc-ncp": CoreFactory(
        WiredCfC, "CfC layers on an NCP wiring, as ncps wires them", ("units", "sparsity", "seed", "time_unit")
    ),
    "lds": CoreFactory(
        LDS,
        "a linear dynamical system (thesis, 2.8.3) with the Gershgorin loss of its matrix",
        ("unfolds", "margin", "stability"),
    ),
    # state space
    "deepstate": CoreFactory(
        DeepState, "Rangapuram et al. 2018 as a filter: an LSTM sets the gains; no noise, no likelihood", ("rnn_size",)
    ),
    "s4": CoreFactory(
        S4, "S4 (Gu et al. 2022): diagonal plus low-rank, from HiPPO-LegS; bilinear over the true gap", ("state_size",)
    ),
    "s4d": CoreFactory(S4D, "diagonal S4 (Gu et al. 2022), zero-order hold over the true gap", ("state_size",)),
    # attention
    "attention": CoreFactory(
        SoftmaxAttention,
        "softmax attention (Vaswani et al. 2017) over the last 32 frames, one head, learned ALiBi slopes",
        ("window",),
        num_heads=1,
    ),
    "mha": CoreFactory(SoftmaxAttention, "the same with 4 heads", _HEADS),
    "transformer": CoreFactory(
        Transformer, "a block with norms, mha over the last 8 frames, residuals and a feed-forward layer", _HEADS
    ),
    "nac-transformer": CoreFactory(
        NACTransformer,
        "beyond the paper: the same block with nac-sharp, whose logits hold the score of softmax attention, too",
        _HEADS,
    ),
    "relu-attention": CoreFactory(
        ReLUAttention,
        "ReLU in place of the softmax, RMSNorm (Zhang et al. 2021): Linear Attention of the NAC paper",
        _HEADS,
    ),
    "linear-attention": CoreFactory(
        LinearAttention, "kernel elu + 1 (Katharopoulos et al. 2020); not the NAC paper's baseline", _HEADS
    ),
    "performer": CoreFactory(
        Performer,
        "positive random features, FAVOR+ (Choromanski et al. 2021)",
        (*_HEADS, "num_features", "seed"),
    ),
    # continuous-time attention
    "mtan": CoreFactory(
        MTAN,
        "multi-time attention (Shukla & Marlin 2021): frames are weighed by their ages alone",
        (*_HEADS, "time_size"),
    ),
    "cta": CoreFactory(
        CTA, "Chien & Chen 2021: an ODE-RNN that attends to its own path; two running integrals", ("ode_steps",)
    ),
    "odeformer": CoreFactory(
        ODEFormer,
        "as in the NAC papers' code: a Transformer block as an ODE in depth; causality and time are ours",
        (*_HEADS, "euler_steps"),
    ),
    "contiformer": CoreFactory(
        ContiFormer,
        "Chen et al. 2023: keys and values evolve after their frame; the query stays that of its frame",
        (*_HEADS, "ode_steps"),
    ),
    # oscillating; variant A of the paper is "cfc"
    "pdna-b": CoreFactory(NoisyCfC, "PDNA, variant B: CfC with noise in training", _UNITS),
    "pdna-c": CoreFactory(PDNA, "variant C: CfC with a pulse", _UNITS, pulse=True, self_attend=False),
    "pdna-d": CoreFactory(PDNA, "variant D: CfC with self-attention", _UNITS, pulse=False, self_attend=True),
    "pdna-e": CoreFactory(PDNA, "variant E: CfC with both", _UNITS, pulse=True, self_attend=True),
    "pdna-ode": CoreFactory(
        PDNAODE, "beyond the paper: the pulse moves the state between frames, by a closed-form integral", _UNITS
    ),
    # circuits
    "circuitnet-l": CoreFactory(
        CircuitNet,
        "recurrent CircuitNet (Wang et al. 2023): four motif units with ports, ClipSin; linear",
        _CIRCUIT,
        attention=False,
        product=False,
    ),
    "circuitnet-la": CoreFactory(
        CircuitNet, "the same with neuron-wise attention", _CIRCUIT, attention=True, product=False
    ),
    "circuitnet-lp": CoreFactory(CircuitNet, "the same with products", _CIRCUIT, attention=False, product=True),
    "circuitnet-lap": CoreFactory(CircuitNet, "the same with both: all motifs", _CIRCUIT, attention=True, product=True),
}


def _require_factory(name: str, factory: Any) -> None:
    """Check what a user adds.

    Raises:
        ValueError: It is no factory.
    """
    if not isinstance(factory, CoreFactory):
        raise ValueError(
            f"core {name!r}: must be a CoreFactory, got {type(factory).__name__}; pass a module to "
            f"nac_drive.register_core({name!r}, ...), which checks it, too."
        )


CORES: Registry[CoreFactory] = Registry("core", SHIPPED, adapt=factory_of_module, check=_require_factory)
"""Name -> factory: `CORES["lstm"](input_size, output_size, **settings)`. No two names make the same function at their
default settings. A new core is a file with its class, a line here, and a test that inherits CoreContract."""


MOST: dict[str, int] = {
    **dict.fromkeys(("num_heads", "top_k", "units", "backbone_units"), 65_536),
    **dict.fromkeys(("rnn_size", "state_size", "time_size", "num_features"), 65_536),
    **dict.fromkeys(("settle_steps", "unfolds", "iterations", "euler_steps", "ode_steps"), 1000),
    **dict.fromkeys(("inter", "command", "motor", "sensory_fanout", "inter_fanout", "motor_fanin"), 128),
    "recurrent_command_synapses": 128**2,
    "window": 16_384,
    "delays": 1000,
    "neurons": 4096,
    "num_scales": 64,
    "seed": 2**63 - 1,
}
"""Largest value of every setting that is a whole number. A core checks the smallest itself."""
_MOST_UNITS = 64
"""Largest number of motif units of CircuitNet, which connects every one with every other."""
_NUMBERS = ("sparsity", "open_ratio", "leak", "margin", "delta_t", "time_unit", "gain", "recency")
_LARGEST_NUMBER = 1e6
_FLAGS = ("scored",)
_WORDS = ("phi_activation", "output", "value", "stability", "wiring")
_NONE = ("units", "neurons", "backbone", "gain", "recency", *_FANS)
"""Settings that may be None."""


def _check_settings(name: str, settings: dict[str, Any]) -> None:
    """Check types and largest values of a core's settings.

    It happens before anything is made from them.

    Raises:
        ValueError: A setting is of another type, too large or not finite.
    """
    for key, value in settings.items():
        if value is None and key in _NONE:
            continue
        if key in MOST:
            most = _MOST_UNITS if key == "units" and name.startswith("circuitnet") else MOST[key]
            check_whole(f"core_args: {key}", value, 0 if key == "seed" else -most, most)
        elif key in _NUMBERS:
            check_number(f"core_args: {key}", value, -_LARGEST_NUMBER, _LARGEST_NUMBER)
        elif key == "backbone":
            check_type("core_args: backbone", value, dict)
        elif key in _FLAGS:
            check_type(f"core_args: {key}", value, bool)
        elif key in _WORDS:
            check_type(f"core_args: {key}", value, str)


def build_core(name: str, input_size: int, output_size: int, /, **settings: Any) -> Core:
    """Build a core by name.

    Args:
        name: A name in CORES.
        input_size: Number of input features.
        output_size: Number of output features.
        settings: Settings of that core; docs/drivers.md names them.

    Raises:
        ValueError: The name or a setting is unknown, or a size or a setting does not fit.
    """
    factory = CORES.require(name)
    input_size, output_size = whole("input_size:", input_size, 1), whole("output_size:", output_size, 1)
    _check_settings(name, {key: value for key, value in settings.items() if key in factory.accepted})
    try:
        return factory(input_size, output_size, **settings)
    except TypeError as error:
        raise ValueError(f"core_args: a setting of {name!r} has the wrong type, got {settings} ({error}).") from error


def core_table() -> str:
    """Return the table of CORES in docs/drivers.md, in Markdown.

    Parameters count a core with 64 features in and out, at its defaults.
    """
    rows = []
    with torch.random.fork_rng(devices=[]):
        for name, factory in CORES.items():
            core = factory(64, 64)
            parameters = sum(parameter.numel() for parameter in core.parameters())
            time = "yes" if core.continuous_time else "no"
            rows.append((f"`{name}`", f"{parameters:,}", time, factory.about))
    return markdown_table(("core", "parameters", "time", "model, source, main departure from it"), rows, "lrll")
