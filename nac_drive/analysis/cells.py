"""The cells inside a driver's circuits, decision by decision.

A NAC core has no state that could be read afterwards: its cells are computed anew for every pair of query and key. LTC
and NCP have a second number for each neuron, the speed with which it follows its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from nac_drive.policies.cores.ltc import LiquidCore
from nac_drive.policies.cores.nac import NACCore
from nac_drive.policies.cores.nac_transformer import nac_of
from nac_drive.policies.driver import Driver
from nac_drive.policies.nac.masks import Mask
from nac_drive.policies.nac.records import AttentionRecord, CircuitRecord
from nac_drive.policies.nac.tokens import Tokens

BACKBONE = ("inter", "command", "motor")
SIGNALS = ("phi", "omega", "t", "a")
"""Quantities of the attention; a are the logits."""
COUPLING = "coupling sensitivity"

Cells = dict[str, Tensor]
"""Group -> (N,) values on the device of the driver."""


@contextmanager
def watched_cells(driver: Driver, note: Callable[[Cells], None]) -> Iterator[None]:
    """Call `note` with the cells of every decision.

    The driver acts as without it. Groups of a NAC core, head by head (H n,): `q`, `k` and `v`, outputs of the sensory
    gates for the newest frame (no `v` where whole inputs are the values); `inter`, `command` and `motor`, the settled
    neurons of the backbone in -1..1; `phi`, `omega`, `t` and `a`, one of each head. Backbone and signals are means over
    the keys that are kept, of frames that exist. LTC and NCP have `coupling sensitivity`, (N,) seconds (thesis, Eq.
    3.7). Of other cores, `note` is never called.

    Args:
        driver: The driver.
        note: Called with the cells.
    """
    core = driver.core
    if isinstance(core, LiquidCore):

        def follow(module: LiquidCore, inputs: tuple[Tensor, Tensor, tuple[Tensor, ...]]) -> None:
            x, _, state = inputs
            note({COUPLING: core.coupling_sensitivity(x[:, 0], state).flatten()})

        hook = core.register_forward_pre_hook(follow)
        try:
            yield
        finally:
            hook.remove()
    elif nac := nac_of(core):
        with _watched_nac(nac, note):
            yield
    else:
        yield


@contextmanager
def _watched_nac(core: NACCore, note: Callable[[Cells], None]) -> Iterator[None]:
    nac, latest = core.nac, []

    def keep(_: NACCore, inputs: tuple[Tensor, ...]) -> None:
        latest[:] = inputs[:1]

    def watch(tokens: Tokens, mask: Mask, times: Tensor, record: AttentionRecord) -> None:
        (x,) = latest
        projections = (*nac.query_gate(x).unbind(2), *nac.context_gate(x).unbind(2))  # (B, T, d) each
        _, circuit = nac.attend(tokens, mask, times, CircuitRecord)
        assert mask.valid is not None
        exists = mask.valid[:, None, None].expand_as(times.expand(*record.index.shape[:3], -1)).gather(3, record.index)
        note({
            **{name: values.flatten() for name, values in zip(("q", "k", "v"), projections, strict=False)},
            **{name: _mean(circuit[name][-1], exists[..., None]).flatten() for name in BACKBONE if name in circuit},
            **{name: _mean(getattr(record, name)[..., None], exists[..., None]).flatten() for name in SIGNALS},
        })  # fmt: skip

    hook = core.register_forward_pre_hook(keep)
    core.attention_hooks.append(watch)
    try:
        yield
    finally:
        core.attention_hooks.remove(watch)
        hook.remove()


def _mean(values: Tensor, exists: Tensor) -> Tensor:
    """Mean of values (B, H, T, K, n) over the keys that exist."""
    return values.where(exists, 0).sum(dim=3) / exists.sum(dim=3)
