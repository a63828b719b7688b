"""Perturbations by name and level: `perturb(env, "shadows:2+frame-drop:1")` (docs/perturbations.md)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from inspect import getdoc
from typing import Any, NamedTuple, get_args

import gymnasium as gym
import numpy as np

from nac_drive.envs.perturbations.augmentations import (
    CutOut,
    RandomConvolution,
    RandomErasing,
    RandomOverlay,
    ToneCurves,
)
from nac_drive.envs.perturbations.base import Perturbation
from nac_drive.envs.perturbations.dynamics import ActionDelay, ActionFault, TyreGrip
from nac_drive.envs.perturbations.effects import Chain, Effect
from nac_drive.envs.perturbations.frames import Blackouts, EveryNth, FrameDrop, FrameLoss, Gaps, IrregularRate, Missing
from nac_drive.envs.perturbations.images import (
    Brightness,
    ColourChange,
    Corruption,
    FrameSize,
    GaussianNoise,
    Line,
    OcclusionBars,
    OcclusionBlobs,
    SaltAndPepper,
    Shadows,
)
from nac_drive.envs.perturbations.in_turn import PerturbedInTurn
from nac_drive.envs.perturbations.mishaps import Mishaps
from nac_drive.envs.perturbations.own import OwnEffect, OwnPerturbation, is_own
from nac_drive.envs.perturbations.published import PublishedBars, PublishedBlob, PublishedColours, PublishedNoise
from nac_drive.envs.perturbations.stream import Stream
from nac_drive.envs.perturbations.timing import TimedPerturbation, Timing
from nac_drive.envs.wrappers import BAR_TOP
from nac_drive.markdown import markdown_table
from nac_drive.plain import whole
from nac_drive.registry import Registry

_SHIPPED: dict[str, tuple[Perturbation, ...]] = {
    "published-colour": (PublishedColours(0.2),),
    "published-bars": (PublishedBars(3 / 40),),
    "published-blob": (PublishedBlob(side=8, right=21.0, ahead=7.6),),
    "published-noise": (PublishedNoise(255),),
    "gaussian-noise": (GaussianNoise(0.1), GaussianNoise(0.2), GaussianNoise(0.3)),
    "salt-and-pepper": (SaltAndPepper(0.02), SaltAndPepper(0.05), SaltAndPepper(0.15)),
    "brightness": (Brightness(1.3), Brightness(1.6), Brightness(2.0)),
    "shadows": (Shadows(2, 0.3), Shadows(4, 0.45), Shadows(6, 0.6)),
    "line": (Line(0.3), Line(0.5), Line(0.7)),
    "occlusion-bars": (OcclusionBars(1, 0.1), OcclusionBars(2, 0.1), OcclusionBars(3, 0.1)),
    "occlusion-blobs": (OcclusionBlobs(0.05), OcclusionBlobs(0.15), OcclusionBlobs(0.3)),
    "colour": (ColourChange(40), ColourChange(80), ColourChange(120)),
    "random-convolution": (RandomConvolution(0.25), RandomConvolution(0.5), RandomConvolution(1.0)),
    "tone-curves": (ToneCurves(0.25), ToneCurves(0.5), ToneCurves(1.0)),
    "random-overlay": (RandomOverlay(0.2), RandomOverlay(0.4), RandomOverlay(0.6)),
    "cut-out": (CutOut(0.1), CutOut(0.2), CutOut(0.35)),
    "random-erasing": (RandomErasing(1, 0.2), RandomErasing(2, 0.2), RandomErasing(4, 0.2)),
    "frame-drop": (FrameDrop(0.1), FrameDrop(0.3), FrameDrop(0.5)),
    "blackouts": (Blackouts(0.3, 5), Blackouts(0.5, 5), Blackouts(0.7, 5)),
    "gap": (Gaps(0.05), Gaps(0.15), Gaps(0.3)),
    "scattered-gaps": (Gaps(0.1, 4), Gaps(0.2, 4), Gaps(0.3, 4)),
    "frame-rate": (IrregularRate((0.5, 0.5)), IrregularRate((1 / 3,) * 3), IrregularRate((0.2,) * 5)),
    "action-repeat": (EveryNth(2), EveryNth(4), EveryNth(8)),
    "action-delay": (ActionDelay(1), ActionDelay(2), ActionDelay(3), ActionDelay(4)),
    "action-noise": (ActionFault(0.1, 0.1), ActionFault(0.2, 0.2), ActionFault(0.3, 0.3)),
    "weak-tyres": (TyreGrip(0.9), TyreGrip(0.75), TyreGrip(0.6)),
    "mishaps": (Mishaps(1), Mishaps(2), Mishaps(4)),
}
_NAME = "[a-z-]+"


def _require_levels(name: str, levels: Any) -> None:
    """Check what a user adds.

    Raises:
        ValueError: The name cannot stand in a specification, or `levels` is no tuple of perturbations.
    """
    if not re.fullmatch(_NAME, name):
        raise ValueError(f"perturbation {name!r}: a name must be of small letters and hyphens; rename it.")
    if not isinstance(levels, tuple) or not levels or not all(isinstance(each, Perturbation) for each in levels):
        raise ValueError(
            f"perturbation {name!r}: must be a tuple with a Perturbation for each level, such as (Brightness(1.5), "
            f"Brightness(2.5)), got {repr(levels)[:100]}."
        )


PERTURBATIONS: Registry[tuple[Perturbation, ...]] = Registry("perturbation", _SHIPPED, check=_require_levels)
"""Name -> settings of level 1, 2, 3 (and 4)."""

CORRUPTIONS = tuple(name for name, levels in _SHIPPED.items() if isinstance(levels[0], Corruption))
"""Names of the shipped perturbations that change images only, recorded ones too."""


def recordable() -> list[str]:
    """Return the names of perturbations for recorded sequences.

    They change images, lose frames or delay actions.
    """
    return [name for name, levels in PERTURBATIONS.items() if isinstance(levels[0], Corruption | TimedPerturbation)]


@dataclass(frozen=True)
class Part:
    """One part of a specification: perturbation, name and level."""

    name: str
    level: int
    perturbation: Perturbation


def parse(spec: str) -> list[Part]:
    """Parse a specification of perturbations.

    Args:
        spec: `NAME:LEVEL`, or for lost frames `NAME:LEVEL:MISSING`, joined by `+`, such as "colour:1+gap:3:hold".
            Level 0 and an empty string mean none. MISSING is hold, zero or skip (see `FrameLoss`).

    Returns:
        The parts in the order of `spec`; parts of level 0 are left out.

    Raises:
        ValueError: For an unknown name, level or MISSING, and for a name that comes twice.
    """
    parts = [_part(part.strip(), spec) for part in spec.split("+")] if spec.strip() else []
    present = [part for part in parts if part]
    names = [part.name for part in present]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"perturbation {spec!r} names {twice[0]!r} twice; use one of its higher levels.")
    return present


def parse_all(specs: str) -> list[list[Part]]:
    """Parse specifications separated by commas, such as "gap:2,frame-rate:3,gap:0".

    Raises:
        ValueError: For a specification that `parse` refuses.
    """
    return [parse(spec) for spec in specs.split(",")]


def perturb(
    env: gym.Env, spec: str, seed: int = 0, *, episode_frames: int = 1000, bar_top: int | None = BAR_TOP
) -> gym.Env:
    """Wrap an environment in perturbations, the innermost first.

    "colour:1+gaussian-noise:2" is noise on changed colours. `frame-rate` belongs last: perturbations before it run at
    50 frames/s, perturbations after it count the frames that arrive.

    Args:
        env: The environment.
        spec: The perturbations (see `parse`). Of several specifications, separated by commas, each episode has one, in
            turn by track (see `PerturbedInTurn`).
        seed: Seed of all of them. Together with the seed of `reset` it settles their random numbers (see `Stream`).
        episode_frames: Length of an episode in frames, which the fractions of gaps refer to.
        bar_top: First row of the status bar in a frame, see `EnvSpec`; None for none.

    Returns:
        The wrapped environment; `env` itself if `spec` names no perturbation.

    Raises:
        ValueError: For a specification that `parse` refuses, numbers that are not whole, and a perturbation that needs
            CarRacing in another environment.
    """
    episode_frames, chains, streams = whole("episode_frames", episode_frames, 1), [], []
    for parts in parse_all(spec):
        chain = env
        for part in parts:
            streams.append(Stream(part.name, seed))
            arguments = streams[-1], episode_frames, bar_top
            chain = (
                OwnPerturbation(part.name, part.perturbation, chain, arguments)
                if is_own(part.perturbation)
                else part.perturbation.wrap(chain, *arguments)
            )
        chains.append(chain)
    return PerturbedInTurn(chains, streams) if len(chains) > 1 else chains[0]


def parse_corruptions(spec: str) -> list[Corruption]:
    """Parse a specification that changes images only.

    Raises:
        ValueError: If `parse` refuses `spec`, or a part of it changes more than images.
    """
    corruptions = []
    for part in parse(spec):
        if not isinstance(part.perturbation, Corruption):
            raise ValueError(
                f"perturbation {part.name!r} changes the episode, not the image; images take {CORRUPTIONS}."
            )
        corruptions.append(part.perturbation)
    return corruptions


def draw_effect(corruptions: list[Corruption], rng: np.random.Generator, size: FrameSize) -> Effect:
    """Draw all `corruptions` once.

    Args:
        corruptions: Applied in this order.
        rng: Source of all randomness.
        size: Size of the frames, in pixels.

    Returns:
        A function from frames (..., H, W, 3) uint8 to corrupted frames.
    """
    return Chain(tuple(_drawn(corruption, rng, size) for corruption in corruptions))


def _drawn(corruption: Corruption, rng: np.random.Generator, size: FrameSize) -> Effect:
    effect = corruption.draw(rng, size)
    return OwnEffect(type(corruption).__name__, effect) if is_own(corruption) else effect


class Augmented(NamedTuple):
    """The perturbations of one training sequence."""

    effect: Effect
    """Changes its images, before any of them is lost."""
    timed: list[TimedPerturbation]
    """Lose its frames and delay its actions, the first one first."""

    def timing(self, length: int, rng: np.random.Generator) -> Timing:
        """Draw a driver's queries along a sequence of `length` frames."""
        timing = Timing.of(length)
        for perturbation in self.timed:
            if len(timing.rows):
                timing = perturbation.retime(timing, rng)
        return timing


@dataclass(frozen=True)
class Augmentation:
    """Random perturbation of training sequences by one of `specs`.

    No perturbation is as likely as each of them.

    It serves recorded sequences and, as far as it changes images, environments in which a driver learns (domain
    randomisation).

    Raises:
        ValueError: For a specification that `parse` refuses, or a perturbation that is not `recordable`.
    """

    specs: Sequence[str] = ()

    def __post_init__(self) -> None:
        for part in (part for spec in self.specs for part in parse(spec)):
            if part.name not in recordable():
                raise ValueError(
                    f"augment: perturbation {part.name!r} needs the simulator; recorded frames take "
                    f"{', '.join(recordable())}. Record under it with `collect --perturb` or `dagger --perturb`."
                )

    @property
    def images_only(self) -> bool:
        """True if no frame is lost and no action delayed."""
        return not any(isinstance(part.perturbation, TimedPerturbation) for spec in self.specs for part in parse(spec))

    def draw(self, rng: np.random.Generator, size: FrameSize) -> Augmented:
        """Draw the perturbations of one sequence.

        Args:
            rng: Source of all randomness.
            size: Size of the frames, in pixels.
        """
        choice = int(rng.integers(-1, len(self.specs)))
        drawn = [part.perturbation for part in parse(self.specs[choice])] if choice >= 0 else []
        effect = draw_effect([item for item in drawn if isinstance(item, Corruption)], rng, size)
        return Augmented(effect, [item for item in drawn if isinstance(item, TimedPerturbation)])


def perturbation_table() -> str:
    """Return the table of all perturbations in docs/perturbations.md, as Markdown.

    Settings and effects come from the fields and the docstrings of `PERTURBATIONS`.
    """
    rows = [
        (f"`{name}`", _settings(levels), " ".join((getdoc(type(levels[0])) or "").split()))
        for name, levels in PERTURBATIONS.items()
    ]
    return markdown_table(("name", "settings, level by level", "effect"), rows, "lll")


def _settings(levels: Sequence[Perturbation]) -> str:
    """Return every field's values, one where all levels agree."""
    cells = []
    for field in fields(levels[0]):
        values = [_text(getattr(level, field.name)) for level in levels]
        cells.append(f"{field.name} {' / '.join(values if len(set(values)) > 1 else values[:1])}")
    return "; ".join(cells)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))})"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _part(part: str, spec: str) -> Part | None:
    match = re.fullmatch(rf"({_NAME}):(\d+)(?::([a-z]+))?", part)
    if not match:
        raise ValueError(
            f"perturbation {spec!r}: each part must be NAME:LEVEL or NAME:LEVEL:MISSING, got {part!r}; "
            "such as shadows:2+frame-drop:1:skip."
        )
    name, level, missing = match[1], int(match[2]), match[3]
    levels = PERTURBATIONS.require(name)
    if level > len(levels):
        raise ValueError(f"perturbation {name!r} has the levels 1 to {len(levels)} (0 is none), got {level}.")
    perturbation = levels[max(level, 1) - 1]
    if missing is not None:
        if not isinstance(perturbation, FrameLoss):
            raise ValueError(f"perturbation {name!r} loses no frames, got {part!r}; write {name}:{level}.")
        if missing not in get_args(Missing):
            raise ValueError(f"perturbation {part!r}: MISSING must be one of {get_args(Missing)}, got {missing!r}.")
        perturbation = replace(perturbation, missing=missing)
    return Part(name, level, perturbation) if level else None
