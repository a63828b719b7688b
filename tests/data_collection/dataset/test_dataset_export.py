"""Exports in all formats, and videos: whole or not at all, one episode in memory, errors in one line."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import av
import imageio.v3 as iio
import numpy as np
import pytest

from nac_drive.data_collection.dataset.demonstrations import DatasetError, Demonstrations
from nac_drive.data_collection.dataset.episode_file import read_episode
from nac_drive.data_collection.interchange.export import WRITERS, export_dataset
from tests.commands import call, refused
from tests.data_collection.dataset.exports import CONTINUOUS, DISCRETE, OWN, episodes_of
from tests.data_collection.recordings import contents


@pytest.mark.parametrize("to", WRITERS)
def test_a_damaged_episode_leaves_no_export(datasets, tmp_path, to):
    copy = shutil.copytree(datasets[OWN].path, tmp_path / "dataset")
    file = copy / "episodes/000001.h5"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(DatasetError, match=r"episodes/000001.h5") as caught:
        export_dataset(copy, tmp_path / "out", to)
    assert "\n" not in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} == {"dataset"}


@pytest.mark.parametrize("to", WRITERS)
def test_relative_folders_are_as_good_as_absolute_ones(datasets, tmp_path, to, monkeypatch, capsys):
    """As docs/interchange.md writes the commands: in the reader's folder."""
    shutil.copytree(datasets[OWN].path, tmp_path / "demos")
    monkeypatch.chdir(tmp_path)
    assert call("dataset", "export", "demos", "--to", to, "--out", "exported") == 0, capsys.readouterr().err
    assert capsys.readouterr().out.splitlines()[-1].startswith("exported: 2 episodes in ")
    export_dataset("demos", "deep/in/exported", to)  # type: ignore[arg-type]
    for folder in ("exported", "deep/in/exported"):
        assert any(path.is_file() for path in (tmp_path / folder).rglob("*"))
    if to == "minari":
        assert call("dataset", "import", "exported", "--out", "demos-again") == 0, capsys.readouterr().err
        assert contents(tmp_path / "demos-again") == contents(tmp_path / "demos")
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("to", WRITERS)
def test_a_file_that_a_library_misses_is_not_the_users_folder(datasets, tmp_path, to, monkeypatch, capsys):
    def miss(folder: Path, recording: object) -> None:
        (folder / "twice" / "twice" / "metadata.json").read_text()

    monkeypatch.setitem(WRITERS, to, miss)
    message = refused(capsys, "dataset", "export", str(datasets[OWN].path), "--to", to, "--out", str(tmp_path / "out"))
    assert "twice/metadata.json is missing" in message
    assert "choose another folder" not in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to", WRITERS)
def test_an_existing_folder_stays_as_it_is(recorded, tmp_path, to, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    assert call("dataset", "export", str(recorded), "--to", to, "--out", str(tmp_path)) == 2
    assert capsys.readouterr().err == f"nac-drive: {tmp_path} already exists; choose another folder.\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(("to", "package"), [("minari", "minari"), ("lerobot", "pyarrow")])
def test_a_missing_package_is_named_before_anything_is_written(recorded, tmp_path, to, package, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    assert call("dataset", "export", str(recorded), "--to", to, "--out", str(tmp_path / "out")) == 2
    expected = f"nac-drive: {package} is not installed; run `pip install 'nac-drive[{to}]'`.\n"
    assert capsys.readouterr().err == expected
    assert list(tmp_path.iterdir()) == []


def test_only_one_episode_is_in_memory(datasets, tmp_path, monkeypatch):
    """An episode is read after the one before it was written, and is reported then."""
    events: list[str] = []
    module = sys.modules["nac_drive.data_collection.interchange.recording"]
    monkeypatch.setattr(
        module, "read_episode", lambda path, env: (events.append(f"read {path.stem}"), read_episode(path, env))[1]
    )
    export_dataset(
        datasets[DISCRETE], tmp_path / "out", "minari", progress=lambda event: events.append(f"done {event.done}")
    )
    assert events == ["done 0", *(text for n in range(3) for text in (f"read {n:06d}", f"done {n + 1}"))]


def test_only_folders_of_killed_exports_are_removed(datasets, tmp_path):
    dead = 2**30  # more than there are processes
    others = {".out.1.tmp", ".out.mine.tmp", f".other.{dead}.tmp", f"out.{dead}.tmp"}
    for name in {*others, f".out.{dead}.tmp"}:
        (tmp_path / name / "data").mkdir(parents=True)
    (tmp_path / f".out.{dead + 1}.tmp").symlink_to(tmp_path / ".out.mine.tmp")
    export_dataset(datasets[OWN], tmp_path / "out", "minari")
    assert {path.name for path in tmp_path.iterdir()} == {*others, "out", f".out.{dead + 1}.tmp"}


def test_an_unknown_format_and_an_empty_dataset_are_refused(recorded, tmp_path):
    with pytest.raises(ValueError, match=r"to must be one of minari, lerobot, mp4, tub, got 'lerobots'.* Did you mean"):
        export_dataset(recorded, tmp_path / "out", "lerobots")  # type: ignore[arg-type]
    empty = Demonstrations.create(tmp_path / "empty", Demonstrations.open(recorded).meta)
    with pytest.raises(DatasetError, match="holds no finished episode"):
        export_dataset(empty, tmp_path / "out", "mp4")


# Videos


def test_there_is_a_video_of_every_episode(datasets, tmp_path):
    dataset = datasets[CONTINUOUS]
    assert call("dataset", "export", str(dataset.path), "--to", "mp4", "--out", str(tmp_path / "videos")) == 0
    files = sorted((tmp_path / "videos").iterdir())
    assert [file.name for file in files] == [
        f"episode-{i:06d}-track-{seed}.mp4" for i, seed in enumerate(dataset.seeds)
    ]
    metadata = iio.immeta(files[0], plugin="pyav")
    assert (metadata["codec"], metadata["fps"]) == ("h264", 50)
    arrays, _ = episodes_of(dataset)[0]
    assert arrays.last_frame is not None
    images = np.stack([*iio.imiter(files[0], plugin="pyav")])
    assert images.shape == (26, 384, 384, 3)
    small = images.reshape(26, 96, 4, 96, 4, 3).mean(axis=(2, 4))
    error = np.square(small - np.concatenate([arrays.frames, arrays.last_frame[None]])).mean(axis=(1, 2, 3))
    assert 10 * np.log10(255**2 / error).min() > 35  # dB


def test_a_video_shows_every_frame_at_its_time(datasets, tmp_path):
    export_dataset(datasets[OWN], tmp_path / "videos", "mp4")
    for (arrays, _), file in zip(episodes_of(datasets[OWN]), sorted((tmp_path / "videos").iterdir()), strict=True):
        with av.open(str(file)) as video:
            times = [frame.time for frame in video.decode(video=0)]
        np.testing.assert_allclose(times[: len(arrays.dt)], arrays.dt.cumsum(), atol=1e-4)
        assert len(times) == len(arrays.dt) + 1
