"""Perturbations by name: random numbers, order, a new one, the table of the docs, and refused specifications."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from nac_drive.envs import (
    CORRUPTIONS,
    PERTURBATIONS,
    EnvConfig,
    Perturbation,
    Step,
    make_env,
    perturb,
    perturbation_table,
)
from nac_drive.envs.perturbations.stream import Stream
from tests.envs.episodes import blind
from tests.envs.perturbations.doubles import ALL, HIGHEST, drive, observations
from tests.problems import ToyEnv
from tests.slow import slow_but

CLEAN = EnvConfig()

# Random numbers and composition


SPECS = [*HIGHEST, "gap:2:hold", "frame-drop:2:skip", ALL]


@pytest.mark.parametrize("spec", slow_but([*SPECS[::3], ALL], SPECS))
def test_the_same_seeds_bring_back_the_same_perturbation(spec):
    def run(seed: int, track: int, env: gym.Env | None = None) -> list[Step]:
        return drive(env or fresh(seed), track)

    def fresh(seed: int) -> gym.Env:
        return perturb(make_env(EnvConfig(max_steps=20)), spec, seed, episode_frames=20)

    def same(one: list[Step], other: list[Step]) -> bool:
        return (
            len(one) == len(other)
            and np.array_equal(observations(one), observations(other))
            and [step.reward for step in one] == [step.reward for step in other]
        )

    env = fresh(1)
    first = run(1, 5, env)
    drive(env, 6)
    assert same(run(1, 5, env), first), "a used environment"
    assert same(run(1, 5), first), "a fresh one"
    settled = spec.split(":")[0] in (
        "gap", "scattered-gaps", "action-repeat", "action-delay", "weak-tyres", "published-bars",  # no draw
        "published-blob",
        "mishaps",  # none so early, see test_mishaps.py
    )  # fmt: skip
    assert all(same(run(seed, 5), first) for seed in range(2, 7)) == settled


def test_without_a_seed_the_stream_continues():
    env = perturb(ToyEnv(), "occlusion-blobs:3+gaussian-noise:1", 1)
    first, second = env.reset(seed=4)[0], env.reset()[0]
    assert not np.array_equal(first, second)
    assert np.array_equal(env.reset(seed=4)[0], first)
    assert np.array_equal(env.reset()[0], second)


def test_names_and_seeds_have_streams_of_their_own():
    draws = {Stream(name, seed).restart(track).random() for name in ("a", "b") for seed in (0, 1) for track in (1, 2)}
    assert len(draws) == 8


@pytest.mark.parametrize("spec", [*HIGHEST, ALL])
def test_the_random_numbers_of_the_simulator_stay_as_they_are(spec):
    plain, perturbed = blind(make_env()), perturb(blind(make_env()), spec, 9)
    for env in (plain, perturbed):
        env.reset(seed=8)
        env.step(np.int64(3))
    one, other = plain.unwrapped, perturbed.unwrapped
    assert one.np_random.bit_generator.state == other.np_random.bit_generator.state
    assert one.track == other.track  # type: ignore[attr-defined]
    info, added = perturbed.reset()[1], ("frame_lost", "mishaps")
    assert plain.reset()[1] == {key: value for key, value in info.items() if key not in added}
    assert one.track == other.track, "the next one too"  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_pixels_change_neither_physics_nor_rewards_nor_the_state(name):
    """The expert sees the state."""
    plain, perturbed = make_env(CLEAN), perturb(make_env(CLEAN), f"{name}:3", 2)
    assert np.array_equal(plain.reset(seed=1)[0], perturbed.unwrapped.state if perturbed.reset(seed=1) else None)  # type: ignore[attr-defined]
    for action in np.random.default_rng(0).integers(5, size=40):
        one, other = plain.step(action), perturbed.step(action)
        assert one[1:] == other[1:]
        assert not np.array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[0], perturbed.unwrapped.state)  # type: ignore[attr-defined]
    assert perturbed.unwrapped.car.hull.position == plain.unwrapped.car.hull.position  # type: ignore[attr-defined]


def test_the_first_perturbation_is_nearest_to_the_simulator():
    black_bars, noisy_bars = (
        perturb(make_env(), spec, 3).reset(seed=1)[0]
        for spec in ("gaussian-noise:1+occlusion-bars:3", "occlusion-bars:3+gaussian-noise:1")
    )
    bars, clean = perturb(make_env(), "occlusion-bars:3", 3).reset(seed=1)[0], make_env().reset(seed=1)[0]
    hidden = (bars != clean).any(axis=-1)
    assert hidden.sum() > 100
    assert not black_bars[hidden].any()
    assert noisy_bars[hidden].any()
    env = perturb(make_env(), "frame-drop:1+action-delay:2+shadows:1")
    layers = [type(env).__name__, type(env.env).__name__, type(env.env.env).__name__]  # type: ignore[attr-defined]
    assert layers == ["CorruptedFrames", "DelayedActions", "StaleFrames"]


@pytest.mark.parametrize("spec", ["", " ", "shadows:0", "gap:0:hold + colour:0"])
def test_an_empty_specification_changes_nothing(spec):
    env = ToyEnv()
    assert perturb(env, spec) is env


@pytest.mark.filterwarnings("ignore:.*different from the unwrapped version")
@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_gymnasium_accepts_all_of_them_at_once(control):
    env = perturb(make_env(EnvConfig(control, max_steps=120), render_mode="rgb_array"), ALL)
    check_env(env, skip_render_check=True)


# A new perturbation


@dataclass(frozen=True)
class Inverted(Perturbation):
    """Every value is subtracted from `white`."""

    white: int

    def wrap(self, env, stream, episode_frames, bar_top):
        return gym.wrappers.TransformObservation(env, lambda frame: self.white - frame, None)


def test_a_new_perturbation_is_a_class_and_one_line(monkeypatch):
    before = perturbation_table()
    with monkeypatch.context() as patch:
        patch.setitem(PERTURBATIONS, "inverted", (Inverted(255), Inverted(200)))
        env = perturb(ToyEnv(), "inverted:2+action-delay:1")
        assert env.reset(seed=0)[0].max() == 200
        assert env.step(3)[0].max() == 199
        assert env.unwrapped.actions == [0]  # type: ignore[attr-defined]
        new = "| `inverted` | white 255 / 200 | Every value is subtracted from `white`. |"
        assert perturbation_table() == f"{before}\n{new}"
    with pytest.raises(ValueError, match="perturbation 'inverted' is unknown"):
        perturb(ToyEnv(), "inverted:2")


# The page


def test_the_page_contains_the_table():
    """The new table: python -c "import nac_drive.envs as e; print(e.perturbation_table())"."""
    page = (Path(__file__).parents[3] / "docs" / "perturbations.md").read_text()
    assert f"\n\n{perturbation_table()}\n\n" in page


def test_the_table_names_every_perturbation_with_the_numbers_of_its_levels():
    rows = {row.split("`")[1]: row.split("|")[2] for row in perturbation_table().splitlines() if row.startswith("| `")}
    assert list(rows) == list(PERTURBATIONS)
    for name, levels in PERTURBATIONS.items():
        numbers = {float(number) for number in re.findall(r"[\d.]+", rows[name])}
        for perturbation in levels:
            values = asdict(perturbation)
            values.pop("missing", None)
            flat = np.concatenate([np.ravel(value) for value in values.values()])
            assert all(min(abs(number - value) for number in numbers) < 1e-3 for value in flat), (name, perturbation)


# Refusals


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fog:1", r"perturbation 'fog' is unknown; choose from action-delay, .*weak-tyres\.$"),
        ("shadow:1", r"perturbation 'shadow' is unknown; choose from .*\. Did you mean 'shadows'\?$"),
        ("shadows:4", r"perturbation 'shadows' has the levels 1 to 3 \(0 is none\), got 4"),
        ("action-delay:5", "has the levels 1 to 4"),
        ("shadows", "each part must be NAME:LEVEL or NAME:LEVEL:MISSING, got 'shadows'; such as"),
        ("shadows:-1", "got 'shadows:-1'"),
        ("shadows:1 colour:1", "must be NAME:LEVEL"),
        ("shadows:1,colour:4", "perturbation 'colour' has the levels 1 to 3"),
        ("shadows:1+", "got ''"),
        ("shadows:1:hold", "'shadows' loses no frames, got 'shadows:1:hold'; write shadows:1"),
        ("gap:1:lost", r"MISSING must be one of \('hold', 'zero', 'skip'\), got 'lost'"),
        ("gap:1+gap:2", "names 'gap' twice"),
    ],
)
def test_a_specification_is_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        perturb(ToyEnv(), spec)
