"""A share of the fuzzer, some five seconds of it. `python -m tests.fuzz` is the whole."""

from __future__ import annotations

import pytest

from tests.fuzz.commands import SOUND, _inputs, _outcome, fuzz_commands, work_is_not_done
from tests.fuzz.readers import TARGETS
from tests.fuzz.run import fuzz

INPUTS = {True: 10, False: 30}
"""Files for each reader: fewer where every file needs a new folder."""
COMMAND_LINES = 40


@pytest.mark.parametrize("target", TARGETS)
def test_a_changed_file_is_loaded_soundly_or_refused_in_one_line(target, tmp_path):
    inputs = INPUTS[TARGETS[target].writes]
    outcomes = fuzz(TARGETS[target], tmp_path / "files", inputs)
    assert outcomes["refused"] > inputs // 10 or not TARGETS[target].refuses


@pytest.mark.parametrize("target", TARGETS)
def test_the_unchanged_file_is_loaded(target, tmp_path):
    TARGETS[target].make(tmp_path)
    TARGETS[target].read(tmp_path)


def test_a_hostile_command_line_is_refused_and_changes_nothing(tmp_path):
    outcomes = fuzz_commands(tmp_path, COMMAND_LINES)
    assert outcomes["refused"] > COMMAND_LINES // 4


@pytest.mark.parametrize("command", SOUND)
def test_the_sound_command_lines_are_not_refused(command, tmp_path):
    _inputs(tmp_path / "sound")
    with work_is_not_done():
        (tmp_path / "work").mkdir()
        assert (
            _outcome(tmp_path / "sound", tmp_path / "sound", [*command.split(), *SOUND[command].split()]) != "refused"
        )
