"""Names that others chose, made safe to show.

They are shown in messages, pages, Markdown and shells.
"""

from __future__ import annotations

import os
import re
import shlex

_MARKDOWN = re.compile(r"[\\`*\[\]<>|~$&@]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<=www)\.", re.IGNORECASE)
"""Characters that Markdown may read as a mark. An underscore inside of a word is none."""


def shown(name: object, keep: str = "") -> str:
    r"""Return a text whose unprintable characters are escapes.

    An escape is, for example, \\x1b or \\u202e.

    Args:
        name: The text. Texts that print stay as they are.
        keep: Characters that stay too, such as line ends.
    """
    return "".join(
        character if character.isprintable() or character in keep
        else character.encode("unicode_escape").decode()
        for character in str(name)
    )  # fmt: skip


def markdown(name: object) -> str:
    """Return a name as plain text of Markdown.

    It is one line, also in a table.
    """
    return _MARKDOWN.sub(lambda mark: f"\\{mark[0]}", shown(name))


def unescaped(text: str) -> str:
    """Return a page of Markdown for a terminal.

    Names in it are as before `markdown`: a backslash escapes ASCII punctuation (CommonMark 0.31, section 2.4).
    """
    return re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", text)


def shell_path(path: str | os.PathLike[str]) -> str:
    """Return a name or path as one word of a command.

    See `shell_word`.

    If it begins with a dash it gets `./` in front, so that it is no option.
    """
    text = os.fspath(path)
    return shell_word(f"./{text}" if text.startswith("-") else text)


def shell_word(text: str) -> str:
    """Return a text as one word for bash or zsh.

    The command is kept, or printed to be pasted.
    """
    if text.isprintable():
        return shlex.quote(text)
    return f"$'{''.join(map(_quoted, text))}'"


def _quoted(character: str) -> str:
    if character.isprintable():
        return f"\\{character}" if character in "\\'" else character
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))
