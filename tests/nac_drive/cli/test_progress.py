"""What a terminal, a log and a program see of the same events."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

import pytest
from rich.console import Console

from nac_drive.cli import progress as module
from nac_drive.cli.progress import ProgressMode, show_progress
from nac_drive.events import Event, message

EVENTS = [
    Event("train", 1, 4, "loss 3"),
    Event("validation", 1, 2, "return 5"),
    Event("validation", 2, 2, "return 6"),
    message("epoch 2", "closed loop 900"),
    Event("train", 4, 4),
]


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by six seconds with every look at it."""
    moments = iter(range(0, 10_000, 6))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(moments)))


def shown(events: Sequence[Event], *, terminal: bool, mode: ProgressMode = "auto") -> str:
    stream = io.StringIO()
    with show_progress(Console(file=stream, force_terminal=terminal, width=200), mode) as report:
        for event in events:
            report(event)
    return stream.getvalue()


def test_a_log_has_a_line_at_once_and_one_for_every_end_and_message(clock):
    lines = shown(EVENTS, terminal=False).splitlines()
    assert lines[0] == "train: 25 %  loss 3"
    assert "epoch 2: closed loop 900" in lines
    assert lines[-1].startswith("train: done in ")
    assert lines[-1].endswith("loss 3"), "the last note stays"
    assert not any(line.startswith("validation: done") for line in lines), "a job inside of another ends silently"


def test_the_time_that_is_left_is_never_told_from_one_event(clock):
    """A resumed job begins with what was done before, which says nothing about its speed."""
    events = [Event("train", 50, 100), Event("train", 50, 100), Event("train", 60, 100), Event("train", 70, 100)]
    first, second, *_ = shown(events, terminal=False).splitlines()
    assert first == "train: 50 %"
    assert second == "train: 60 %, 18 s gone, about 72 s left", "10 of 100 took 18 seconds, and 40 are missing"


def test_a_job_that_ends_before_its_total_is_done_all_the_same(clock):
    lines = shown([Event("inspect", 3, 1000)], terminal=False).splitlines()
    assert lines[-1].startswith("inspect: done in ")


def test_a_terminal_shows_a_bar_for_each_job_and_drops_the_inner_ones():
    text = shown(EVENTS, terminal=True)
    assert "epoch 2: closed loop 900" in text
    last = text.split("\x1b[2K")[-1]
    assert "4/4" in last
    assert "validation" not in last


def test_a_program_reads_every_event_as_json(capsys):
    assert shown(EVENTS, terminal=True, mode="json") == ""
    rows = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [Event(**row) for row in rows] == EVENTS


@pytest.mark.parametrize("terminal", [False, True])
def test_names_with_control_characters_are_shown_and_not_obeyed(terminal):
    text = shown([Event("\x1b[31mred\nline", 1, 1, "\x07note")], terminal=terminal)
    assert "\x07" not in text
    assert "\x1b[31mred" not in text
