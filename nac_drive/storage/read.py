"""Read JSON, JSON lines and YAML of unknown origin.

Documents are checked against a type, and bounded in size and depth.

A type is a msgspec.Struct, a dataclass, or any other type that msgspec knows. Every fault is a FileError of one line.
"""

from __future__ import annotations

import os
import reprlib
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

T = TypeVar("T")

LARGEST_DOCUMENT = 4 * 2**20
"""Bytes of the largest JSON or YAML document that is read. Ours have a few kilobytes."""
BYTES_PER_VALUE = 8
"""Bytes of a JSON document per value: more values would take more than 64 MB of memory."""
MOST_YAML_VALUES = 20_000
"""Values of the largest YAML document, which takes some 1,300 bytes of memory for each. Ours have a hundred."""
LONGEST_MESSAGE = (1000, 300)
"""Characters at the beginning and at the end of a message that are kept."""
LARGEST_LINE = 2**20
"""Bytes of the longest line of a file of JSON lines."""


FRACTION, NOT_NEGATIVE = msgspec.Meta(ge=0, le=1), msgspec.Meta(ge=0, le=10**9)
"""Ranges of numbers in files, for `Annotated`."""


class FileError(ValueError):
    """A file is missing, damaged or of another kind. The message is one line: where, the rule, the fix.

    The middle of a long message, which may repeat what the file holds, is left out.
    """

    def __init__(self, message: str):
        head, tail = LONGEST_MESSAGE
        super().__init__(message if len(message) <= head + tail else f"{message[:head]} ... {message[-tail:]}")


def read_json(
    path: str | os.PathLike[str], kind: type[T], what: str, fix: str, *, largest: int = LARGEST_DOCUMENT
) -> T:
    """Read a JSON document.

    Args:
        path: The file.
        kind: The type of its content; numbers out of range and NaN are refused by its constraints.
        what: The noun for the file, such as "a dataset's meta.json".
        fix: The end of the error message, such as "pass the folder of a recording".
        largest: Bytes of the largest document that is read.

    Returns:
        The content.

    Raises:
        FileError: Unless the file holds one document of this type.
    """
    path = Path(path)
    content = read_bounded(path, what, fix, largest)
    require_few_values(content, largest // BYTES_PER_VALUE, path, what, fix)
    return decode_json(content, kind, path, what, fix)


def read_json_lines(path: str | os.PathLike[str], kind: type[T], what: str, fix: str) -> tuple[list[T], bool]:
    """Read a file with one JSON document a line.

    Args:
        path: The file.
        kind: The type of every line.
        what: The noun for a line, such as "an episode".
        fix: The end of the error message.

    Returns:
        The lines, and whether the last one is cut off: it has no line end, and is left out.

    Raises:
        FileError: Unless all whole lines are of this type.
    """
    path, found, number = Path(path), [], 0
    try:
        with path.open("rb") as file:
            while line := file.readline(LARGEST_LINE):
                number += 1
                if not line.endswith(b"\n"):
                    if len(line) == LARGEST_LINE:
                        raise FileError(f"{path}, line {number} is not {what}: it is too long; {fix}.")
                    return found, True
                found.append(decode_json(line, kind, f"{path}, line {number}", what, fix))
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}; {fix}.") from error
    return found, False


def decode_json(content: bytes, kind: type[T], where: object, what: str, fix: str) -> T:
    """Return the content of a JSON document, see `read_json`. `where` begins the error message."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, OverflowError) as error:
        raise FileError(f"{where} is not {what}: {one_line(error)}; {fix}.") from error


def require_few_values(content: bytes, most: int, where: object, what: str, fix: str) -> None:
    """Bound the number of values before a document is decoded.

    Raises:
        FileError: If there may be more than `most`.
    """
    if sum(map(content.count, (b"[", b"{", b",", b":", b"\n"))) > most:
        raise FileError(f"{where} is not {what}: it holds more than {most:,} values; {fix}.")


def read_yaml(path: str | os.PathLike[str], kind: type[T], what: str, fix: str) -> T:
    """Read a YAML document, see `read_json`.

    Aliases are refused: nested ones can stand for any amount of memory. So is a key that comes twice in a mapping.

    Raises:
        FileError: Unless the file holds one document of this type.
    """
    path = Path(path)
    content = read_bounded(path, what, fix, LARGEST_DOCUMENT)
    require_few_values(content, MOST_YAML_VALUES, path, what, fix)
    try:
        document = yaml.load(content, _Loader)
        return msgspec.convert(document, kind, strict=True)
    except _RepeatedKeyError as error:
        raise FileError(f"{path}, {error}.") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError, OverflowError, TypeError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path} is not {what}: {one_line(error)}; {fix}.") from error


class _RepeatedKeyError(yaml.YAMLError):
    """A key comes twice in a mapping. The message begins with its line."""


class _Loader(yaml.SafeLoader):
    """Plain values without aliases and repeated keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias")
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        mapping = super().compose_mapping_node(anchor)
        lines = dict[tuple[str, str], int]()
        for node, _ in mapping.value:
            if not isinstance(node, yaml.ScalarNode):
                continue
            key, line = (node.tag, node.value), node.start_mark.line + 1
            if key in lines:
                raise _RepeatedKeyError(
                    f"line {line} repeats the key {reprlib.repr(node.value)} of line {lines[key]}; leave one out"
                )
            lines[key] = line
        return mapping


def read_bounded(path: Path, what: str, fix: str, largest: int) -> bytes:
    """Return the content of a file of a bounded size.

    Args:
        path: The file.
        what: What it should be, for errors.
        fix: What to do if it is not.
        largest: Most bytes.

    Raises:
        FileError: It cannot be read, or is larger.
    """
    try:
        with path.open("rb") as file:
            content = file.read(largest + 1)
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}; {fix}.") from error
    if len(content) > largest:
        raise FileError(f"{path} is not {what}: it is larger than {largest:,} bytes; {fix}.")
    return content


def one_line(error: BaseException) -> str:
    """Return the message of an error as one line."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return " ".join(str(error).split()) or type(error).__name__
