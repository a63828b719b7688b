"""Settings of a training by their names in config.yaml.

A name is, for example, `optim.ema_decay`. `--config`, `--set` and the options of a command follow the
same rules: a name is a setting, a value has the type of its field. Nothing that a file names is loaded. Free of torch.
"""

from __future__ import annotations

import os
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import msgspec

from nac_drive.plain import yaml_number
from nac_drive.policies.ranges import check_type
from nac_drive.storage.read import FileError, read_yaml
from nac_drive.suggest import did_you_mean
from nac_drive.training.config import TrainConfig, core_settings
from nac_drive.training.dagger_config import DaggerConfig
from nac_drive.training.ppo.config import PPOConfig

CONFIGS: dict[str, type[Any]] = {"train": TrainConfig, "dagger": DaggerConfig, "ppo": PPOConfig}
"""Command that trains -> its config."""
FORMAT = 4
"""The format of config.yaml. A run of another format was started by an older version."""
CONFIG = "config.yaml"
FACTS = (
    "format", "dataset", "dataset_sha256", "expert", "expert_sha256", "init_sha256", "freeze_encoder_sha256",
    "core_code_sha256", "encoder_code_sha256", "device", "learning_rates",
)  # fmt: skip
"""Keys of config.yaml that are no settings: what the run was trained on, the code of the user's own parts, and who
chose its learning rates."""
OF_THE_CORE = {"learning_rates": "of the core"}
"""The fact of a run whose user chose no learning rate."""
_RATES = ("optim.learning_rate", "optim.encoder_learning_rate")
OF_THE_ENVIRONMENT = ("driver.frame_shape", "driver.num_actions", "driver.part_ranges", "driver.nominal_dt")
"""Settings that follow from the environment; no user chooses them."""
CORE, CORE_ARGS = "driver.core", "driver.core_args"

Config = TypeVar("Config", TrainConfig, DaggerConfig, PPOConfig)
AnyConfig: TypeAlias = TrainConfig | DaggerConfig | PPOConfig

if TYPE_CHECKING:  # a SavedConfig without brackets holds any config; typing has defaults from Python 3.13 on
    from typing_extensions import TypeVar as DefaultTypeVar

    SavedKind = DefaultTypeVar("SavedKind", bound=AnyConfig, default=AnyConfig, covariant=True)
else:
    SavedKind = TypeVar("SavedKind")


@dataclass(frozen=True)
class Setting:
    """One setting of a config."""

    name: str
    """Its name in config.yaml, such as `optim.ema_decay`."""
    owner: type
    """The dataclass that has the field."""
    kind: Any
    """Its type in config.yaml: a path is a str."""
    default: Any

    @property
    def field(self) -> str:
        """The name of its field."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True)
class SavedConfig(Generic[SavedKind]):
    """The content of a config.yaml."""

    command: str
    """The command that it is for: train, dagger or ppo."""
    values: dict[str, Any]
    """Setting -> value."""
    facts: dict[str, Any]
    """Its other keys, see `FACTS`."""

    @property
    def chosen(self) -> dict[str, Any]:
        """The values without learning rates of the core's own.

        Another core has others.
        """
        left_out = _RATES if OF_THE_CORE.items() <= self.facts.items() else ()
        return {name: value for name, value in self.values.items() if name not in left_out}

    @property
    def config(self) -> SavedKind:
        """The config of the values that were `chosen`.

        A TrainConfig, DaggerConfig or PPOConfig. Settings that the file does not name have their defaults.
        """
        return changed(CONFIGS[self.command](), self.chosen)

    @property
    def trained(self) -> SavedKind:
        """The config of the run, learning rates included."""
        return changed(CONFIGS[self.command](), self.values)


def settings(kind: type) -> dict[str, Setting]:
    """Return the settings of a config by their names.

    Args:
        kind: The dataclass, such as TrainConfig.
    """
    return {setting.name: setting for setting in _settings(kind(), "")}


def _settings(config: Any, prefix: str) -> Iterator[Setting]:
    hints = get_type_hints(type(config))
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from _settings(value, f"{prefix}{field.name}.")
        else:
            yield Setting(f"{prefix}{field.name}", type(config), _in_files(hints[field.name]), value)


def _in_files(kind: Any) -> Any:
    """Return the type of a field in files, without paths."""
    if get_origin(kind) not in (types.UnionType, typing.Union):
        return kind
    return typing.Union[tuple(part for part in get_args(kind) if part is not Path)]  # noqa: UP007


def changed(config: Config, values: Mapping[str, Any]) -> Config:
    """Return a config with other values.

    Args:
        config: The config.
        values: Setting -> value, by names such as `optim.ema_decay`.
    """
    own = {name: value for name, value in values.items() if "." not in name}
    parts: dict[str, dict[str, Any]] = {}
    for name in values.keys() - own.keys():
        part, _, rest = name.partition(".")
        parts.setdefault(part, {})[rest] = values[name]
    nested: Any = {part: changed(getattr(config, part), inner) for part, inner in parts.items()}
    return replace(config, **own, **nested)


def value_of(config: Any, name: str) -> Any:
    """Return the value of a setting."""
    for part in name.split("."):
        config = getattr(config, part)
    return config


# Words of --set


def changed_by_words(config: Config, words: Sequence[str], fixed: Mapping[str, str]) -> Config:
    """Return a config changed by the words of `--set`.

    Args:
        config: The config.
        words: KEY=VALUE; a value of several words is separated by commas, `none` is no value. A setting of the core is
            `driver.core_args.KEY=VALUE`. Another core has none of the settings that the config's core had.
        fixed: Settings that are not the user's -> what decides them.

    Raises:
        ValueError: A word has another form, names no setting, or a value of another type.
    """
    known, values, core_args = settings(type(config)), dict[str, Any](), dict[str, Any]()
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise ValueError(f"set must be KEY=VALUE, got {word!r}; such as --set optim.ema_decay=0.")
        of_core = name.startswith(f"{CORE_ARGS}.")
        setting = CORE_ARGS if of_core else name
        if setting in fixed:
            raise ValueError(f"set: {setting} is decided by {fixed[setting]}; leave it out.")
        if of_core:
            core_args |= core_settings([word.removeprefix(f"{CORE_ARGS}.")])
        else:
            _require_known(name, known.keys() - {CORE_ARGS} - fixed.keys(), "set: there is no setting")
            values[name] = _of_text(known[name], text)
    other_core = values.get(CORE, config.driver.core) != config.driver.core
    values[CORE_ARGS] = ({} if other_core else config.driver.core_args) | core_args
    return changed(config, values)


def _of_text(setting: Setting, text: str) -> Any:
    if type(None) in get_args(setting.kind) and text.lower() in ("none", "null"):
        return None
    value = [part for part in text.split(",") if part] if get_origin(setting.kind) is tuple else text
    try:
        return msgspec.convert(value, setting.kind, strict=False)
    except msgspec.ValidationError:
        raise ValueError(f"set: {setting.name} must be {_noun(setting.kind)}, got {text!r}.") from None


def _noun(kind: Any) -> str:
    """Return the noun for a type in messages."""
    nouns = {bool: "true or false", int: "a whole number", float: "a number", str: "a word", type(None): "none"}
    if kind in nouns:
        return nouns[kind]
    parts = get_args(kind)
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, parts))}"
    if get_origin(kind) is tuple:
        return "words" if parts[0] is str else f"{len(parts)} whole numbers"
    if get_origin(kind) is dict:
        return "a mapping"
    return " or ".join(map(_noun, parts))


def _require_known(name: str, known: Collection[str], message: str) -> None:
    if name in known:
        return
    if group := [other for other in known if other.startswith(f"{name}.")]:
        raise ValueError(
            f"{message} {name!r}: it is a group, of {min(group)} and others. docs/cli.md has a table of all."
        )
    same_field = [other for other in known if other.rpartition(".")[2] == name.rpartition(".")[2]]
    hint = f" Did you mean {same_field[0]!r}?" if same_field else did_you_mean(name, known)
    raise ValueError(f"{message} {name!r}.{hint} docs/cli.md has a table of all.")


# config.yaml


@overload
def read_config(path: str | os.PathLike[str], command: Literal["train"]) -> SavedConfig[TrainConfig]: ...


@overload
def read_config(path: str | os.PathLike[str], command: Literal["dagger"]) -> SavedConfig[DaggerConfig]: ...


@overload
def read_config(path: str | os.PathLike[str], command: Literal["ppo"]) -> SavedConfig[PPOConfig]: ...


@overload
def read_config(path: str | os.PathLike[str], command: str | None = None) -> SavedConfig[AnyConfig]: ...


def read_config(path: str | os.PathLike[str], command: str | None = None) -> SavedConfig[Any]:
    """Read a config.yaml.

    Args:
        path: The file, or the folder of a run. A file may name some settings alone.
        command: train, dagger or ppo; None: the one with the most of its settings.

    Returns:
        Its settings and the command that they are for.

    Raises:
        FileError: The file is missing or damaged, another version wrote it, it is for another command, it names what is
            no setting or one twice, or a value has another type.
        ValueError: The command is unknown.
    """
    if command is not None and command not in [*CONFIGS]:
        raise ValueError(
            f"command: must be one of {', '.join(CONFIGS)}, or None, got {command!r}."
            f"{did_you_mean(str(command), CONFIGS)}"
        )
    path = Path(path)
    path = path / CONFIG if path.is_dir() else path
    document = read_yaml(path, dict[str, Any], "a run's config", "pass the config.yaml of a run")
    if document.get("format", FORMAT) != FORMAT:
        raise FileError(
            f"{path} was written by another version of nac-drive (format {document['format']!r}, this one has "
            f"{FORMAT}); pass its settings by --set."
        )
    facts = {name: document.pop(name) for name in FACTS if name in document}
    facts.pop("format", None)
    known = {name: settings(kind) for name, kind in CONFIGS.items()}
    values, where = dict[str, Any](), f"{path}: "
    for name, value in _leaves(document, ""):
        if name in values:
            raise FileError(f"{where}{name} comes twice; leave one out.")
        values[name] = value
    likely = max(known, key=lambda name: (len(values.keys() & known[name].keys()), name == command))
    if command and likely != command and values.keys() <= known[likely].keys():
        raise FileError(f"{path} is a config of `nac-drive {likely}`; pass one that `nac-drive {command}` wrote.")
    try:
        for name in values:
            _require_known(name, known[likely], f"{where}there is no setting")
        values = {name: _checked(known[likely][name], value, where) for name, value in values.items()}
        for name, value in facts.items():
            check_type(f"{where}{name}", value, str)
    except ValueError as error:
        raise FileError(str(error)) from None
    return SavedConfig(likely, values, facts)


def _checked(setting: Setting, value: Any, where: str) -> Any:
    typed = value
    if setting.name == CORE_ARGS:
        typed = _with_numbers(value)
    elif float in (setting.kind, *get_args(setting.kind)):
        typed = yaml_number(value)
    try:
        return msgspec.convert(typed, setting.kind)
    except msgspec.ValidationError:
        raise ValueError(f"{where}{setting.name} must be {_noun(setting.kind)}, got {value!r}.") from None


def _with_numbers(core_args: Any) -> Any:
    """Return a core's settings with numbers, see `yaml_number`."""
    return {key: yaml_number(value) for key, value in core_args.items()} if isinstance(core_args, dict) else core_args


def _leaves(document: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the settings of nested mappings by their names."""
    for key, value in document.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and name != CORE_ARGS:
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value
