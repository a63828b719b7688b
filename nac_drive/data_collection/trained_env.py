"""The environment of a driver's training.

It says what the driver sees, and where it may drive and teach.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from nac_drive.envs import ENVIRONMENTS, Control, EnvConfig, Policy, same_actions
from nac_drive.plugins import advice_for, saved_plugins


def trained_env(driver: Policy) -> EnvConfig | None:
    """Return the environment that `driver` was trained in. None for one that was not trained.

    Raises:
        ValueError: Its folder names an environment that there is not.
    """
    config = getattr(driver, "env_config", None)
    if not config:
        return None
    try:
        EnvConfig(**config)
        return msgspec.convert(config, EnvConfig)
    except (TypeError, ValueError, msgspec.ValidationError) as error:
        name = config.get("environment")
        fix = "save the driver again"
        if isinstance(name, str) and name not in ENVIRONMENTS:
            fix = advice_for(saved_plugins(getattr(driver, "meta", {})))  # without one, the error names the fix
        reason = "; ".join(filter(None, (str(error).rstrip("."), fix)))
        raise ValueError(f"env in the driver's config.json is not an environment of nac-drive: {reason}.") from None


def seen_by(env: EnvConfig) -> tuple[object, ...]:
    """Return the settings of a driver's undisturbed view."""
    return env.environment, env.view, env.size, env.mask_bar


def require_view(role: str, driver: Policy, env: EnvConfig) -> None:
    """Check that a driver's weights fit an environment's frames.

    The weights are taken from the driver.

    Raises:
        ValueError: The driver was trained in another view, or on frames of another size.
    """
    trained = trained_env(driver)
    if trained and (trained.view, trained.size) != (env.view, env.size):
        raise ValueError(
            f"{role} was trained in the view {trained.view!r} of {trained.size} pixels, here it is {env.view!r} of "
            f"{env.size}; pass one that was trained on such frames."
        )


def require_environment(
    role: str, driver: Policy, env: EnvConfig, fix: str = "pass one that was trained there"
) -> None:
    """Check that a driver was trained in an environment.

    Others learn from it there.

    Its view may be another one: it labels and drives in the view of its training (see `trained_view`).

    Args:
        role: The role and the name of the driver, for the error.
        driver: The driver. One that was not trained may be from anywhere.
        env: The environment of the others.
        fix: The advice of the error.

    Raises:
        ValueError: It was trained in another one.
    """
    trained = trained_env(driver)
    if trained and trained.environment != env.environment:
        raise ValueError(
            f"{role} was trained in the environment {trained.environment!r}, here it is {env.environment!r}, whose "
            f"frames mean nothing to it; {fix}{_such_as(env)}."
        )


def _such_as(env: EnvConfig) -> str:
    """Return the experts of an environment, for an error."""
    return f", such as {' or '.join(env.spec.experts)}" if env.spec.experts else ""


def env_seen_by(driver: Policy, env: EnvConfig) -> EnvConfig:
    """Return an environment as a driver sees it.

    View, size of the frames and status bar are as in its training. A driver that was not trained sees the status bar.
    """
    trained = trained_env(driver)
    if trained is None:
        return replace(env, mask_bar=False)
    return replace(env, view=trained.view, size=trained.size, mask_bar=trained.mask_bar)


def env_of_first(drivers: Iterable[Policy]) -> EnvConfig | None:
    """Return the environment of the first trained driver."""
    return next(filter(None, map(trained_env, drivers)), None)


def env_for(
    driver: Policy,
    control: Control | None = None,
    perturbation: str | None = None,
    *,
    beside: EnvConfig | None = None,
) -> EnvConfig:
    """Return the environment of a driver's training.

    It has the control and the perturbations of the user.

    Args:
        driver: A driver. One that was not trained drives in `EnvConfig`, or where the others drive.
        control: The control of a driver that has none of its own. It also puts a driver of continuous control under
            pulsed control, and the other way round.
        perturbation: Perturbations instead of the training's, see `envs.perturb`; none by default.
        beside: The environment of the drivers that it is compared with, whose control it then has if it names none;
            None if there are none.
    """
    env = trained_env(driver)
    if env is None:
        declared = getattr(driver, "control", None)
        if beside is None or beside.environment == EnvConfig.environment:
            env = EnvConfig(declared or control or EnvConfig.control)
        else:
            env = replace(beside, control=declared or beside.control, mask_bar=False)
    if control and same_actions(control, env.control):
        env = replace(env, control=control)
    return replace(env, perturb=perturbation)
