"""Names of others in messages, Markdown and commands: every mark is escaped, ordinary names stay as they are."""

from __future__ import annotations

import shutil

import pytest
from markdown_it import MarkdownIt

from nac_drive.storage.names import markdown, shell_path, shell_word, shown, unescaped
from tests.hostile_names import NAMES, WORST, hidden, words_of

ORDINARY = ("champion", "nac-exact,window=8", "my_run_2", "v1.0", "Return: mean ± standard deviation (95 %), 3 runs.")
every_name = pytest.mark.parametrize("name", [*NAMES, WORST], ids=ascii)


@every_name
def test_what_is_shown_prints(name):
    assert shown(name).isprintable()
    assert shown(name) == (name if name.isprintable() else shown(name))
    assert shown(name).encode()
    assert len(shown(name)) >= len(name)


@every_name
def test_markdown_shows_the_name_as_it_is(name):
    reader = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    table = f"| driver | return |\n|---|---|\n| {markdown(name)} | 1 |\n"
    for text in (table, f"Driven by {markdown(name)}\n"):
        inline = [token for token in reader.parse(text) if token.type == "inline"]
        assert all(child.type == "text" for token in inline for child in token.children or ())
        texts = ["".join(child.content for child in token.children or ()) for token in inline]
        expected = shown(name).strip()
        assert texts == (["driver", "return", expected, "1"] if text == table else [f"Driven by {expected}"])


@every_name
def test_a_terminal_shows_the_name_as_it_is(name):
    assert unescaped(f"| {markdown(name)} \\[+1, +2\\] |") == f"| {shown(name)} [+1, +2] |"


@every_name
def test_a_command_has_the_name_as_one_word(name):
    word = shell_path(name)
    assert hidden(word) == set()
    assert "\n" not in word
    if shutil.which("bash"):
        assert words_of(f"a {word} b") == ["a", f"./{name}" if name.startswith("-") else name, "b"]
        assert words_of(shell_word(name)) == [name]


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_names_stay_as_they_are(name):
    assert shown(name) == markdown(name) == name
    assert shell_path(name) == name or " " in name
