"""Measures of attention weights, and ways to replace them.

The replacements show whether the weights of a NAC driver matter.

Shapes: B batch, H heads, T queries, K keys of a query.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn

from nac_drive.policies.cores.nac import NACCore
from nac_drive.policies.cores.nac_transformer import nac_of
from nac_drive.policies.driver import Driver
from nac_drive.policies.nac.masks import Mask
from nac_drive.policies.nac.records import AttentionRecord
from nac_drive.policies.nac.tokens import Tokens

Hook = TypeVar("Hook")


def normalised_entropy(alpha: Tensor) -> Tensor:
    """Entropy of attention weights relative to uniform weights.

    1 is uniform, 0 is a single key.

    Args:
        alpha: (..., K) weights that sum to 1, K at least 2.

    Returns:
        (...): -sum alpha ln alpha / ln K.
    """
    return torch.special.entr(alpha).sum(dim=-1) / torch.log(torch.tensor(float(alpha.shape[-1])))


def largest_weight(alpha: Tensor) -> Tensor:
    """The weight of the key that gets most: weights (..., K) -> (...). Uniform weights give 1 / K."""
    return alpha.amax(dim=-1)


def mean_age(alpha: Tensor, age: Tensor) -> Tensor:
    """The age that a query attends to on average.

    Args:
        alpha: (..., K) weights that sum to 1.
        age: Ages of the keys in any unit; broadcasts to the shape of `alpha`.

    Returns:
        (...): sum alpha age, in the unit of `age`.
    """
    return (alpha * age).sum(dim=-1)


def weight_by_age(alpha: Tensor, age: Tensor, edges: Tensor) -> Tensor:
    """Mean attention weight of keys by age.

    Args:
        alpha: (..., K) weights that sum to 1.
        age: Ages of the keys in any unit; broadcasts to the shape of `alpha`.
        edges: (E,) increasing ages; interval i holds edges[i] <= age < edges[i + 1].

    Returns:
        (..., E - 1): sums of weights. Keys outside all intervals count nowhere.
    """
    age = age.expand_as(alpha)
    inside = [(age >= low) & (age < high) for low, high in pairwise(edges)]
    return torch.stack([(alpha * interval).sum(dim=-1) for interval in inside], dim=-1)


@dataclass(frozen=True)
class AttentionStep:
    """The attention of one decision. All tensors are (B, H, T, K), K being the keys that are kept."""

    record: AttentionRecord
    age: Tensor
    """Seconds from each key to its query."""
    t_movement: Tensor
    """|t(oldest age) - t(0)| of each pair of query and key: the change of t by age alone, its content kept."""


@contextmanager
def recorded_attention(driver: Driver) -> Iterator[list[AttentionStep]]:
    """Record the attention of every decision inside the `with` block. The driver acts as without it.

    Args:
        driver: A driver with a NAC core.

    Yields:
        The list that the records are appended to.

    Raises:
        ValueError: For a driver with another core.
    """
    steps: list[AttentionStep] = []

    def note(record: AttentionRecord, age: Tensor, t_movement: Callable[[], Tensor]) -> None:
        steps.append(AttentionStep(record, age, t_movement()))

    with watched_attention(driver, note):
        yield steps


@contextmanager
def watched_attention(
    driver: Driver, note: Callable[[AttentionRecord, Tensor, Callable[[], Tensor]], None]
) -> Iterator[None]:
    """Call `note` with the attention of every decision.

    The driver acts as without it.

    Args:
        driver: A driver with a NAC core.
        note: Called with the record, the ages of its keys in seconds, and a function that computes
            `AttentionStep.t_movement`.

    Raises:
        ValueError: For a driver with another core.
    """
    core = nac_core(driver)

    def watch(tokens: Tokens, mask: Mask, times: Tensor, record: AttentionRecord) -> None:
        age = core.time_unit * times.expand(*record.index.shape[:3], times.shape[3])  # seconds, (B, H, T, window)

        def t_movement() -> Tensor:
            oldest = times.amax(dim=3, keepdim=True).expand_as(times)
            late, early = (core.nac.attend(tokens, mask, age, AttentionRecord)[1]["t"] for age in (oldest, 0 * times))
            return (late - early).abs()

        note(record, age.gather(3, record.index), t_movement)  # of the keys that are kept

    with _added(core.attention_hooks, watch):
        yield


@contextmanager
def zeroed_heads(driver: Driver, heads: Collection[int]) -> Iterator[None]:
    """Turn heads of a NAC driver off inside the `with` block.

    Raises:
        ValueError: For a driver with another core.
    """
    nac = nac_core(driver).nac
    rows = list(heads)

    def zero(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        values = inputs[0].unflatten(2, (nac.num_heads, -1)).clone()  # (B, T, H, D)
        values[:, :, rows] = 0
        return (values.flatten(2),)

    hook = nac.out.register_forward_pre_hook(zero)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def uniform_weights(driver: Driver) -> Iterator[None]:
    """Give all frames of the window the same weight.

    Raises:
        ValueError: For a driver with another core.
    """
    with _added(nac_core(driver).nac.logit_hooks, torch.zeros_like):
        yield


@contextmanager
def newest_frame_only(driver: Driver) -> Iterator[None]:
    """Let a NAC driver see the newest frame alone.

    Episodes must begin inside the block: the state of a window of another length does not fit.

    Raises:
        ValueError: For a driver with another core.
    """
    core = nac_core(driver)
    window = core.window
    core.window = 1
    try:
        yield
    finally:
        core.window = window


@contextmanager
def shuffled_keys(driver: Driver, seed: int = 0) -> Iterator[None]:
    """Shuffle the weights of every head at every decision.

    The weights stay as sharp as they are; their assignment to frames is lost.

    Raises:
        ValueError: For a driver with another core.
    """
    generator = torch.Generator().manual_seed(seed)

    def shuffle(logits: Tensor) -> Tensor:
        order = torch.rand(logits.shape, generator=generator).argsort(dim=3).to(logits.device)
        return logits.gather(3, order)

    with _added(nac_core(driver).nac.logit_hooks, shuffle):
        yield


@contextmanager
def constant_clock(driver: Driver) -> Iterator[None]:
    """Give a driver the nominal time step at every frame."""
    config = driver.config
    driver.config = replace(config, clockless=True)
    try:
        yield
    finally:
        driver.config = config


def nac_core(driver: Driver) -> NACCore:
    """Return the NAC core of a driver.

    Raises:
        ValueError: The driver has another core.
    """
    nac = nac_of(driver.core)
    if nac is None:
        raise ValueError(f"driver must have a NAC core, got {driver.config.core!r}; such as champion.")
    return nac


@contextmanager
def _added(hooks: list[Hook], hook: Hook) -> Iterator[None]:
    hooks.append(hook)
    try:
        yield
    finally:
        hooks.remove(hook)
