"""Files that anybody may have written are read with their type, or refused in one line."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct

from nac_drive.storage.read import LARGEST_DOCUMENT, FileError, read_json, read_json_lines, read_yaml


class Row(Struct, forbid_unknown_fields=True):
    index: Annotated[int, Meta(ge=0)]
    score: float = 0.0


@dataclass(frozen=True)
class Settings:
    name: str
    numbers: tuple[int, ...] = ()


FIX = "record it again"
ALIASES = "a: &a [x, x]\n" + "\n".join(
    f"{new}: &{new} [*{old}, *{old}]" for old, new in zip("abcdefg", "bcdefgh", strict=True)
)
NOT_ROWS = [
    b"", b"null", b"[]", b'"row"', b"{", b"{}", b'{"index": -1}', b'{"index": 1.5}', b'{"index": true}',
    b'{"index": "1"}', b'{"index": 1, "score": NaN}', b'{"index": 1, "score": Infinity}',
    b'{"index": 1, "score": 1e999}', b'{"index": 1, "path": "../x"}', b"[" * 100_000, b'{"index":' * 100_000,
    b"\xff\xfe", b'{"index": ' + b"9" * 5_000 + b"}", b'{"index": 1}\x00',
]  # fmt: skip


def one_line(caught: pytest.ExceptionInfo, *parts: str) -> None:
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in parts), message


@pytest.mark.parametrize("content", NOT_ROWS, ids=lambda content: repr(content[:24]))
def test_json_of_another_type_is_refused(tmp_path, content):
    path = tmp_path / "row.json"
    path.write_bytes(content)
    with pytest.raises(FileError) as caught:
        read_json(path, Row, "a row", FIX)
    one_line(caught, str(path), "is not a row", FIX)


@pytest.mark.parametrize("content", [c for c in NOT_ROWS if b"\n" not in c], ids=lambda content: repr(content[:24]))
def test_a_line_of_another_type_is_refused_with_its_number(tmp_path, content):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"index": 0}\n' + content + b"\n")
    with pytest.raises(FileError) as caught:
        read_json_lines(path, Row, "a row", FIX)
    one_line(caught, f"{path}, line 2 is not a row", FIX)


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [Row(index, index / 3) for index in range(5)]
    text = "".join(json.dumps({"index": row.index, "score": row.score}) + "\n" for row in rows)
    path.write_text(text)
    assert read_json_lines(path, Row, "a row", FIX) == (rows, False)
    path.write_text(text[:-1])
    assert read_json_lines(path, Row, "a row", FIX) == (rows[:-1], True)
    path.write_text(text.splitlines()[3])
    assert read_json(path, Row, "a row", FIX) == rows[3]


def test_yaml_with_a_type(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("name: nac\nnumbers: [1, 2]\n")
    assert read_yaml(path, Settings, "a config", FIX) == Settings("nac", (1, 2))


NOT_SETTINGS = [
    "", "name: [", "- name", "name: 3", "numbers: [1]", "name: x\nnumbers: [1.5]", "name: !!python/object:os.system x",
    "name: " + "[" * 20_000, "\x00", ALIASES, "name: &a x\nnumbers: *a", "name: x\nname: &a {<<: *a}", "? [a]\n: b",
    "2020-13-45: x", "name: 2020-13-45", "numbers: 0x", "? {a: b}\n: c",
]  # fmt: skip


@pytest.mark.parametrize("content", NOT_SETTINGS, ids=lambda content: repr(content[:24]))
def test_yaml_of_another_type_is_refused(tmp_path, content):
    path = tmp_path / "config.yaml"
    path.write_text(content)
    with pytest.raises(FileError) as caught:
        read_yaml(path, Settings, "a config", FIX)
    one_line(caught, str(path), FIX)


def test_yaml_aliases_are_refused_before_they_are_expanded(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(ALIASES)
    with pytest.raises(FileError, match="alias"):
        read_yaml(path, dict[str, Any], "a config", FIX)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3 repeats the key 'a' of line 1"),
        ("a:\n  b: 1\n  'b': 2\n", "line 3 repeats the key 'b' of line 2"),
        ("a: [{b: 1, b: 2}]", "line 1 repeats the key 'b' of line 1"),
    ],
)
def test_yaml_keys_that_come_twice_are_refused(tmp_path, content, message):
    path = tmp_path / "config.yaml"
    path.write_text(content)
    with pytest.raises(FileError) as caught:
        read_yaml(path, dict[str, Any], "a config", FIX)
    assert str(caught.value) == f"{path}, {message}; leave one out."
    path.write_text("a: {b: 1}\nb: {b: 1}\n")
    assert read_yaml(path, dict[str, Any], "a config", FIX) == {"a": {"b": 1}, "b": {"b": 1}}


def test_sizes_are_bounded(tmp_path):
    path = tmp_path / "large"
    path.write_text(json.dumps({"index": 1}) + " " * LARGEST_DOCUMENT)
    with pytest.raises(FileError, match="larger than 4,194,304 bytes"):
        read_json(path, Row, "a row", FIX)
    assert read_json(path, Row, "a row", FIX, largest=2 * LARGEST_DOCUMENT) == Row(1)
    with pytest.raises(FileError, match="too long"):
        read_json_lines(path, Row, "a row", FIX)
    path.write_text("name: x" + " " * LARGEST_DOCUMENT)
    with pytest.raises(FileError, match="larger than 4,194,304 bytes"):
        read_yaml(path, Settings, "a config", FIX)


@pytest.mark.parametrize("values", [b"[],", b"{},", b"0,", b'{"":[]},', b"[[]],"])
def test_many_values_take_no_memory(tmp_path, values):
    """A list of two bytes takes 64 bytes of memory as JSON, and a thousand as YAML."""
    path = tmp_path / "many"
    for reader, length in ((read_json, LARGEST_DOCUMENT), (read_yaml, LARGEST_DOCUMENT // 40)):
        path.write_bytes(b'{"a":[' + values * (length // len(values) - 10) + b"[]]}")
        tracemalloc.start()
        with pytest.raises(FileError, match="it holds more than") as caught:
            reader(path, dict[str, Any], "a config", FIX)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        one_line(caught, str(path), FIX)
        assert peak < 8 * 2**20


def test_as_many_values_as_a_document_may_hold_take_less_than_64_megabytes(tmp_path):
    path = tmp_path / "most"
    for values in (b"[],", b'{"":{}},'):
        separators = sum(map(values.count, (b"[", b"{", b",", b":")))
        path.write_bytes(b'{"a":[' + values * ((LARGEST_DOCUMENT // 8 - 10) // separators) + b"[]]}")
        tracemalloc.start()
        read_json(path, dict[str, Any], "a config", FIX)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 64 * 10**6


def test_what_is_no_file(tmp_path):
    for place in (tmp_path, tmp_path / "missing"):
        for reader in (read_json, read_json_lines, read_yaml):
            with pytest.raises(FileError) as caught:
                reader(place, Row, "a row", FIX)
            one_line(caught, str(place), "cannot be read", FIX)
