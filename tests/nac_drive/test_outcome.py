"""The error of a task in one line."""

from __future__ import annotations

from nac_drive.parallel.outcome import outcome_of


def test_an_error_of_several_lines_keeps_its_first():
    def work(_: object) -> None:
        raise RuntimeError("my core broke\n  in the training\n")

    outcome = outcome_of(work, None)
    assert outcome.error == "RuntimeError: my core broke in the training"
    assert "in the training" in outcome.traceback
    assert "Traceback" in outcome.traceback


def test_a_long_error_is_cut_and_its_traceback_is_whole():
    def work(_: object) -> None:
        raise ValueError("x" * 900)

    outcome = outcome_of(work, None)
    assert len(outcome.error) < 600
    assert "x" * 900 in outcome.traceback
    assert outcome_of(len, [1]).value == 1
