"""Frames that stay in their files: equal to those in memory, and refused once a file has changed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.dataset.stored_frames import StoredFrames

LENGTHS = [1, 16, 17, 33]
"""Frames of each episode; a chunk has 16."""


@pytest.fixture(scope="module")
def frames(tmp_path_factory) -> tuple[np.ndarray, StoredFrames]:
    """The frames of own data, without one after the last action, in memory and in their files."""
    rng = np.random.default_rng(0)
    episodes = [
        {"observations": rng.integers(256, size=(n, 96, 96, 3), dtype=np.uint8), "actions": rng.integers(5, size=n)}
        for n in LENGTHS
    ]
    dataset = Demonstrations.from_episodes(tmp_path_factory.mktemp("stored") / "dataset", episodes)
    return dataset.load().frames, dataset.stream().frames


@given(data=st.data())
def test_any_rows_are_those_in_memory(frames, data):
    loaded, stored = frames
    assert len(stored) == len(loaded)
    first, end = (data.draw(st.integers(0, len(loaded))) for _ in range(2))
    np.testing.assert_array_equal(stored[first:end], loaded[first:end])


def test_a_number_is_one_frame(frames):
    loaded, stored = frames
    for row in (0, 17, np.int64(20), -1, -len(loaded)):
        np.testing.assert_array_equal(stored[row], loaded[row])
    for row in (len(loaded), -len(loaded) - 1):
        with pytest.raises(IndexError, match=f"frame {row} is out of range: there are 67 frames"):
            stored[row]


@pytest.mark.parametrize("rows", [slice(0, 9, 2), slice(None, None, -1), [1, 2], "1", None, 1.0])
def test_other_rows_are_refused(frames, rows):
    with pytest.raises(TypeError, match=r"read by a number or a slice of step 1, got .*; load"):
        frames[1][rows]


@pytest.mark.parametrize("seeds", [None, [11], [7, 3]])
def test_all_but_the_frames_is_read_at_once(recorded, seeds):
    data = Demonstrations.open(recorded)
    loaded, streamed = data.load(seeds), data.stream(seeds)
    for name in ("labels", "actions", "rewards", "dt", "zooming", "offsets", "seeds"):
        values = getattr(streamed, name)
        np.testing.assert_array_equal(values, getattr(loaded, name), err_msg=name)
        assert values.dtype == getattr(loaded, name).dtype, name
    assert streamed.hashes == loaded.hashes
    np.testing.assert_array_equal(streamed.frames[:], loaded.frames)  # without the frames after the last actions


@pytest.mark.parametrize("same_time", [False, True])
def test_a_file_that_changes_later_is_refused_in_one_line(copy, same_time):
    frames = Demonstrations.open(copy).stream().frames
    file = next(iter(sorted((copy / "episodes").glob("*.h5"))))
    before, content = file.stat(), bytearray(file.read_bytes())
    middle = slice(len(content) // 4, len(content) // 2)  # well inside of the frames
    content[middle] = bytes(len(content[middle]))
    file.write_bytes(content)
    if same_time:  # nothing but the data shows it
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    refused(file, lambda: frames[:60], "bytes|invalid" if same_time else "has changed")
    frames[60:180]  # the other episodes


def test_a_file_that_is_lost_later_is_refused_in_one_line(copy):
    frames = Demonstrations.open(copy).stream().frames
    file = next(iter(sorted((copy / "episodes").glob("*.h5"))))
    file.unlink()
    refused(file, lambda: frames[:1], "No such file")


def refused(file: Path, call, cause: str) -> None:
    with pytest.raises(DatasetError, match=rf"{file} cannot be read: .*({cause})") as caught:
        call()
    assert "\n" not in str(caught.value)
