"""What `verify` sees of a damaged dataset."""

from __future__ import annotations

import numpy as np
import pytest

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.episode_arrays import EpisodeArrays
from nac_drive.data_collection.dataset.episode_file import encode_episode, read_episode
from tests.data_collection.recordings import ENV, rewrite_row, tamper


def test_a_sound_dataset_has_no_problems(recorded):
    assert Demonstrations.open(recorded).verify(replay=True) == []


@pytest.mark.parametrize("place", [0.0, 0.2, 0.5, 0.8, 0.9999])
def test_verify_sees_one_flipped_bit(copy, place):
    file = copy / "episodes" / "000001.h5"
    data = bytearray(file.read_bytes())
    data[int(place * len(data))] ^= 1
    file.write_bytes(data)
    problems = Demonstrations.open(copy).verify()
    assert problems
    assert all("000001.h5" in problem for problem in problems)


def test_verify_sees_truncated_and_missing_files_cut_rows_and_files_without_row(copy):
    first, second, third = (copy / "episodes" / f"{index:06d}.h5" for index in range(3))
    first.write_bytes(first.read_bytes()[:-500])
    second.unlink()
    rows = (copy / "episodes.jsonl").read_bytes()
    (copy / "episodes.jsonl").write_bytes(rows[:-10])
    problems = "\n".join(Demonstrations.open(copy).verify())
    assert f"{first}: the content has changed" in problems
    assert f"episode {first} cannot be read" in problems
    assert f"episode {second} cannot be read: the file is missing" in problems
    assert f"{third}: it has no row" in problems
    assert "last row is cut off" in problems


def test_verify_sees_a_reward_that_does_not_fit_the_return(copy):
    def change(file):
        file["reward"][20] += 1.0

    tamper(copy, 2, change)
    (problem,) = Demonstrations.open(copy).verify()
    assert "000002.h5: the rewards sum to" in problem


def test_verify_sees_a_row_that_does_not_fit_its_file(copy):
    rewrite_row(copy, 0, seed=12)
    (problem,) = Demonstrations.open(copy).verify()
    assert "seed is 11, its row says 12" in problem


def test_replay_sees_a_reward_that_was_changed_everywhere(copy):
    def change(file):
        file["reward"][20] += 1.0
        file.attrs["return"] = np.cumsum(file["reward"][()])[-1]
        rewrite_row(copy, 2, **{"return": file.attrs["return"].item()})

    tamper(copy, 2, change)
    dataset = Demonstrations.open(copy)
    assert dataset.verify() == []
    problems = dataset.verify(replay=True)
    assert any("000002.h5: replay: reward differ from frame 20 on" in problem for problem in problems)
    assert all("000002.h5" in problem for problem in problems)


def test_replay_sees_an_executed_action_that_was_changed(copy):
    def change(file):
        file["action"][55] = 1 if file["action"][55] == 2 else 2  # the other way

    tamper(copy, 1, change)
    dataset = Demonstrations.open(copy)
    assert dataset.verify() == []
    problems = dataset.verify(replay=True)
    assert any("000001.h5: replay: frames differ from frame 56 on" in problem for problem in problems)


def test_replay_sees_another_frame_after_the_last_action(copy):
    def change(file):
        file["frames"][-1] = 0

    tamper(copy, 1, change)
    dataset = Demonstrations.open(copy)
    assert dataset.verify() == []
    (problem,) = dataset.verify(replay=True)
    assert "000001.h5: replay: the frame after the last action differs" in problem


def test_replay_sees_an_episode_that_was_cut_short(copy):
    path = copy / "episodes" / "000000.h5"
    arrays, summary = read_episode(path, ENV)
    columns = {name: getattr(arrays, name)[:40] for name in ("frames", "label", "action", "reward", "dt", "zooming")}
    telemetry = {name: values[:40] for name, values in arrays.telemetry.items()}
    short = EpisodeArrays(**columns, telemetry=telemetry, last_frame=arrays.frames[40])
    summary |= {
        "length": 40,
        "return": float(np.cumsum(short.reward)[-1]),
        "completion": arrays.telemetry["completion"][40],
    }
    path.write_bytes(encode_episode(short, summary))
    tamper(copy, 0, lambda file: rewrite_row(copy, 0, **summary))
    dataset = Demonstrations.open(copy)
    assert dataset.verify() == []
    (problem,) = dataset.verify(replay=True)
    assert "goes on after its last frame 39" in problem
