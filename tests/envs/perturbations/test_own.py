"""Perturbations that users bring."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import nac_drive as nd
from nac_drive.envs.perturbations.base import Perturbation
from nac_drive.envs.perturbations.images import Brightness, Corruption, FrameSize
from nac_drive.envs.perturbations.registry import draw_effect
from nac_drive.plugins import load_plugin
from tests.documented import ROOT, lines
from tests.own_parts import forgotten


def test_the_example_of_the_page_drives() -> None:
    """Its `wrap` took three arguments, and gets four."""
    (code,) = [line.text for line in lines((ROOT / "docs/perturbations.md").read_text()) if "Inverted" in line.text]
    clean, _ = nd.make_env().reset(seed=3)
    with forgotten():
        exec(code, {"__name__": __name__})  # the page's own code
        for level, white in ((1, 255), (2, 200)):
            frame, _ = nd.make_env(nd.EnvConfig(perturb=f"inverted:{level}")).reset(seed=3)
            np.testing.assert_array_equal(frame, white - clean)


@dataclass(frozen=True)
class Changed(Perturbation):
    """Frames are changed by `function`."""

    function: Any

    def wrap(self, env: gym.Env, stream: Any, episode_frames: int, bar_top: int | None) -> gym.Env:
        return gym.wrappers.TransformObservation(env, self.function, None)


@dataclass(frozen=True)
class Unwrapped(Changed):
    """It returns no environment."""

    def wrap(self, env: gym.Env, stream: Any, episode_frames: int, bar_top: int | None) -> Any:
        return self.function


@dataclass(frozen=True)
class Grey(Corruption):
    """An image between 0 and 1."""

    def draw(self, rng: np.random.Generator, size: FrameSize) -> Any:
        return lambda frames: frames / 255


def broken(frame: np.ndarray) -> np.ndarray:
    return np.concatenate([frame, 3])  # type: ignore[list-item]


BAD: dict[str, tuple[Perturbation, str]] = {
    "floats": (
        Changed(lambda frame: frame / 255),
        r"must return frames uint8 \(96, 96, 3\), got float64 \(96, 96, 3\)",
    ),
    "a part": (Changed(lambda frame: frame[:48]), r"must return frames uint8 \(96, 96, 3\), got uint8 \(48, 96, 3\)"),
    "nothing": (Changed(lambda frame: None), "got NoneType"),
    "a function that fails": (
        Changed(lambda frame: frame.shade),
        r"failed: test_own.py:\d+: AttributeError: .*'shade'",
    ),
    "shapes that differ": (Changed(lambda frame: frame + frame[:48]), r"failed: test_own.py:\d+: ValueError: operands"),
    "no environment": (Unwrapped(3), "wrap must return an environment, got int"),
    "floats of a corruption": (Grey(), r"must return frames uint8 \(96, 96, 3\), got float64"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_it_does_wrong_is_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    perturbation, message = BAD[name]
    monkeypatch.setitem(nd.PERTURBATIONS, "mine", (perturbation,))
    with pytest.raises(ValueError, match=f"perturbation 'mine'.* ?{message}"):
        nd.make_env(nd.EnvConfig(perturb="mine:1")).reset(seed=3)


def test_a_corruption_is_checked_in_training_too() -> None:
    frames = np.zeros((2, 96, 96, 3), np.uint8)
    effect = draw_effect([Grey()], np.random.default_rng(0), FrameSize(96, 96, 84))
    with pytest.raises(ValueError, match=r"perturbation 'Grey' must return frames uint8 \(2, 96, 96, 3\), got float64"):
        effect(frames)


def test_an_error_of_the_environment_stays_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(nd.PERTURBATIONS, "mine", (Changed(lambda frame: frame),))
    env = nd.make_env(nd.EnvConfig("continuous", perturb="mine:1"))
    env.reset(seed=3)
    with pytest.raises(ValueError, match=r"^(?!.*mine)"):
        env.step(np.array([7.0, 0.0, 0.0]))


@pytest.mark.parametrize(
    ("name", "levels", "message"),
    [
        ("mine", Brightness(2), "such as (Brightness(1.5), Brightness(2.5)), got Brightness(factor=2)"),
        ("mine", [Brightness(2)], "got [Brightness(factor=2)]"),
        ("mine", (), "got ()"),
        ("mine", (Brightness,), "got (<class"),
        ("mine", broken, "got <function broken"),
        ("mine_2", (Brightness(2),), "perturbation 'mine_2': a name must be of small letters and hyphens"),
    ],
)
def test_other_things_are_refused_where_they_are_added(name: str, levels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        nd.PERTURBATIONS[name] = levels
    assert name not in nd.PERTURBATIONS


def test_the_line_of_the_user_is_named_in_a_plug_in(tmp_path: Path) -> None:
    """A line of the package raises the error."""
    (tmp_path / "mist.py").write_text("import nac_drive as nd\nnd.PERTURBATIONS['mist'] = 3\n")
    with forgotten(), pytest.raises(ValueError, match=r"mist\.py cannot be imported: mist\.py:2: ValueError: perturb"):
        load_plugin(str(tmp_path / "mist.py"))
