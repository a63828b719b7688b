"""A check of an environment that a user brings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from nac_drive.envs import PERTURBATIONS, EnvConfig, Road, make_env
from nac_drive.envs.foreign import ASSUMED_RATE, frame_rate
from nac_drive.evaluation.metrics import METRICS

SEED = 0
_STEPS = 40
"""Random actions of an episode."""
COMMANDS = (
    "collect", "train", "dagger", "ppo", "evaluate", "compare", "stress", "watch", "inspect", "arena", "export",
)  # fmt: skip
"""Commands that every environment has which can be driven."""
_REPEATED = "dataset verify --replay and paired differences"
"""Results that need the same episode of the same seed."""


@dataclass(frozen=True)
class EnvironmentFinding:
    """One thing that an environment brings or lacks."""

    topic: str
    found: str
    fix: str = ""
    """How to add what is missing; empty if nothing is."""


@dataclass(frozen=True)
class EnvironmentCheck:
    """Result of `check_environment`."""

    name: str
    findings: tuple[EnvironmentFinding, ...]
    left_out: tuple[str, ...]
    """Parts of commands that it has not."""

    @property
    def verdict(self) -> str:
        """The commands that work, and what they leave out."""
        missing = f" Left out: {'; '.join(self.left_out)}." if self.left_out else ""
        return f"{self.name} works with {', '.join(COMMANDS)}.{missing}"


def check_environment(name: str) -> EnvironmentCheck:
    """Drive random actions and say what an environment brings.

    Args:
        name: A name in ENVIRONMENTS, or an id that is registered with gymnasium.

    Returns:
        The findings, each with a fix if something is missing.

    Raises:
        ValueError: There is none, it cannot be driven, or it raises an error.
    """
    config = EnvConfig(environment=name)
    episodes = [_drive(config) for _ in range(2)]
    first, again = episodes
    equal = len(first) == len(again) and all(
        np.array_equal(one[0], other[0]) and one[1] == other[1] for one, other in zip(first, again, strict=True)
    )
    reported = set.intersection(*(set(info) for _, _, info in first))
    metrics = [metric.name for metric in METRICS.values() if metric.needs and reported.issuperset(metric.needs)]
    lacking = {key for metric in METRICS.values() for key in metric.needs} - reported
    with closing(make_env(config)) as env:
        saves = hasattr(env.unwrapped, "save_state")
        findings = [*_of_spec(config, env)]
    spec = config.spec
    findings += [
        EnvironmentFinding(
            "info",
            f"{', '.join(metrics) or 'none'} of the metrics that need it",
            f"report {', '.join(sorted(lacking))} after every step, see EnvSpec" if lacking else "",
        ),
        EnvironmentFinding(
            "map",
            " and ".join(part for part in ("pose", "road") if getattr(spec, part)) or "none",
            "" if spec.pose and spec.road else "state pose and road in gymnasium_environment",
        ),
        EnvironmentFinding(
            "same seed", "the same episode" if equal else f"another episode, so that {_REPEATED} mean nothing",
            "" if equal else "draw all random numbers from self.np_random, and seed what else is random in reset",
        ),
        EnvironmentFinding(
            "save_state", "there" if saves else "none", "" if saves else "nothing, unless arena is to go back"
        ),
    ]  # fmt: skip
    return EnvironmentCheck(name, tuple(findings), tuple(_left_out(config, saves)))


def _left_out(config: EnvConfig, saves: bool) -> Iterator[str]:
    if config.environment != EnvConfig.environment:
        names = [name for name, levels in PERTURBATIONS.items() if levels[0].needs_car_racing]
        yield f"the perturbations {', '.join(names)} of stress"
    if not config.spec.pose:
        yield "the map of watch --html, inspect and arena"
    if not saves:
        yield "mark and again of arena"


def _drive(config: EnvConfig) -> list[tuple[np.ndarray, float, dict[str, Any]]]:
    """Return frame, reward and `info` of random steps."""
    steps = []
    with closing(make_env(config)) as env:
        env.action_space.seed(SEED)
        frame, _ = env.reset(seed=SEED)
        for _ in range(_STEPS):
            frame, reward, terminated, truncated, info = env.step(env.action_space.sample())
            steps.append((frame.copy(), float(reward), info))
            if terminated or truncated:
                break
    return steps


def _of_spec(config: EnvConfig, env: gym.Env) -> Iterator[EnvironmentFinding]:
    spec, road = config.spec, env.unwrapped
    height, width, _ = spec.frame_shape
    origin = ""
    if isinstance(road, Road):
        origin = (
            f", {road.image.words}"
            if road.image
            else f", drawn by render: observations are {road.env.observation_space}"
        )
    yield EnvironmentFinding("observations", f"{height} x {width} pixels{origin}")
    if config.control == "discrete":
        actions = f"{spec.num_actions} choices: {', '.join(spec.action_names)}"
    else:
        ranges = zip(spec.parts, spec.part_ranges, strict=True)
        actions = ", ".join(f"{part} from {low:g} to {high:g}" for part, (low, high) in ranges)
    steers, flips = spec.steers(config.control), spec.flips(config.control)
    field = "steering" if config.control == "discrete" else "steering_part"
    yield EnvironmentFinding("actions", actions)
    yield EnvironmentFinding(
        "steering", "known" if steers else "not known", "" if steers else f"state {field} in gymnasium_environment"
    )
    field = "flipped_actions" if config.control == "discrete" else "flipped_parts"
    yield EnvironmentFinding(
        "flips in training", "known" if flips else "none", "" if flips else f"state {field} in gymnasium_environment"
    )
    rate = spec.frames_per_second
    stated = frame_rate(road.env) if isinstance(road, Road) else rate
    assumed = stated is None and rate == ASSUMED_RATE
    unlike = stated is not None and stated != rate
    yield EnvironmentFinding(
        "frames per second",
        f"{rate}{', assumed' if assumed else f', the environment states {stated:g}' if unlike else ''}",
        'set metadata["render_fps"] of the environment, a whole number' if assumed or unlike else "",
    )
    yield EnvironmentFinding("longest episode", f"{config.max_steps} steps")
    solved = spec.solved_return
    yield EnvironmentFinding(
        "solved return", "none" if solved is None else f"{solved:g}",
        "set reward_threshold where it is registered" if solved is None else "",
    )  # fmt: skip
