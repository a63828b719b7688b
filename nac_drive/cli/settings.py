"""Settings of trainings on the command line.

Some are options, `--set` and `--config` reach all.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, make_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import tyro

from nac_drive.envs import EnvConfig
from nac_drive.plugins import is_reference, named_object
from nac_drive.policies import DriverConfig
from nac_drive.training.config import core_settings
from nac_drive.training.settings import (
    CONFIGS,
    CORE,
    CORE_ARGS,
    OF_THE_ENVIRONMENT,
    Setting,
    changed,
    changed_by_words,
    read_config,
    settings,
    value_of,
)

_RENAMED = {"validation.tracks": "validation_tracks"}
"""Setting whose option has another name than its field."""


@dataclass(frozen=True)
class Source:
    """Where settings come from that are not typed as options."""

    config: Path | None = None
    """config.yaml of a run, or the run's folder: its settings are the defaults of all options."""
    changes: Annotated[
        tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction, tyro.conf.arg(name="set", metavar="KEY=VALUE ...")
    ] = ()
    """Settings that are no options, such as optim.ema_decay=0; docs/cli.md has a table of all."""


class TrainingCommand:
    """A command whose options are settings of a training.

    See `with_settings`.
    """

    TRAINS: ClassVar[str]
    """The command that its config.yaml is for: train, dagger or ppo."""
    OPTIONS: ClassVar[Mapping[str, Setting]]
    """Field of the command -> its setting."""
    FIXED: ClassVar[Mapping[str, str]]
    """Setting that is not the user's -> what decides it."""
    source: Source

    def ordinary(self) -> Any:
        """Return the config without `--config`, `--set` and options of settings."""
        return CONFIGS[self.TRAINS]()

    def init_env(self, config: Any) -> EnvConfig | None:
        """Return the environment of the driver that `--init-from` names.

        None if the settings of that driver are no defaults here.

        Args:
            config: The config without options.

        Raises:
            FileNotFoundError: A dataset decides, and there is none.
        """
        return None

    def settings(self, decided: Mapping[str, Any] | None = None) -> Any:
        """Return the config of the training.

        It is the ordinary one, with the driver of `--init-from`; or the one of `--config`. `--set` changes it, then the
        options that were typed. Another core has its own default settings.

        Args:
            decided: Setting of `FIXED` -> its value.

        Raises:
            ValueError: A setting is bad.
        """
        base, _ = self._base()
        values = dict(decided or {})
        other_core = self._has_other_core(base.driver)
        for name, setting in self.OPTIONS.items():
            value = getattr(self, name)
            if value != _option_value(setting, base) or (other_core and setting.name == CORE_ARGS):
                values[setting.name] = (
                    core_settings(value) if setting.name == CORE_ARGS else _named(setting.name, value)
                )
        config = changed(base, values)
        config.check()
        return config

    def as_defaults(self) -> Any:
        """Return this command with settings as defaults.

        The settings of `--config`, `--init-from` and `--set` are the defaults when the words are read again. They are
        read until no default changes: the defaults of a core's settings depend on the core that is typed. None if all
        are the ordinary ones.

        Raises:
            FileNotFoundError: There is no driver to start from, or no dataset.
            ValueError: `--config`, `--init-from` or `--set` is bad.
        """
        base, facts = self._base()
        if base == CONFIGS[self.TRAINS]() and not facts:
            return None
        values = {name: _option_value(setting, base) for name, setting in self.OPTIONS.items()}
        if self._has_other_core(base.driver):
            values["core_args"] = ()
        if "dataset" in facts:
            values |= {"dataset": Path(facts["dataset"])}
        elif "expert" in facts and not is_reference(facts["expert"]):  # a file's words import nothing
            values |= {"expert": facts["expert"]}
        command: Any = self
        return replace(command, source=replace(self.source, changes=()), **values)

    def _has_other_core(self, driver: DriverConfig) -> bool:
        return "core" in self.OPTIONS and _named(CORE, vars(self)["core"]) != driver.core

    def _base(self) -> tuple[Any, dict[str, Any]]:
        """Return the config without options, and its facts."""
        base, facts = self.ordinary(), dict[str, Any]()
        if self.source.config is not None:
            if base != CONFIGS[self.TRAINS]():
                raise ValueError("config and recipe both give all settings; choose one.")
            saved = read_config(self.source.config, self.TRAINS)
            base, facts = changed(base, saved.chosen), saved.facts
        words = [_named_word(word) for group in self.source.changes for word in group]
        config = changed_by_words(base, words, self.FIXED)
        if base == CONFIGS[self.TRAINS]() and (driver := self._driver_to_start_from(config)):
            config = changed_by_words(replace(base, driver=driver), words, self.FIXED)
        return config, facts

    def _driver_to_start_from(self, config: Any) -> DriverConfig | None:
        """Return the settings of the driver of `--init-from`.

        Another core gets no residual path, past which it would not have to learn. None if the settings are no defaults
        here, or the driver has no weights.
        """
        source = vars(self).get("init_from") or config.optim.init_from
        if source is None or (env := self.init_env(config)) is None:
            return None
        from nac_drive.data_collection.drivers import driver_of_option, resolve_encoder
        from nac_drive.policies import Driver

        with driver_of_option("init_from"):
            driver = resolve_encoder(source, env)
        if not isinstance(driver, Driver):
            return None
        ordinary = ["control", *(name.rpartition(".")[2] for name in OF_THE_ENVIRONMENT)]
        ordinary += ["residual"] * self._has_other_core(driver.config)
        return replace(driver.config, **{name: getattr(config.driver, name) for name in ordinary})


def _named(setting: str, value: Any) -> Any:
    """Return a typed value. FILE.py:NAME of a core or an encoder is loaded, and becomes a name."""
    return named_object(value) if setting in (CORE, "driver.encoder") else value


def _named_word(word: str) -> str:
    """Return a word of `--set`, see `_named`."""
    setting, equals, value = word.partition("=")
    return f"{setting}{equals}{_named(setting, value)}"


Command = TypeVar("Command", bound=type[TrainingCommand])


def with_settings(trains: str, *names: str, fixed: Mapping[str, str] | None = None) -> Callable[[Command], Command]:
    """Give a command an option for each of these settings.

    Args:
        trains: train, dagger or ppo, whose config it is.
        names: Settings by their names in config.yaml. Their docstrings are the help.
        fixed: Settings that are not the user's -> what decides them.
    """
    known, ordinary = settings(CONFIGS[trains]), CONFIGS[trains]()
    options = {_RENAMED.get(name, known[name].field): known[name] for name in names}

    def decorate(command: Command) -> Command:
        added: list[Any] = [
            (name, _option_type(setting), _option_value(setting, ordinary)) for name, setting in options.items()
        ]
        whole: Any = make_dataclass(command.__name__, added, bases=(command,), frozen=True, kw_only=True)
        whole.__doc__, whole.__module__ = command.__doc__, command.__module__
        whole.TRAINS, whole.OPTIONS = trains, options
        whole.FIXED = dict.fromkeys(OF_THE_ENVIRONMENT, "the environment") | dict(fixed or {})
        return whole

    return decorate


def _option_type(setting: Setting) -> Any:
    if setting.name == CORE_ARGS:
        return Annotated[tuple[str, ...], tyro.conf.arg(help=meaning(setting), metavar="[KEY=VALUE ...]")]
    return Annotated[setting.kind, tyro.conf.arg(help=meaning(setting))]


def _option_value(setting: Setting, config: Any) -> Any:
    """Return a setting's value as its option has it."""
    value = value_of(config, setting.name)
    return tuple(f"{key}={word}" for key, word in value.items()) if setting.name == CORE_ARGS else value


def meaning(setting: Setting) -> str:
    """Return the docstring of a setting as one line."""
    return meanings(setting.owner)[setting.field]


@cache
def meanings(kind: type) -> dict[str, str]:
    """Return the docstrings of fields, each as one line."""
    texts = {}
    for base in reversed(kind.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                texts[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return texts
