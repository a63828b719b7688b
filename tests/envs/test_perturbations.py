"""Perturbations by name: chance that is nobody else's, order, and words that are refused."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from nac_drive.envs import CORRUPTIONS, PERTURBATIONS, EnvConfig, Step, make_env, perturb
from nac_drive.envs.perturbations.dynamics import Stream
from tests.envs.perturbed import ALL, HIGHEST, blind, drive, pictures
from tests.problems import ToyEnv

# Chance and composition


@pytest.mark.parametrize("spec", [*HIGHEST, "gap:2:hold", "frame-drop:2:skip", ALL])
def test_the_same_seeds_bring_back_the_same_disturbance(spec):
    def run(seed: int, track: int, env: gym.Env | None = None) -> list[Step]:
        return drive(env or fresh(seed), track)

    def fresh(seed: int) -> gym.Env:
        return perturb(make_env(EnvConfig(max_steps=40)), spec, seed, episode_frames=40)

    def same(one: list[Step], other: list[Step]) -> bool:
        return (
            len(one) == len(other)
            and np.array_equal(pictures(one), pictures(other))
            and [step.reward for step in one] == [step.reward for step in other]
        )

    env = fresh(1)
    first = run(1, 5, env)
    drive(env, 6)
    assert same(run(1, 5, env), first), "a used environment"
    assert same(run(1, 5), first), "a fresh one"
    settled = spec.split(":")[0] in ("gap", "scattered-gaps", "action-delay", "weak-tyres")  # nothing is drawn
    assert all(same(run(seed, 5), first) for seed in range(2, 7)) == settled


def test_without_a_seed_the_chance_goes_on():
    env = perturb(ToyEnv(), "occlusion-blobs:3+gaussian-noise:1", 1)
    first, second = env.reset(seed=4)[0], env.reset()[0]
    assert not np.array_equal(first, second)
    assert np.array_equal(env.reset(seed=4)[0], first)
    assert np.array_equal(env.reset()[0], second)


def test_names_and_seeds_have_streams_of_their_own():
    draws = {Stream(name, seed).restart(track).random() for name in ("a", "b") for seed in (0, 1) for track in (1, 2)}
    assert len(draws) == 8


@pytest.mark.parametrize("spec", [*HIGHEST, ALL])
def test_the_simulators_own_chance_is_left_alone(spec):
    plain, perturbed = blind(make_env()), perturb(blind(make_env()), spec, 9)
    for env in (plain, perturbed):
        env.reset(seed=8)
        env.step(np.int64(3))
    one, other = plain.unwrapped, perturbed.unwrapped
    assert one.np_random.bit_generator.state == other.np_random.bit_generator.state
    assert one.track == other.track  # type: ignore[attr-defined]
    assert plain.reset()[1] == {key: value for key, value in perturbed.reset()[1].items() if key != "frame_lost"}
    assert one.track == other.track, "the next one too"  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_pixels_change_neither_physics_nor_rewards_nor_the_state(name):
    """Nor what an expert sees."""
    plain, perturbed = make_env(), perturb(make_env(), f"{name}:3", 2)
    assert np.array_equal(plain.reset(seed=1)[0], perturbed.unwrapped.state if perturbed.reset(seed=1) else None)  # type: ignore[attr-defined]
    for action in np.random.default_rng(0).integers(5, size=60):
        one, other = plain.step(action), perturbed.step(action)
        assert one[1:] == other[1:]
        assert not np.array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[0], perturbed.unwrapped.state)  # type: ignore[attr-defined]
    assert perturbed.unwrapped.car.hull.position == plain.unwrapped.car.hull.position  # type: ignore[attr-defined]


def test_the_first_word_is_nearest_to_the_simulator():
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
def test_nothing_asked_nothing_changed(spec):
    env = ToyEnv()
    assert perturb(env, spec) is env


@pytest.mark.filterwarnings("ignore:.*different from the unwrapped version")
@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_gymnasium_accepts_all_of_them_at_once(control):
    env = perturb(make_env(EnvConfig(control, max_steps=120), render_mode="rgb_array"), ALL)
    check_env(env, skip_render_check=True)


def test_the_page_names_every_one_with_the_numbers_of_its_levels():
    page = (Path(__file__).parents[2] / "docs" / "perturbations.md").read_text()
    rows = {row.split("`")[1]: row.split("|")[2:4] for row in page.splitlines() if row.startswith("| `")}
    assert list(rows) == list(PERTURBATIONS)
    for name, levels in PERTURBATIONS.items():
        told = set(re.findall(r"[\d.]+", " ".join(rows[name])))
        for setting in levels:
            values = asdict(setting)
            numbers = [values[key] for key in values.keys() - {"missing", "frames" if "gap" in name else "", "pieces"}]
            numbers = [len(value) if isinstance(value, tuple) else value for value in numbers]
            assert all({f"{number:g}", f"{100 * number:g}"} & told for number in numbers), (name, setting)


# Refusals


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("fog:1", r"perturbation 'fog' is unknown; choose from \['action-delay', "),
        ("shadows:4", r"perturbation 'shadows' has the levels 1 to 3 \(0 is none\), got 4"),
        ("action-delay:5", "has the levels 1 to 4"),
        ("shadows", "each part must be NAME:LEVEL or NAME:LEVEL:MISSING, got 'shadows'; such as"),
        ("shadows:-1", "got 'shadows:-1'"),
        ("shadows:1,colour:1", "must be NAME:LEVEL"),
        ("shadows:1+", "got ''"),
        ("shadows:1:hold", "'shadows' loses no frames, got 'shadows:1:hold'; write shadows:1"),
        ("gap:1:lost", r"MISSING must be one of \('hold', 'zero', 'skip'\), got 'lost'"),
        ("gap:1+gap:2", "names 'gap' twice"),
    ],
)
def test_a_specification_is_refused(spec, told):
    with pytest.raises(ValueError, match=told):
        perturb(ToyEnv(), spec)
