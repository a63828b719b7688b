"""Words for the perturbations of a stress test, level by level."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from nac_drive.envs import PERTURBATIONS
from nac_drive.envs.perturbations.registry import parse

DEFAULT_PERTURBATIONS = (
    "gaussian-noise", "frame-drop:zero", "frame-drop:skip", "gap", "frame-rate", "action-delay", "weak-tyres",
)  # fmt: skip
"""Families of a stress test that names none."""


@dataclass(frozen=True)
class Family:
    """One perturbation of a stress test, such as `frame-drop:skip`, with the specifications of its levels."""

    name: str
    specs: tuple[str, ...]
    """From the lowest to the highest level; a single one for a composition."""


def families(words: Sequence[str]) -> list[Family]:
    """Return the families that words stand for.

    Args:
        words: NAME (all levels), NAME:MISSING (all levels of a loss of frames), or any specification that `perturb`
            takes, such as gap:2 or frame-drop:3:zero+frame-rate:3.

    Raises:
        ValueError: For an unknown word, one that comes twice, or none.
    """
    found = []
    for word in words:
        match = re.fullmatch(r"([a-z-]+)(?::([a-z]+))?", word)
        if match and match[1] in PERTURBATIONS:
            name, missing = match.groups()
            levels = range(1, len(PERTURBATIONS[name]) + 1)
            specs = tuple(f"{name}:{level}" + (f":{missing}" if missing else "") for level in levels)
        else:
            specs = (word,)
        for spec in specs:
            if not parse(spec):
                raise ValueError(f"perturb: {word!r} names no perturbation; write NAME, NAME:LEVEL or NAME:MISSING.")
        found.append(Family(word, specs))
    specs = [spec for family in found for spec in family.specs]
    if not specs:
        raise ValueError(f"perturb: at least one perturbation is needed; choose from {', '.join(PERTURBATIONS)}.")
    if twice := sorted({spec for spec in specs if specs.count(spec) > 1}):
        raise ValueError(f"perturb: {twice[0]} comes twice; leave one out.")
    return found
