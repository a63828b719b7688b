"""Names that a folder of somebody else may have, and what may be shown of them."""

from __future__ import annotations

import os
import subprocess

NAMES = (
    r"$\foo$", "a$_$b", "$", "<script>alert(1)<", "x|y", "\x1b[31mred", "\x9b31m\x07\r", "abc\u202ecba", "two\nlines",
    "'quo\"tes`", "; touch X #", "$(touch X)", "-rf", "[bold]b", "*a*_b_", "_a_", "&lt;", "{{ 7*7 }}{% x %}", "%s{0}",
    "![x](javascript:1)", "\\", "\\<b>", "a\\\nb", "~~x~~", "www.evil.example", "me@evil.example", "a\u2028b",
    "\ufeffa", os.fsdecode(b"caf\xe9"), "\u05d0\u05d1", "\u8d5b\u8f66",
)  # fmt: skip
WORST = "$\\foo$<script>x|y\x1b[31m\u202e\n'\"`; touch X #"
"""All at once. Its letters are UTF-8, as safetensors needs them in paths."""


def hidden(text: str) -> set[str]:
    """The characters of a text that do not print, line ends aside."""
    return {character for character in text if not character.isprintable() and character != "\n"}


def words_of(command: str) -> list[str]:
    """The words of a command line as bash reads it."""
    script = f"set -- {command}\nprintf '%s\\0' \"$@\""
    done = subprocess.run(["bash", "-c", os.fsencode(script)], capture_output=True, check=True)
    return [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]
