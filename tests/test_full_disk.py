"""Commands on a disk that is too small or read-only: one line, nothing lost, and the same results in the end."""

from __future__ import annotations

from functools import cache

import pytest

from nac_drive.experiments import experiment
from tests.full_disk import RESUMABLE, Reference, prepare
from tests.nac_drive.small import FRAMES, each_here, short_zoom
from tests.readers_shell import cut_episodes
from tests.slow import slow_but


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("disk") / "base"
    with short_zoom():
        prepare(folder)
    return folder


@pytest.fixture(scope="module")
def reference(base, tmp_path_factory):
    """Return what a command leaves where there is room; both tests of a command share it."""
    return cache(lambda command: Reference(base, tmp_path_factory.mktemp("reference") / "folder", command))


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    """Run tasks here, not in processes, and short episodes."""
    monkeypatch.setattr(experiment, "each_in_a_process", each_here)
    cut_episodes(monkeypatch)(FRAMES, FRAMES)
    with short_zoom():
        yield


@pytest.mark.parametrize("command", slow_but(["train"], [*RESUMABLE, "export-minari", "export-mp4", "inspect"]))
def test_a_full_disk_is_one_line_and_costs_nothing(command, reference, tmp_path):
    """`python -m tests.full_disk` has more commands and sizes."""
    assert reference(command).problems(tmp_path / "full", 0.5) == []


@pytest.mark.parametrize(
    "command", slow_but(["train", "export-minari"], ["train", "evaluate", "reproduce", "export-minari", "inspect"])
)
def test_a_read_only_disk_is_one_line(command, reference, tmp_path):
    assert reference(command).problems(tmp_path / "read-only", None) == []
