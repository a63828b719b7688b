"""The script that compares numbers with recorded ones."""

from __future__ import annotations

import json

import pytest

from benchmarks.unchanged import REFERENCE, everything


@pytest.mark.slow
def test_every_part_runs_and_recordings_are_the_references_bit_for_bit():
    """Numbers of torch depend on the processor. Episodes do not."""
    computed, reference = everything(), json.loads(REFERENCE.read_text())
    assert computed.keys() == reference.keys()
    assert computed["collect"] == reference["collect"]
