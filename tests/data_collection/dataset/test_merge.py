"""Merged datasets."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from nac_drive.data_collection.collect import EpisodeJob, add_missing, collect_episode, open_recording
from nac_drive.data_collection.dataset.demonstrations import DatasetError, Demonstrations
from nac_drive.data_collection.dataset.episode_arrays import TELEMETRY
from nac_drive.data_collection.dataset.episode_file import file_sha256
from nac_drive.data_collection.dataset.rows import row_note
from nac_drive.data_collection.drivers import resolve_driver
from nac_drive.data_collection.replay import rebuild, save_action_log
from nac_drive.events import Event, silent
from tests.data_collection.recordings import ENV, NOISE, TRACKS, collect_small, contents, rewrite_row, tracks_of


def assert_end_to_end(merged: Demonstrations, parts: list[Demonstrations]) -> None:
    """What `merged` loads is what the parts load, one after the other."""
    whole, loaded = merged.load(), [part.load() for part in parts]
    for name in ("frames", "labels", "actions", "rewards", "dt", "zooming", "seeds"):
        expected = np.concatenate([getattr(each, name) for each in loaded])
        np.testing.assert_array_equal(getattr(whole, name), expected, err_msg=name)
    for name in TELEMETRY:
        expected = np.concatenate([each.telemetry[name] for each in loaded])
        np.testing.assert_array_equal(whole.telemetry[name], expected, err_msg=name)
    np.testing.assert_array_equal(np.diff(whole.offsets), np.concatenate([np.diff(each.offsets) for each in loaded]))


def test_merged_datasets_are_one_recording_in_the_order_of_the_arguments(recorded, tmp_path):
    """The other route is to collect all tracks at once: the same bytes, down to meta.json."""
    first, second = Demonstrations.open(recorded), collect_small(tmp_path / "second", seeds=[5, 2])
    sources = [contents(part.path) for part in (first, second)]
    events: list[Event] = []
    merged = Demonstrations.merge(tmp_path / "merged", [first, str(second.path)], progress=events.append)
    at_once = collect_small(tmp_path / "at_once", seeds=[*TRACKS, 5, 2])
    assert contents(merged.path) == contents(at_once.path)
    assert merged.rows == at_once.rows
    assert [event.note for event in events] == ["", *map(row_note, merged.rows)]
    assert [event.done for event in events] == list(range(len(merged) + 1))
    assert merged.verify() == []
    assert_end_to_end(merged, [first, second])
    turned = Demonstrations.merge(str(tmp_path / "turned"), (second.path, first))
    assert turned.seeds == [5, 2, *TRACKS]
    assert_end_to_end(turned, [second, first])
    assert turned.fingerprint() != merged.fingerprint()
    assert turned.split(0.4) == merged.split(0.4)
    assert [contents(part.path) for part in (first, second)] == sources


def test_a_merged_dataset_comes_again_from_its_action_log_with_its_rounds(tmp_path):
    """Episodes of DAgger runs keep their rounds. Episodes of another dataset have none."""
    parts = [collect_small(tmp_path / "plain", seeds=[8])]
    job = EpisodeJob(pickle.dumps(resolve_driver("controller", ENV)), parts[0].meta)
    for name, tracks in (("one", (4, 9)), ("other", (6,))):
        with open_recording(tmp_path / name, parts[0].meta, tracks, resume=False) as dataset:
            for number, track in enumerate(tracks):
                episode = partial(collect_episode, replace(job, round=number))
                add_missing(dataset, episode, [(number, track)], 1, silent, "collect")
        parts.append(dataset)
    merged = Demonstrations.merge(tmp_path / "merged", parts)
    assert [(row["index"], row["seed"], row.get("round")) for row in merged.rows] == [
        (0, 8, None), (1, 4, 0), (2, 9, 1), (3, 6, 0)
    ]  # fmt: skip
    assert merged.verify() == []
    save_action_log(merged, tmp_path / "log.npz")
    assert contents(rebuild(tmp_path / "log.npz", tmp_path / "rebuilt").path) == contents(merged.path)
    assert_end_to_end(Demonstrations.merge(tmp_path / "again", [merged]), parts)


def test_a_merge_keeps_the_versions_that_made_its_episodes(copy, tmp_path):
    meta = json.loads((copy / "meta.json").read_text())
    (copy / "meta.json").write_text(json.dumps(meta | {"versions": {"gymnasium": "0.0.1"}}))
    merged = Demonstrations.merge(tmp_path / "merged", [copy])
    assert json.loads((merged.path / "meta.json").read_text())["versions"] == {"gymnasium": "0.0.1"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seeds": [5, 7, 3]}, "datasets: track 3 comes twice, the second time in"),
        ({"env": replace(ENV, mask_bar=True)}, r"other settings \(env.mask_bar: dataset has True, got False\)"),
        ({"env": replace(ENV, perturb="gap:1")}, "env.perturb: dataset has 'gap:1', got None"),
        ({"noise": replace(NOISE, hold=2)}, r"other settings \(noise.hold: dataset has 2, got 4\)"),
        ({"seed": 1}, r"other settings \(seed: dataset has 1, got 0\)"),
    ],
)
def test_datasets_that_do_not_go_together_are_named(changed, message, recorded, tmp_path):
    other = collect_small(tmp_path / "other", **{"seeds": [5], **changed})
    with pytest.raises(DatasetError, match=f"{message}.*; merge datasets ") as caught:
        Demonstrations.merge(tmp_path / "merged", [recorded, other])
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "merged").exists()


def test_merging_never_overwrites_and_needs_an_episode(copy, recorded, tmp_path):
    before = contents(copy)
    for path in (copy, recorded):
        with pytest.raises(FileExistsError, match="already exists; choose another folder"):
            Demonstrations.merge(path, [recorded])
    assert contents(copy) == before
    with pytest.raises(DatasetError, match="track 3 comes twice"):
        Demonstrations.merge(tmp_path / "merged", [copy, recorded])
    empty = Demonstrations.create(tmp_path / "empty", Demonstrations.open(recorded).meta)
    with pytest.raises(DatasetError, match="there is no episode to write; pass at least one"):
        Demonstrations.merge(tmp_path / "merged", [empty])
    for wrong, got in (([], "none"), (None, "None"), (b"data", "b'data'"), ([recorded, 3], "3")):
        with pytest.raises(ValueError, match=f"^datasets must .*, got {got}; pass "):
            Demonstrations.merge(tmp_path / "merged", wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "merged").exists()
    for name, one in (("one", str(recorded)), ("two", recorded), ("three", Demonstrations.open(recorded))):
        assert contents(Demonstrations.merge(tmp_path / name, one).path) == contents(recorded)
    assert contents(Demonstrations.merge(tmp_path / "merged", [empty, recorded]).path) == contents(recorded)


@pytest.mark.parametrize("damage", ["missing", "flipped", "not an episode"])
def test_a_damaged_episode_leaves_nothing_behind(damage, copy, tmp_path):
    first, file = collect_small(tmp_path / "first", seeds=[5]), copy / "episodes" / "000001.h5"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.unlink()
    if damage != "missing":
        file.write_bytes(content)
    if damage == "not an episode":
        file.write_text("all my work")
        rewrite_row(copy, 1, sha256=file_sha256(file))
    events: list[Event] = []
    message = {
        "missing": rf"{file} cannot be read: the file is missing; record it again with --resume",
        "flipped": rf"{file} cannot be read: its content has changed .*; record it again with --resume",
        "not an episode": r"00000\d.h5 cannot be read",
    }[damage]
    with pytest.raises(DatasetError, match=message) as caught:
        Demonstrations.merge(tmp_path / "merged", [first, copy], progress=events.append)
    assert "\n" not in str(caught.value)
    assert tracks_of(events) == [5, TRACKS[0]]  # they were written
    assert not (tmp_path / "merged").exists()


def test_a_merge_that_is_interrupted_leaves_nothing_behind_and_can_be_repeated(recorded, tmp_path):
    def interrupt(event: Event) -> None:
        if event.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Demonstrations.merge(tmp_path / "merged", [recorded], progress=interrupt)
    assert list(tmp_path.iterdir()) == []
    assert contents(Demonstrations.merge(tmp_path / "merged", [recorded]).path) == contents(recorded)
