"""Whether two runs of a command left the same files, measured times aside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TIMES = ("seconds", "latency", "per_second", "memory")
"""Parts of the names of measured times, which differ between any two runs."""
MACHINE = {"command.txt", "env.json", "latencies.json"}
"""Files that describe the process or hold measured times; they are not compared."""
DRAWN = {".png", ".html", ".md", ".mp4"}
"""Files that show times; only their presence is compared."""


def contents(folder: Path, *parts: str) -> dict[str, Any]:
    """Every file of these parts of a folder, times aside."""
    return {
        str(path.relative_to(folder)): content(path)
        for part in parts
        for path in sorted((folder / part).rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def content(path: Path) -> Any:
    """The content of a file as far as two runs must agree on it."""
    if path.name in MACHINE or path.suffix in DRAWN:
        return None
    if path.suffix == ".json":
        return timeless(json.loads(path.read_text()))
    if path.suffix == ".jsonl":
        rows = [timeless(json.loads(line)) for line in path.read_text().splitlines()]
        return sorted(rows, key=lambda row: row["index"]) if path.name == "episodes.jsonl" else rows
    return path.read_bytes()


def timeless(value: Any) -> Any:
    """`value` without measured times."""
    if isinstance(value, dict):
        return {
            key: timeless(item) for key, item in value.items() if not any(part in key for part in TIMES)
        }  # fmt: skip
    return [timeless(item) for item in value] if isinstance(value, list) else value


def differences(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """A line for each file that is missing, left over or different."""
    lines = [f"{name} is missing" for name in expected.keys() - found.keys()]
    lines += [f"{name} is left over" for name in found.keys() - expected.keys()]
    return lines + [f"{name} differs" for name in expected.keys() & found.keys() if expected[name] != found[name]]
