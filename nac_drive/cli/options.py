"""The options of all commands as Markdown, for docs/cli.md."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, NamedTuple, get_args, get_type_hints

import tyro

from nac_drive.cli.main import COMMANDS
from nac_drive.markdown import markdown_table


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
        heading = f"### `nac-drive {name}`\n\n{_text(inspect.getdoc(command))}"
        parts.append(f"{heading}\n\n{markdown_table(('option', 'default', 'meaning'), rows, 'lll')}")
    return "\n\n".join(parts)


def _options(kind: type, given: dict[str, Any]) -> Iterator[Option]:
    """Yield the options of the dataclass `kind`, whose defaults `given` replaces."""
    hints, meanings = get_type_hints(kind, include_extras=True), _meanings(kind)
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
        yield Option(name, _typed(default), meanings[setting.name])


def _meanings(kind: type) -> dict[str, str]:
    """Return the docstrings of the fields of a dataclass and of its bases."""
    found = {}
    for base in reversed(kind.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                found[field.target.id] = _text(ast.literal_eval(text.value))
    return found


def _typed(default: Any) -> str:
    """Return a default as Markdown."""
    if default is MISSING:
        return "required"
    if isinstance(default, bool):
        return "on" if default else "off"
    if default is None or default == ():
        return "none"
    return f"`{' '.join(map(str, default)) if isinstance(default, tuple) else default}`"


def _text(docstring: str | None) -> str:
    """Return a docstring as one line of a table."""
    return " ".join((docstring or "").split()).replace("|", "\\|")
