"""Every core by name."""

from __future__ import annotations

from typing import Any

from policies.cfc import CfC
from policies.core import Core, CoreFactory
from policies.feedforward import Feedforward
from policies.nac_core import NACCore
from policies.recurrent import GRU, LSTM

_NAC = ("num_heads", "window", "sparsity", "gate", "output", "delta_t", "settle_steps", "seed")

CORES: dict[str, CoreFactory] = {
    "nac-exact": CoreFactory(NACCore, (*_NAC, "top_k"), mode="exact"),
    "nac-euler": CoreFactory(NACCore, (*_NAC, "top_k", "euler_steps"), mode="euler"),
    "nac-steady": CoreFactory(NACCore, (*_NAC, "top_k"), mode="steady"),
    "nac-pw": CoreFactory(NACCore, _NAC, mode="exact", selection="pairwise"),
    "lstm": CoreFactory(LSTM, ()),
    "gru": CoreFactory(GRU, ()),
    "cfc": CoreFactory(CfC, ("backbone_units",)),
    "cnn": CoreFactory(Feedforward, ()),
}


def build_core(name: str, input_size: int, output_size: int, **settings: Any) -> Core:
    """`CORES[name](input_size, output_size, **settings)`; ValueError if the name or a setting is unknown or unfit."""
    if name not in CORES:
        raise ValueError(f"core: unknown name {name!r}; known are {', '.join(CORES)}.")
    try:
        return CORES[name](input_size, output_size, **settings)
    except TypeError as error:
        raise ValueError(f"core_args: a setting of {name!r} has the wrong type, got {settings} ({error}).") from error
