"""The options of all commands as Markdown, for docs/cli.md."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, NamedTuple, get_args, get_type_hints

import tyro

from nac_drive.cli.main import COMMANDS
from nac_drive.cli.settings import TrainingCommand, meaning, meanings
from nac_drive.markdown import markdown_table
from nac_drive.training.settings import CONFIGS, settings


class Option(NamedTuple):
    """An option or an argument of a command."""

    name: str
    """`--out`, or `DATASET` for an argument without a name."""
    default: str
    """The default as it is typed; `required` without one."""
    meaning: str
    """The docstring of the field."""


def options(command: type) -> list[Option]:
    """Return the options of a command in the order of its fields.

    Args:
        command: A dataclass of options. The fields of nested dataclasses are options too.
    """
    return list(_options(command, {}))


def subcommands() -> Iterator[tuple[str, type]]:
    """Yield every command that runs, such as `train` and `dataset info`, with its dataclass."""
    for name, command in COMMANDS.items():
        actions = get_type_hints(command, include_extras=True).get("action")
        if actions is None:
            yield name, command
        for action in get_args(actions):
            kind, configuration = get_args(action)
            yield f"{name} {configuration.name}", kind


def options_table() -> str:
    """Return one table of options per command, as docs/cli.md shows them."""
    parts = []
    for name, command in subcommands():
        rows = [(f"`{option.name}`", option.default, option.meaning) for option in options(command)]
        heading = f"### `nac-drive {name}`\n\n{' '.join((inspect.getdoc(command) or '').split())}"
        parts.append(f"{heading}\n\n{markdown_table(('option', 'default', 'meaning'), rows, 'lll')}")
        if issubclass(command, TrainingCommand):
            rows = [(f"`{option.name}`", option.default, option.meaning) for option in other_settings(command)]
            parts.append(f"Settings for `--set`:\n\n{markdown_table(('setting', 'default', 'meaning'), rows, 'lll')}")
    return "\n\n".join(parts)


def other_settings(command: type[TrainingCommand]) -> list[Option]:
    """Return the settings that are no options, for `--set`."""
    options = {setting.name for setting in command.OPTIONS.values()}
    return [
        Option(setting.name, _typed(setting.default), meaning(setting).replace("|", "\\|"))
        for setting in settings(CONFIGS[command.TRAINS]).values()
        if setting.name not in options and setting.name not in command.FIXED
    ]


def _options(kind: type, given: dict[str, Any]) -> Iterator[Option]:
    """Yield the options of the dataclass `kind`, whose defaults `given` replaces."""
    hints, texts = get_type_hints(kind, include_extras=True), meanings(kind)
    for setting in fields(kind):
        markers = getattr(hints[setting.name], "__metadata__", ())
        default = setting.default if setting.default_factory is MISSING else setting.default_factory()
        default = given.get(setting.name, default)
        if tyro.conf.Suppress in markers:
            continue
        if is_dataclass(default) and not isinstance(default, type):
            yield from _options(type(default), vars(default))
            continue
        own = next((marker.name for marker in markers if getattr(marker, "name", None)), setting.name)
        name = own.upper() if tyro.conf.Positional in markers else f"--{own.replace('_', '-')}"
        text = next((marker.help for marker in markers if getattr(marker, "help", None)), None)
        yield Option(name, _typed(default), (text or texts[setting.name]).replace("|", "\\|"))


def _typed(default: Any) -> str:
    """Return a default as Markdown."""
    if default is MISSING:
        return "required"
    if isinstance(default, bool):
        return "on" if default else "off"
    if default is None or default == ():
        return "none"
    return f"`{' '.join(map(str, default)) if isinstance(default, tuple) else default}`"
