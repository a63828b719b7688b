"""The car is turned round, thrown beside the road or set spinning."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from nac_drive.data_collection.controller.controller import Controller
from nac_drive.envs import EnvConfig, make_env, perturb, rollout
from nac_drive.envs.perturbations.mishaps import BESIDE, FIRST_FRAME, LAST_FRAME, LEAST_FRAMES, SPIN, TURNED, Mishaps
from nac_drive.envs.perturbations.mishaps import draw_mishaps as draw
from nac_drive.envs.telemetry import TRACK_HALF_WIDTH
from nac_drive.evaluation.results import EpisodeMeter
from tests.envs.episodes import blind
from tests.envs.perturbations.doubles import Clock

CONTINUOUS = EnvConfig("continuous")


def numbers(env: Any) -> list[Any]:
    return env.unwrapped.save_state().car


def test_mishaps_lie_apart_and_every_level_begins_with_those_of_the_level_below():
    for seed in range(50):
        drawn = draw(np.random.default_rng(seed))
        frames = sorted(mishap.frame for mishap in drawn)
        assert len(drawn) == 4
        assert frames[0] >= FIRST_FRAME
        assert frames[-1] < LAST_FRAME
        assert min(np.diff(frames)) > LEAST_FRAMES
    kinds = [draw(np.random.default_rng(seed))[0].kind for seed in range(300)]
    assert all(80 < kinds.count(kind) < 120 for kind in ("turned", "beside", "spin"))


@pytest.mark.parametrize("kind", ["turned", "beside", "spin"])
def test_until_the_mishap_nothing_changes_and_then_the_car_is_where_it_should_be(kind):
    seed = next(seed for seed in range(100) if first(seed).kind == kind)
    mishap = first(seed)
    plain, env = blind(make_env(CONTINUOUS)), perturb(blind(make_env(CONTINUOUS)), "mishaps:1")
    for each in (plain, env):
        each.reset(seed=seed)
    controller = Controller("continuous")
    state = controller.begin(env)
    for frame in range(1, mishap.frame + 1):
        action, state = controller.act(np.zeros(0), state, 0.02)
        *_, info = env.step(action)
        assert info["mishaps"] == (frame == mishap.frame)
        if frame < mishap.frame:
            plain.step(action)
            assert numbers(env) == numbers(plain)
    before: Any = plain.unwrapped
    after: Any = env.unwrapped
    if kind == "spin":
        assert SPIN[0] * 0.8 < abs(after.car.hull.angularVelocity) < SPIN[1]
        assert math.copysign(1, after.car.hull.angularVelocity) == mishap.side
        assert math.dist(before.car.hull.position, after.car.hull.position) < 3
    elif kind == "turned":
        assert math.pi - abs(info["heading_error"]) < TURNED + 0.1
        assert abs(info["lateral_offset"]) < 0.5
    else:
        assert BESIDE[0] - 1 < abs(info["lateral_offset"]) * TRACK_HALF_WIDTH < BESIDE[1] + 1
        assert info["wheels_off_road"] > 0


def first(seed: int) -> Any:
    """The mishap of level 1 on a track."""
    drawn: list[Any] = []
    env = perturb(blind(make_env(CONTINUOUS)), "mishaps:1")
    env.reset(seed=seed)
    drawn.extend(env._waiting.values())  # type: ignore[attr-defined]
    return drawn[0]


@pytest.mark.parametrize("control", ["continuous", "discrete"])
def test_the_controller_recovers(control):
    for seed in (0, 1, 2):
        env, meter = perturb(blind(make_env(EnvConfig(control))), "mishaps:1"), EpisodeMeter()
        episode = rollout(env, Controller(control), seed, subscribers=[meter])
        result = meter.result("controller", episode, crash_mode="ignore")
        assert episode.outcome["mishaps"] == result.recovered == 1
        assert result.wrong_way is not None
        assert result.wrong_way < 1.5


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"times must lie in \[1, 4\], got 5"):
        Mishaps(5)
    with pytest.raises(ValueError, match="mishaps need CarRacing's car"):
        perturb(Clock(), "mishaps:1")
