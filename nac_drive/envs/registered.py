"""The environment that `gymnasium.make("nac_drive/CarRacing-v0")` makes, one of them or many."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import TimeLimit

from nac_drive.envs.car_racing import CarRacing, CrashMode
from nac_drive.envs.config import EnvConfig, limited, masked, simulator
from nac_drive.plain import plain, whole
from nac_drive.suggest import did_you_mean

MAX_EPISODE_STEPS = 1000
"""Steps after which gymnasium truncates an episode, unless `max_episode_steps` says another number."""
_SETTINGS = tuple(field.name for field in fields(EnvConfig))
_OF_VECTORS = ("processes", "out")
_KEYWORDS = (
    *_SETTINGS, "continuous", "crash", "domain_randomize", "lap_complete_percent", "max_episode_steps", "render_mode"
)  # fmt: skip


@dataclass(frozen=True)
class EnvSettings:
    """Keywords of `gymnasium.make("nac_drive/CarRacing-v0")`."""

    config: EnvConfig
    crash: CrashMode
    render_mode: str | None
    of_car_racing: dict[str, Any]
    """Keywords that `CarRacing` alone has: domain_randomize and lap_complete_percent, where they were given."""
    limited: bool
    """The environment has its own limit: `max_steps` was given, or there are perturbations."""

    def make(self) -> gym.Env:
        """Make one environment, without gymnasium's limit."""
        if self.of_car_racing:
            config = self.config
            env: gym.Env = CarRacing(
                self.render_mode, config.control, self.crash, view=config.view, size=config.size, **self.of_car_racing
            )
        else:
            env = simulator(self.config, self.crash, self.render_mode)
        env = masked(env, self.config)
        return limited(env, self.config) if self.limited else env


def single_env(render_mode: str | None = None, **settings: Any) -> gym.Env:
    """Make the environment of `gymnasium.make`, without its own limit.

    Args:
        render_mode: As in gymnasium.
        **settings: As in `read_settings`.

    Returns:
        The environment.

    Raises:
        TypeError: As `read_settings`.
        ValueError: As `read_settings` and `make_env`.
    """
    return read_settings(render_mode, **settings).make()


def read_settings(
    render_mode: str | None = None,
    *,
    crash: CrashMode = "ignore",
    continuous: bool | None = None,
    domain_randomize: bool | None = None,
    lap_complete_percent: float | None = None,
    max_steps: int | None = None,
    **settings: Any,
) -> EnvSettings:
    """Return the settings that keywords mean.

    Args:
        render_mode: As in gymnasium.
        crash: As in `make_env`.
        continuous: gymnasium's word for `control`: True for continuous, False for discrete.
        domain_randomize: As in gymnasium: every reset draws other colours of road and grass.
        lap_complete_percent: As in gymnasium: the fraction of the tiles after which the start ends the episode.
        max_steps: As in `EnvConfig`. gymnasium's `max_episode_steps` holds too; the shorter one ends the episode.
        **settings: Further settings of `EnvConfig`. Under `perturb` there are at most `max_steps` frames, 1000 by
            default, as in `make_env`.

    Returns:
        The settings.

    Raises:
        TypeError: For an unknown keyword.
        ValueError: As `EnvConfig`, for keywords that contradict each other, and for a `max_steps` that gymnasium's
            limit would cut.
    """
    for name in settings:
        if name not in _SETTINGS:
            raise TypeError(
                f"{name} is no keyword of nac_drive/CarRacing-v0, which takes {', '.join(_KEYWORDS)}"
                + (f" ({name}: of make_vec's vector_entry_point alone)." if name in _OF_VECTORS else ".")
                + did_you_mean(name, _KEYWORDS)
            )
    if continuous is not None:
        control = "continuous" if plain(continuous) else "discrete"
        if settings.setdefault("control", control) != control:
            raise ValueError(
                f"continuous={continuous} means control={control!r}, got control={settings['control']!r} too; pass one."
            )
    if max_steps is not None and whole("max_steps", max_steps, 1) > MAX_EPISODE_STEPS:
        raise ValueError(
            f"max_steps must be at most {MAX_EPISODE_STEPS}, where gymnasium ends an episode, got {max_steps}; pass "
            f"max_episode_steps={max_steps} in its place, or use make_env or make_vec_env."
        )
    config = EnvConfig(**settings, max_steps=MAX_EPISODE_STEPS if max_steps is None else max_steps)
    given = {"domain_randomize": domain_randomize, "lap_complete_percent": lap_complete_percent}
    of_car_racing = {name: value for name, value in given.items() if value is not None}
    for name in of_car_racing if config.environment != EnvConfig.environment else ():
        raise ValueError(f"{name}: only {EnvConfig.environment!r} has it, got {config.environment!r}.")
    own_limit = max_steps is not None or config.perturb is not None
    return EnvSettings(config, crash, render_mode, of_car_racing, own_limit)


single_env.metadata = CarRacing.metadata  # type: ignore  # gymnasium reads the render modes from it


def step_limit(max_episode_steps: int | None) -> int | None:
    """Return gymnasium's limit of steps for `max_episode_steps`.

    None is the usual one, and -1 none.
    """
    steps = MAX_EPISODE_STEPS if max_episode_steps is None else whole("max_episode_steps", max_episode_steps, -1)
    return None if steps == -1 else steps


def step_limited_env(settings: EnvSettings, steps: int | None) -> gym.Env:
    """Make the environment of `gymnasium.make` with its limit."""
    env = settings.make()
    return env if steps is None else TimeLimit(env, steps)
