"""Feed changed files to a reader: `python -m tests.fuzz --inputs 100000`.

The only outcomes are a sound load, and an error of one line that names the file.
"""

from __future__ import annotations

import resource
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from nac_drive.data_collection.dataset.episode_file import DatasetError
from nac_drive.policies.checkpoint import CheckpointError
from nac_drive.storage.read import FileError
from tests.fuzz.mutations import Content
from tests.fuzz.readers import Target, changed_file, sound_content

MEMORY = 2**30
"""Bytes that a reader may take on top of what the process has."""
LONGEST_MESSAGE = 2_000
OURS = (FileError, DatasetError, CheckpointError, FileNotFoundError)
VICTIM = b"a file of the user"
SETTINGS: dict[str, Any] = {
    "deadline": None, "database": None, "suppress_health_check": list(HealthCheck),
    "phases": (Phase.generate, Phase.shrink),
}  # fmt: skip
"""Settings of hypothesis: no test here depends on time or on earlier runs."""


def fuzz(target: Target, folder: Path, inputs: int, start: int = 0) -> Counter[str]:
    """Read `inputs` changed files.

    Args:
        target: The reader.
        folder: A new folder to work in.
        inputs: Number of files.
        start: Seed of hypothesis.

    Returns:
        Number of files that were loaded, and that were refused.

    Raises:
        AssertionError: For any other outcome; hypothesis prints the smallest such file that it finds.
    """
    outcomes: Counter[str] = Counter()
    reader_test(target, folder, inputs, start, outcomes)()
    return outcomes


def reader_test(target: Target, folder: Path, inputs: int, start: int, outcomes: Counter[str]) -> Callable[[], None]:
    """The test of one reader for hypothesis, which counts into `outcomes`."""
    sound, work = folder / "sound", folder / "work"
    sound.mkdir(parents=True)
    content = sound_content(target, sound)
    victim = folder / "victim.txt"
    victim.write_bytes(VICTIM)

    @seed(start)
    @settings(max_examples=inputs, **SETTINGS)
    @given(target.change(content).map(Content))
    def read(changed: Content) -> None:
        if target.writes or not work.exists():
            shutil.rmtree(work, ignore_errors=True)
            shutil.copytree(sound, work)
        changed_file(target, work).write_bytes(changed)
        before = {path for path in work.rglob("*") if path.is_file()}
        outcomes[outcome(target, work, changed == content)] += 1
        assert victim.read_bytes() == VICTIM, "a file outside was changed"
        assert sorted(path.name for path in folder.iterdir()) == ["sound", "victim.txt", "work"]
        if not target.writes:
            assert before == {path for path in work.rglob("*") if path.is_file()}, "a reader changed the folder"

    return read


def outcome(target: Target, folder: Path, unchanged: bool) -> str:
    """Read the folder; return `loaded` or `refused`.

    Raises:
        AssertionError: For any other outcome, and if an unchanged folder is refused.
    """
    error = None
    try:
        with memory_bounded():
            target.read(folder)
    except (ValueError, FileNotFoundError) as found:
        error = found
    if error is None:
        return "loaded"
    message = str(error)
    assert type(error) is ValueError or isinstance(error, OURS), f"a raw {type(error).__name__}: {message}"
    assert "\n" not in message, f"more than one line: {message!r}"
    assert 0 < len(message) <= LONGEST_MESSAGE, f"{len(message)} characters: {message[:200]!r}"
    assert str(folder) in message, f"it does not name the file: {message!r}"
    assert not unchanged, f"a sound file is refused: {message}"
    return "refused"


@contextmanager
def memory_bounded() -> Iterator[None]:
    """Refuse the process more than `MEMORY` on top of what it has; Linux alone can."""
    if sys.platform != "linux":
        yield
        return
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
