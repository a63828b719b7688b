"""Perturbations by name and level: `perturb(env, "shadows:2+frame-drop:1")`. What each does: docs/perturbations.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import gymnasium as gym
import numpy as np

from nac_drive.envs.perturbations.dynamics import (
    ActionDelay,
    ActionFault,
    DelayedActions,
    FaultyActions,
    TyreGrip,
    WeakTyres,
)
from nac_drive.envs.perturbations.frames import (
    FrameDrop,
    FrameLoss,
    Gaps,
    IrregularRate,
    Missing,
    SkippedFrames,
    StaleFrames,
)
from nac_drive.envs.perturbations.images import (
    Brightness,
    ColourChange,
    CorruptedFrames,
    Corruption,
    Effect,
    Frames,
    GaussianNoise,
    OcclusionBars,
    OcclusionBlobs,
    SaltAndPepper,
    Shadows,
)
from nac_drive.envs.perturbations.stream import Stream

Setting = Corruption | FrameLoss | ActionDelay | ActionFault | TyreGrip

PERTURBATIONS: dict[str, tuple[Setting, ...]] = {
    "gaussian-noise": (GaussianNoise(0.1), GaussianNoise(0.2), GaussianNoise(0.3)),
    "salt-and-pepper": (SaltAndPepper(0.02), SaltAndPepper(0.05), SaltAndPepper(0.15)),
    "brightness": (Brightness(1.3), Brightness(1.6), Brightness(2.0)),
    "shadows": (Shadows(2, 0.3), Shadows(4, 0.45), Shadows(6, 0.6)),
    "occlusion-bars": (OcclusionBars(1, 0.1), OcclusionBars(2, 0.1), OcclusionBars(3, 0.1)),
    "occlusion-blobs": (OcclusionBlobs(0.05), OcclusionBlobs(0.15), OcclusionBlobs(0.3)),
    "colour": (ColourChange(40), ColourChange(80), ColourChange(120)),
    "frame-drop": (FrameDrop(0.1), FrameDrop(0.3), FrameDrop(0.5)),
    "gap": (Gaps(0.05), Gaps(0.15), Gaps(0.3)),
    "scattered-gaps": (Gaps(0.1, 4), Gaps(0.2, 4), Gaps(0.3, 4)),
    "frame-rate": (IrregularRate((0.5, 0.5)), IrregularRate((1 / 3,) * 3), IrregularRate((0.2,) * 5)),
    "action-delay": (ActionDelay(1), ActionDelay(2), ActionDelay(3), ActionDelay(4)),
    "action-noise": (ActionFault(0.1, 0.1), ActionFault(0.2, 0.2), ActionFault(0.3, 0.3)),
    "weak-tyres": (TyreGrip(0.9), TyreGrip(0.75), TyreGrip(0.6)),
}
"""Name -> settings of level 1, 2, 3 (and 4)."""

CORRUPTIONS = tuple(name for name, levels in PERTURBATIONS.items() if isinstance(levels[0], Corruption))
"""Names of those that change pictures only, and may be used for training too."""


@dataclass(frozen=True)
class Perturbation:
    """One part of a specification."""

    name: str
    level: int
    setting: Setting


def parse(spec: str) -> list[Perturbation]:
    """`NAME:LEVEL`, or for lost frames `NAME:LEVEL:MISSING`, joined by `+`: "colour:1+gap:3:hold". Order counts.

    Level 0 and an empty `spec` mean: absent. MISSING is hold, zero or skip (see `FrameLoss`). Raises ValueError for
    what is not there, and for a name that comes twice.
    """
    parts = [_part(part.strip(), spec) for part in spec.split("+")] if spec.strip() else []
    present = [part for part in parts if part]
    names = [part.name for part in present]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"perturbation {spec!r} names {twice[0]!r} twice; use one of its higher levels.")
    return present


def perturb(env: gym.Env, spec: str, seed: int = 0, *, episode_frames: int = 1000) -> gym.Env:
    """`env` under the perturbations of `spec` (see `parse`), the first named nearest to the simulator.

    So "colour:1+gaussian-noise:2" is noise on changed colours, and `frame-rate` belongs last: what stands before it
    goes on at 50 frames/s, what stands after it counts the frames that arrive.
    seed: of all of them; with the track's seed it settles an episode's disturbance (see `Stream`).
    episode_frames: the length of an episode, which the shares of gaps refer to.
    """
    for part in parse(spec):
        setting, stream = part.setting, Stream(part.name, seed)
        match setting:
            case Corruption():
                env = CorruptedFrames(env, setting, stream)
            case FrameLoss():
                if isinstance(setting, Gaps):
                    setting = replace(setting, frames=episode_frames)
                env = (SkippedFrames if setting.missing == "skip" else StaleFrames)(env, setting, stream)
            case ActionDelay():
                env = DelayedActions(env, setting)
            case ActionFault():
                env = FaultyActions(env, setting, stream)
            case TyreGrip():
                env = WeakTyres(env, setting)
    return env


def parse_corruptions(spec: str) -> list[Corruption]:
    """The settings of a `spec` that changes pictures only. Raises ValueError for any other."""
    corruptions = []
    for part in parse(spec):
        if not isinstance(part.setting, Corruption):
            raise ValueError(
                f"perturbation {part.name!r} changes the drive, not the picture; frames at rest take {CORRUPTIONS}."
            )
        corruptions.append(part.setting)
    return corruptions


def draw_effect(corruptions: list[Corruption], rng: np.random.Generator, size: tuple[int, int]) -> Effect:
    """One draw of all `corruptions`, in order, as a function of frames (..., H, W, 3); `size` is (H, W)."""
    effects = [corruption.draw(rng, size) for corruption in corruptions]

    def effect(frames: Frames) -> Frames:
        for each in effects:
            frames = each(frames)
        return frames

    return effect


@dataclass(frozen=True)
class Augmentation:
    """Pictures for training: under one of `specs` (see `parse_corruptions`) or clean, all equally likely.

    For recorded sequences and for environments in which a driver learns (domain randomisation) alike.
    """

    specs: Sequence[str] = ()

    def __post_init__(self) -> None:
        for spec in self.specs:
            parse_corruptions(spec)

    def draw(self, rng: np.random.Generator, size: tuple[int, int]) -> Effect:
        """What frames (..., H, W, 3) of one sequence go through; `size` is (H, W)."""
        choice = int(rng.integers(-1, len(self.specs)))
        return draw_effect(parse_corruptions(self.specs[choice]) if choice >= 0 else [], rng, size)


def _part(part: str, spec: str) -> Perturbation | None:
    match = re.fullmatch(r"([a-z-]+):(\d+)(?::([a-z]+))?", part)
    if not match:
        raise ValueError(
            f"perturbation {spec!r}: each part must be NAME:LEVEL or NAME:LEVEL:MISSING, got {part!r}; "
            "such as shadows:2+frame-drop:1:skip."
        )
    name, level, missing = match[1], int(match[2]), match[3]
    if name not in PERTURBATIONS:
        raise ValueError(f"perturbation {name!r} is unknown; choose from {sorted(PERTURBATIONS)}.")
    levels = PERTURBATIONS[name]
    if level > len(levels):
        raise ValueError(f"perturbation {name!r} has the levels 1 to {len(levels)} (0 is none), got {level}.")
    setting = levels[max(level, 1) - 1]
    if missing is not None:
        if not isinstance(setting, FrameLoss):
            raise ValueError(f"perturbation {name!r} loses no frames, got {part!r}; write {name}:{level}.")
        if missing not in get_args(Missing):
            raise ValueError(f"perturbation {part!r}: MISSING must be one of {get_args(Missing)}, got {missing!r}.")
        setting = replace(setting, missing=missing)
    return Perturbation(name, level, setting) if level else None
