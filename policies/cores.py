"""Every core by name."""

from __future__ import annotations

from typing import Any

from policies.cfc import CfC
from policies.core import Core, CoreFactory
from policies.feedforward import Feedforward
from policies.nac_core import NACCore
from policies.recurrent import GRU, LSTM
from policies.variants import NAC_VARIANTS

_NAC = ("num_heads", "window", "top_k", "sparsity", "gate", "output", "delta_t", "settle_steps", "seed", "backbone")


def _nac(settings: dict[str, Any]) -> CoreFactory:
    """A named variant: accepts every setting that its name does not fix and that has an effect on it."""
    free = {*_NAC, "euler_steps"} if settings.get("mode") == "euler" else {*_NAC}
    if settings.get("selection") == "pairwise":
        free.remove("top_k")
    return CoreFactory(NACCore, tuple(sorted(free - set(settings))), **settings)


CORES: dict[str, CoreFactory] = {
    **{name: _nac(settings) for name, settings in NAC_VARIANTS.items() if name != "nac-block"},  # see NACCore
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
