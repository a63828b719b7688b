"""Settings of a driver's environment, and the environments they make."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, get_args

import gymnasium as gym
from gymnasium.wrappers import TimeLimit

from nac_drive.arguments import require_flag, require_kind, require_text
from nac_drive.envs.car_racing import Control, CrashMode
from nac_drive.envs.foreign import environment
from nac_drive.envs.perturbations.registry import parse_all, perturb
from nac_drive.envs.spec import EnvSpec
from nac_drive.envs.views import ABOVE, Size, VideoView, View, require_view
from nac_drive.envs.wrappers import MaskBar
from nac_drive.plain import plain, plain_fields, whole

_PERTURB_FIX = "pass 'gap:1', or several as 'gap:1+shadows:2' (at once) or 'gap:1,shadows:2' (in turn by track)"


@dataclass(frozen=True)
class EnvConfig:
    """Observations and actions of a driver. Saved in every dataset and every driver folder.

    Raises:
        ValueError: For an unknown control, environment, view or perturbation, a size that the view does not have, and
            if `mask_bar` is no bool, or `max_steps` no whole number above 0.
    """

    control: Control = "discrete"
    """discrete: the actions of the NAC paper (nothing, right, left, gas, brake). continuous: steer, gas, brake. pulsed:
    steer, gas, brake, carried out by the discrete actions. An environment without discrete actions has its own."""
    mask_bar: bool = False
    """Paint the status bar at the bottom of the frame black: it shows the previous steering action."""
    max_steps: int = 1000
    """Frames before an episode is truncated, at most as many as the environment itself allows."""
    environment: str = "car-racing"
    """The track environment: a name in ENVIRONMENTS, or an id that is registered with gymnasium."""
    perturb: str | None = None
    """Perturbations of what the driver sees and does, such as gap:2+frame-rate:1; of several, separated by commas, each
    episode has one, in turn by track (see `envs.perturb`)."""
    view: View = "above"
    """above: gymnasium's frames. seat: from the driver's seat, with a horizon (docs/simulator.md)."""
    size: Size = ABOVE
    """Width and height of a frame in pixels; the view from above has 96 x 96 alone."""

    def __post_init__(self) -> None:
        plain_fields(self)
        require_flag("mask_bar", self.mask_bar)
        require_text("environment", self.environment, f"pass a name such as {EnvConfig.environment!r}")
        spec = environment(self.environment)
        require_view(self.view, self.size)
        object.__setattr__(self, "size", plain(tuple(self.size)))
        if self.view != EnvConfig.view and self.view not in spec.views:
            raise ValueError(f"view {self.view!r} is none of {self.environment!r}; leave it out.")
        if self.perturb is not None:
            require_text("perturb", self.perturb, _PERTURB_FIX)
            parse_all(self.perturb)
        if self.control not in get_args(Control):
            raise ValueError(f"control must be one of {get_args(Control)}, got {self.control!r}.")
        if self.control not in spec.controls:
            if self.control != EnvConfig.control:
                raise ValueError(
                    f"control of {self.environment!r} must be one of {spec.controls}, got {self.control!r}; leave it "
                    "out."
                )
            object.__setattr__(self, "control", spec.controls[0])
        steps = whole("max_steps", self.max_steps, 1)
        object.__setattr__(self, "max_steps", min(steps, spec.max_steps or steps))

    @property
    def spec(self) -> EnvSpec:
        """The facts of the track environment in this view."""
        spec = environment(self.environment)
        return replace(spec, **spec.views[self.view](self.size)) if self.view in spec.views else spec


def require_env(name: str, env: Any) -> None:
    """Check an optional argument that is an `EnvConfig`.

    Raises:
        ValueError: It is something else.
    """
    fix = ""
    if isinstance(env, str):
        fix = f"pass EnvConfig({'control' if env in get_args(Control) else 'environment'}={env!r})"
    require_kind(name, env, EnvConfig, fix, optional=True)


def with_perturbation(env: EnvConfig, perturbation: str | None) -> EnvConfig:
    """Return an environment under other perturbations; None keeps its own.

    Raises:
        ValueError: It is no text, or `perturb` refuses it.
    """
    if perturbation is not None:
        require_text("perturbation", perturbation, _PERTURB_FIX)
    return replace(env, perturb=perturbation or env.perturb)


def in_views(config: EnvConfig, view: VideoView | None) -> list[EnvConfig]:
    """Return an environment in each named view.

    The first is from above. It stays as it is for None.

    Raises:
        ValueError: The environment does not have the view.
    """
    if view is None:
        return [config]
    views: tuple[View, ...] = get_args(View) if view == "both" else (view,)
    return [replace(config, view=name, size=ABOVE) for name in views]


def same_actions(one: str, other: str) -> bool:
    """Return whether two controls have the same form of action.

    The forms are an integer, and steer, gas and brake.
    """
    return (one == "discrete") == (other == "discrete")


def make_env(
    config: EnvConfig | None = None, *, crash: CrashMode = "ignore", render_mode: str | None = None
) -> gym.Env:
    """Make a track environment with the settings of `config`.

    It has a time limit and, where `config` says so, a masked status bar and perturbations.

    Args:
        config: Observations and actions; saved with every driver. Default: `EnvConfig()`.
        crash: Effect of a crash, see `CarRacing`.
        render_mode: As in gymnasium.

    Returns:
        The environment.

    Raises:
        ValueError: For an unknown crash mode, a `config` that is no `EnvConfig`, or an environment that is its own
            program.
    """
    require_env("config", config)
    config = config or EnvConfig()
    return limited(masked(simulator(config, crash, render_mode), config), config)


def simulator(config: EnvConfig, crash: CrashMode, render_mode: str | None) -> gym.Env:
    """Make the bare environment of `make_env`.

    Raises:
        ValueError: As `make_env`.
    """
    if config.spec.make is None:
        raise ValueError(
            f"environment {config.environment!r} is not simulated here: its episodes come from a recording, and a "
            "driver is measured by its error on some of them (`nac-drive evaluate --dataset FOLDER`)."
        )
    return config.spec.make(config, crash, render_mode)


def masked(env: gym.Env, config: EnvConfig) -> gym.Env:
    """Black out the status bar of `env` if `config` says so."""
    return MaskBar(env, config.spec.bar_top) if config.mask_bar and config.spec.bar_top is not None else env


def limited(env: gym.Env, config: EnvConfig) -> gym.Env:
    """Add the time limit and the perturbations of `config`."""
    env = TimeLimit(env, max_episode_steps=config.max_steps)
    if not config.perturb:
        return env
    return perturb(env, config.perturb, episode_frames=config.max_steps, bar_top=config.spec.bar_top)
