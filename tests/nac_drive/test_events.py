"""Events of jobs that are counted, and of jobs inside of others: known sequences."""

from __future__ import annotations

from nac_drive.events import Event, counting, message, one_of


def test_a_counted_job_reports_its_start_and_every_step():
    events: list[Event] = []
    finished = counting(events.append, "collect", 5, done=3)
    finished("track 7")
    finished("track 8")
    assert events == [
        Event("collect", 3, 5),
        Event("collect", 4, 5, "track 7"),
        Event("collect", 5, 5, "track 8"),
    ]


def test_steps_of_a_job_of_unknown_length_are_messages():
    events: list[Event] = []
    counting(events.append, "write", 0)("track 7")
    assert [(event.job, event.total, event.note) for event in events] == [("write", 0, "track 7")]
    assert message("round 1", "loss 0.3").total == 0


def test_a_part_moves_the_whole_job_by_its_fraction():
    events: list[Event] = []
    part = one_of(events.append, "train", 2, 4)
    for batch in (1, 2):
        part(Event("epoch 3", batch, 2, f"batch {batch}"))
    assert events == [Event("train", 2.5, 4, "batch 1"), Event("train", 3, 4, "batch 2")]
