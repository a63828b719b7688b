"""The sliders of the arena, with a sentence and units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from inspect import getdoc
from typing import Any

from nac_drive.envs import FRAMES_PER_SECOND, PERTURBATIONS, Perturbation
from nac_drive.envs.perturbations.frames import FrameLoss
from nac_drive.envs.perturbations.images import Corruption
from nac_drive.envs.perturbations.published import PublishedTask

IMAGES, FRAMES, CAR = "The image", "When frames arrive", "The car and its actions"


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


WORDS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "published-colour": (
        "Road and grass are lighter or darker, as for AttentionAgent.", lambda it: f"by up to {_percent(it.shift)}"
    ),
    "published-bars": (
        "A black bar stands at either side, as for AttentionAgent.", lambda it: f"{_percent(2 * it.width)} hidden"
    ),
    "published-blob": (
        "A red square goes with the car, as for AttentionAgent.", lambda it: f"{it.side:g} units wide"
    ),
    "published-noise": ("The grass is noise, as for AttentionAgent.", lambda it: f"values up to {it.largest}"),
    "gaussian-noise": ("Noise on every pixel of every frame.", lambda it: f"variance {it.variance:g}"),
    "salt-and-pepper": ("Pixels turn black or white.", lambda it: f"{_percent(it.fraction)} of the pixels"),
    "brightness": ("A wrong exposure for the whole episode.", lambda it: f"factor {it.factor:g}"),
    "shadows": ("Dark lines lie across the world.", lambda it: f"{it.lines} lines, {_percent(it.opacity)} dark"),
    "line": ("One black or white line lies across the world.", lambda it: f"{_percent(it.opacity)} opaque"),
    "occlusion-bars": ("Black bars hide parts of the world.", lambda it: f"{_percent(it.bars * it.width)} hidden"),
    "occlusion-blobs": ("Dirt on the lens hides parts of the world.", lambda it: f"{_percent(it.fraction)} hidden"),
    "colour": ("Road and grass take other colours.", lambda it: f"{it.distance:g} of 255"),
    "random-convolution": (
        "Colours and sharpness change at random.", lambda it: f"{_percent(it.share)} of the image"
    ),
    "tone-curves": ("Every channel has a random tone curve.", lambda it: f"{_percent(it.share)} of the image"),
    "random-overlay": ("Coloured patches lie over the world.", lambda it: f"{_percent(it.opacity)} opaque"),
    "cut-out": ("Coloured triangles hide parts of the world.", lambda it: f"{_percent(it.fraction)} hidden"),
    "random-erasing": (
        "Rectangles hide parts of the image.",
        lambda it: f"{it.rectangles} of up to {_percent(it.fraction)} each",
    ),
    "frame-drop": (
        "Single frames are lost; the driver sees the last one again.",
        lambda it: f"{_percent(it.probability)} of the frames",
    ),
    "blackouts": (
        "The image turns black for moments of irregular length.", lambda it: f"{_percent(it.fraction)} of the time"
    ),
    "gap": ("The image is black in the middle of the episode.", lambda it: f"{_percent(it.fraction)} of the episode"),
    "scattered-gaps": (
        "The image is black several times in the episode.",
        lambda it: f"{_percent(it.fraction)} of the episode, in {it.pieces} gaps",
    ),
    "frame-rate": (
        "Frames come at irregular times, and the driver acts at those alone.",
        lambda it: f"every 1 to {len(it.weights)} frames",
    ),
    "action-repeat": (
        "The driver acts less often, and its action is held.",
        lambda it: f"{FRAMES_PER_SECOND / it.frames:.3g} times a second",
    ),
    "action-delay": (
        "Actions are carried out late.", lambda it: f"{1000 * it.frames / FRAMES_PER_SECOND:.0f} ms"
    ),
    "action-noise": ("Wheel and pedals are unreliable.", lambda it: f"deviation {it.deviation:g}"),
    "weak-tyres": ("The road is slippery.", lambda it: f"{_percent(it.grip)} of the grip"),
    "mishaps": (
        "The car is turned round, thrown onto the grass or set spinning.", lambda it: f"{it.times} in an episode"
    ),
}  # fmt: skip
"""Name of a perturbation -> one sentence, and the text of a level with its unit."""


@dataclass(frozen=True)
class Slider:
    """A perturbation that a page offers."""

    name: str
    meaning: str
    """One sentence."""
    levels: tuple[str, ...]
    """The settings of level 1, 2, 3, ... with units."""


def slider_groups() -> dict[str, list[Slider]]:
    """Return the sliders of all perturbations by group.

    A perturbation that somebody adds shows the first sentence of its docstring and its fields.
    """
    groups: dict[str, list[Slider]] = {IMAGES: [], FRAMES: [], CAR: []}
    for name, levels in PERTURBATIONS.items():
        meaning, text = WORDS.get(name, (_first_sentence(levels[0]), _settings))
        image = isinstance(levels[0], Corruption | PublishedTask)
        group = IMAGES if image else FRAMES if isinstance(levels[0], FrameLoss) else CAR
        groups[group].append(Slider(name, meaning, tuple(map(text, levels))))
    return groups


def _first_sentence(perturbation: Perturbation) -> str:
    text = " ".join((getdoc(type(perturbation)) or "").split())
    return text.partition(". ")[0].rstrip(".") + "."


def _settings(perturbation: Perturbation) -> str:
    return ", ".join(f"{field.name} {getattr(perturbation, field.name)}" for field in fields(perturbation))
