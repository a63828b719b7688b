"""Several perturbations in turn: on each track an episode equals an episode of one of them alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nac_drive.envs import ActionRepeat, EnvConfig, make_env, perturb
from tests.envs.episodes import blind
from tests.envs.perturbations.doubles import drive, observations
from tests.problems import ToyEnv

SPECS = ["weak-tyres:3", "frame-rate:3", "gap:0", "blackouts:2+action-delay:2", "frame-drop:3:skip+colour:2"]
CLEAN = EnvConfig(max_steps=50)


class Swerves:
    """Full gas, then from side to side: what the tyres hold makes a difference."""

    def begin(self, env: Any) -> int:
        return 0

    def act(self, observation: np.ndarray, state: int, dt: float) -> tuple[np.int64, int]:
        return np.int64(3 if state < 30 else 1 + state // 4 % 2), state + 1


def episode(env: Any, track: int) -> tuple[np.ndarray, list[tuple]]:
    """Observations, and per step dt, reward, the executed action, the end, and `info` before and after."""
    steps = drive(env, track, Swerves())
    facts = [
        (step.dt, step.reward, step.action, step.terminated, step.truncated, step.info, step.outcome) for step in steps
    ]
    return observations(steps), facts


def test_an_episode_is_that_of_one_perturbation_alone():
    """Whatever came before it."""
    env = perturb(make_env(CLEAN), ",".join(SPECS), 3, episode_frames=50)
    alone = {}
    for track in (0, 2, 1, 0, 0, 3, 4, 2, 3, 1, 7):
        if track not in alone:
            fresh = perturb(make_env(CLEAN), SPECS[track % 5], 3, episode_frames=50)
            alone[track] = episode(fresh, track)
        seen, facts = episode(env, track)
        np.testing.assert_array_equal(seen, alone[track][0], err_msg=str(track))
        assert facts == alone[track][1], track
    for track in (0, 1, 3, 4):  # each of them shows
        assert alone[track][1] != episode(make_env(CLEAN), track)[1], track
    assert alone[7][1] == episode(make_env(CLEAN), 7)[1], "gap:0 is none"


def test_an_environment_that_is_made_with_them_has_them_in_turn():
    env = make_env(EnvConfig(max_steps=50, perturb=" gap:3, frame-drop:3:hold "))
    for track, spec in ((5, "frame-drop:3:hold"), (4, "gap:3"), (8, "gap:3"), (7, "frame-drop:3:hold")):
        seen, facts = episode(env, track)
        alone = episode(make_env(EnvConfig(max_steps=50, perturb=spec)), track)
        np.testing.assert_array_equal(seen, alone[0])
        assert facts == alone[1]


def test_weak_tyres_end_with_their_episode():
    env = perturb(blind(make_env(CLEAN)), "weak-tyres:3,gap:1")
    simulator: Any = env.unwrapped
    for track, grip in ((0, 0.6), (1, 1.0), (2, 0.6), (2, 0.6), (None, 1.0), (3, 1.0), (None, 0.6)):
        env.reset(seed=track)
        assert simulator.grip == grip


def test_a_reset_without_a_seed_goes_on_with_the_next_one_and_its_random_numbers():
    specs = ["gap:0", "gaussian-noise:1", "shadows:3"]
    env, alone = perturb(ToyEnv(), ",".join(specs), 1), [perturb(ToyEnv(), spec, 1) for spec in specs]
    for each in alone:
        each.reset(seed=4)  # settles the numbers of all
    seen = []
    for number in range(4, 12):
        single = alone[number % 3]
        frames = [env.reset(seed=4 if number == 4 else None)[0], env.step(1)[0]]
        np.testing.assert_array_equal(frames, [single.reset(seed=4 if number < 7 else None)[0], single.step(1)[0]])
        seen += [frames[0].tobytes()] if specs[number % 3] == "gaussian-noise:1" else []
    assert len(set(seen)) == len(seen) == 3, "other numbers in every episode"
    fresh = perturb(ToyEnv(), ",".join(specs), 1)
    assert not fresh.reset()[0].any(), "the first one, without any seed"


def test_a_driver_reads_lost_frames_only_where_frames_are_lost():
    env = make_env(EnvConfig(max_steps=40, perturb="weak-tyres:1,blackouts:3"))
    for track in (0, 1, 2):
        env.reset(seed=track)
        assert env.has_wrapper_attr("frame_lost") == (track == 1)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gap:1,fog:1", "perturbation 'fog' is unknown"),
        ("fog:1,gap:1", "perturbation 'fog' is unknown"),
        ("gap:1,frame-rate:4", "'frame-rate' has the levels 1 to 3"),
        ("gap:1;gap:2", "must be NAME:LEVEL or NAME:LEVEL:MISSING, got 'gap:1;gap:2'"),
        ("gap:0,gap:1+gap:2", "names 'gap' twice"),
    ],
)
def test_a_list_with_a_bad_part_is_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        EnvConfig(perturb=spec)
    with pytest.raises(ValueError, match=message):
        perturb(ToyEnv(), spec)


def test_frames_skipped_outside_are_drawn_where_a_perturbation_inside_may_return_them():
    """On track 1 the last frame that arrived is held, which one of those that are skipped may be."""
    both, alone = (
        ActionRepeat(make_env(replace(CLEAN, perturb=spec)), 4)
        for spec in ("gap:0,frame-drop:3:hold", "frame-drop:3:hold")
    )
    one, other = observations(drive(both, 1)), observations(drive(alone, 1))
    np.testing.assert_array_equal(one, other)
    assert len(np.unique(one.reshape(len(one), -1), axis=0)) > 3
