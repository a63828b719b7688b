"""Dataset folders that somebody else made: nothing outside of them is touched, and no file that is not ours."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nac_drive.cli.main import main
from nac_drive.data_collection.dart import NoiseConfig
from nac_drive.data_collection.dataset import create
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.dataset.meta import Meta
from nac_drive.data_collection.replay import rebuild
from nac_drive.storage.lock import LOCK, FolderInUseError, locked
from nac_drive.storage.write import WriteError
from tests.data_collection.dataset.test_own_data import own
from tests.data_collection.recordings import ENV, collect_small, contents, rewrite_row
from tests.hostile_names import WORST, hidden


def one_line(error: BaseException) -> str:
    assert "\n" not in str(error)
    return str(error)


def refused(path: Path, match: str) -> None:
    """The dataset is refused wherever it is opened, and stays as it is."""
    before = contents(path.parent)
    for use in (Demonstrations.open, lambda path: collect_small(path, resume=True)):
        with pytest.raises(DatasetError, match=match) as caught:
            use(path)
        one_line(caught.value)
        assert str(path) in str(caught.value)
    assert contents(path.parent) == before


# F1: rows and links that lead out of the folder


@pytest.mark.parametrize(
    "file", ["{outside}", "../victim.h5", "episodes/../../victim.h5", "episodes/000002.h5", "episodes/1.h5", ""]
)
def test_the_file_of_a_row_is_that_of_its_index(copy, tmp_path, file):
    victim = tmp_path / "victim.h5"
    victim.write_text("all my work")
    rewrite_row(copy, 1, file=file.format(outside=victim), sha256="0" * 64)
    refused(copy, "line 2 is not an episode: its file is .* episode 1 is episodes/000001.h5")


@pytest.mark.parametrize(
    "name", ["episodes", "episodes/000001.h5", "episodes/000007.h5.1.tmp", "meta.json", "episodes.jsonl", "notes"]
)
def test_links_are_refused(copy, tmp_path, name):
    outside = tmp_path / "outside"
    if (copy / name).exists():
        (copy / name).rename(outside)
    else:
        outside.write_text("all my work")
    if outside.is_dir():
        (outside / "000009.h5.1.tmp").write_text("all my work")
    (copy / name).symlink_to(outside)
    refused(copy, "is a link|is no plain file")


@pytest.mark.parametrize("name", ["episodes/000001.h5", "meta.json", "episodes.jsonl", "notes"])
def test_a_pipe_is_refused_and_not_waited_for(copy, name):
    (copy / name).unlink(missing_ok=True)
    os.mkfifo(copy / name)
    refused(copy, "is no plain file")


def test_a_link_in_place_of_the_lock_file_is_not_followed(copy, tmp_path):
    (tmp_path / "victim").write_text("all my work")
    (copy / LOCK).unlink(missing_ok=True)
    (copy / LOCK).symlink_to(tmp_path / "victim")
    refused(copy, "is a link")
    (copy / LOCK).unlink()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / LOCK).symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        collect_small(tmp_path / "new")
    assert (tmp_path / "victim").read_text() == "all my work"


def test_the_name_of_a_driver_is_no_markup(copy, capsys):
    meta = json.loads((copy / "meta.json").read_text())
    (copy / "meta.json").write_text(json.dumps(meta | {"driver": "[/bold]:car:"}))
    assert main(["dataset", "info", str(copy)]) == 0
    assert "driver  [/bold]:car:\n" in capsys.readouterr().out


def test_the_name_of_a_driver_prints(copy, capsys):
    meta = json.loads((copy / "meta.json").read_text())
    (copy / "meta.json").write_text(json.dumps(meta | {"driver": WORST}))
    assert main(["dataset", "info", str(copy)]) == 2
    message = capsys.readouterr().err
    assert "the driver's name must be one line" in message
    assert hidden(message) == set()


def test_a_linked_dataset_is_opened(recorded, tmp_path):
    (tmp_path / "current").symlink_to(recorded)
    assert len(Demonstrations.open(tmp_path / "current").load()) == 180


# F31: files of others in a dataset's folder


OURS = ("episodes/000002.h5.1.tmp", "episodes/000009.h5.4194304.tmp", "episodes.jsonl.77.tmp", "meta.json.1.tmp")
THEIRS = (
    "notes.tmp", "thesis.h5.1.tmp", "episodes/notes.tmp", "episodes/left.h5.1.tmp", "episodes/000002.h5.tmp",
    "episodes/000002.h5.1.tmp.bak", "episodes/thesis.h5",
)  # fmt: skip


def test_resuming_removes_our_unfinished_files_and_no_others(copy, recorded):
    for name in (*OURS, *THEIRS):
        (copy / name).write_text("all my work")
    collect_small(copy, resume=True)
    assert contents(copy) == contents(recorded) | dict.fromkeys(THEIRS, b"all my work")


@pytest.mark.parametrize("name", [*THEIRS, "episodes/000000.h5", "episodes/folder/", "env.json"])
def test_a_folder_with_anything_else_is_not_vacant(tmp_path, log_file, recorded, name):
    path = tmp_path / "dataset"
    (path / name).parent.mkdir(parents=True)
    (path / name).mkdir() if name.endswith("/") else (path / name).write_text("all my work")
    (path / "episodes.jsonl.77.tmp").write_text("half")
    before = contents(path)
    assert not Demonstrations.vacant(path)
    for make in (
        collect_small,
        lambda path: rebuild(log_file, path),
        lambda path: Demonstrations.from_episodes(path, [own(3)]),
        lambda path: Demonstrations.create(path, Demonstrations.open(recorded).meta),
    ):
        with pytest.raises(FileExistsError, match="already exists; choose another folder") as caught:
            make(path)
        one_line(caught.value)
    assert contents(path) == before
    assert (path / name).exists()
    assert not (path / LOCK).exists()


@pytest.mark.parametrize("unfinished", [False, True])
def test_what_a_killed_creation_left_is_no_obstacle(tmp_path, recorded, unfinished):
    path = tmp_path / "dataset"
    (path / "episodes").mkdir(parents=True)
    for name in ("meta.json.1.tmp", "episodes.jsonl", LOCK, "episodes/000000.h5.1.tmp"):
        (path / name).write_text("half" if name.endswith("tmp") else "")
    if unfinished:  # own data, killed before the last episode
        for name in ("unfinished.json", "episodes.jsonl", "episodes/000000.h5", "episodes/000001.h5"):
            (path / name).write_text("half")
    assert Demonstrations.vacant(path)
    collect_small(path, resume=True)
    assert contents(path) == contents(recorded)


def test_own_data_that_is_killed_is_no_dataset_and_can_be_written_again(tmp_path):
    class Killed(BaseException):
        pass

    def dying():
        yield own(3)
        clear.append(contents(tmp_path / "dataset"))
        raise Killed

    clear: list[dict[str, Any]] = []
    with pytest.raises(Killed):
        Demonstrations.from_episodes(tmp_path / "dataset", dying())
    assert list(tmp_path.iterdir()) == []
    for name, content in clear[0].items():  # as if the process had been killed there
        (tmp_path / "dataset" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dataset" / name).write_bytes(content if isinstance(content, bytes) else b"\n".join(content))
    with pytest.raises(DatasetError, match=r"meta.json is missing"):
        Demonstrations.open(tmp_path / "dataset")
    again = Demonstrations.from_episodes(tmp_path / "dataset", [own(3), own(4)])
    assert Demonstrations.open(tmp_path / "dataset").verify() == []
    assert [row["length"] for row in again.rows] == [3, 4]
    assert set(contents(tmp_path / "dataset")) == {
        "meta.json", "episodes.jsonl", "episodes/000000.h5", "episodes/000001.h5"
    }  # fmt: skip


def test_a_folder_beside_own_data_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("os.getpid", lambda: 77)
    (tmp_path / "dataset.77.tmp").mkdir()
    (tmp_path / "dataset.77.tmp" / "chapter.tex").write_text("all my work")
    Demonstrations.from_episodes(tmp_path / "dataset", [own(3)])
    assert (tmp_path / "dataset.77.tmp" / "chapter.tex").read_text() == "all my work"


# F19: a failed creation leaves nothing, and the corrected one works


@pytest.mark.parametrize(
    "wrong",
    [
        {"seed": -1}, {"seed": 2**63}, {"env": replace(ENV, max_steps=10**9)}, {"workers": -1}, {"seeds": [2**64]},
        {"seeds": list(range(10**6)), "env": replace(ENV, max_steps=10**6)},
    ],
)  # fmt: skip
def test_a_bad_setting_is_named_before_there_is_a_folder(tmp_path, wrong):
    with pytest.raises(ValueError, match=r"must|free some space") as caught:
        collect_small(tmp_path / "runs" / "dataset", **wrong)
    one_line(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "wrong", [{"probability": 1}, {"probability": -0.1}, {"probability": float("nan")}, {"hold": 0}]
)
def test_bad_noise_is_named(wrong):
    with pytest.raises(ValueError, match=r"noise .* must"):
        NoiseConfig(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"driver": "a\nb"}, {"driver": "x" * 300}, {"dt": -1.0}, {"dt": 1e4}, {"seeds": [-1]}]
)
def test_bad_own_data_leaves_nothing(tmp_path, wrong):
    with pytest.raises(ValueError, match=r"driver's name|dt of episode 0|seed of episode 0") as caught:
        Demonstrations.from_episodes(tmp_path / "own" / "dataset", [own(3)], **wrong)
    one_line(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failing", ["episodes.jsonl", "meta.json", "unfinished.json"])
def test_a_creation_that_the_disk_refuses_leaves_nothing(tmp_path, recorded, monkeypatch, failing):
    real = create.write_atomically

    def refuse(path: Path, content: bytes) -> None:
        if path.name == failing:
            raise OSError(28, "No space left on device")
        real(path, content)

    monkeypatch.setattr(create, "write_atomically", refuse)
    makers = [lambda path: Demonstrations.from_episodes(path, [own(3)])]
    if failing != "unfinished.json":
        meta = Demonstrations.open(recorded).meta
        makers = [collect_small, lambda path: Demonstrations.create(path, meta)]
    for make in makers:
        with pytest.raises(WriteError, match="No space left on device"):
            make(tmp_path / "dataset")
        assert list(tmp_path.iterdir()) == []


def test_meta_that_could_not_be_read_again_is_refused(recorded):
    meta: Meta = Demonstrations.open(recorded).meta
    for wrong in ({"seed": -1}, {"driver": "\x1b[2J"}, {"env": replace(ENV, max_steps=1_000_001)}):
        with pytest.raises(ValueError, match="must"):
            replace(meta, **wrong)


# F28: one process at a time


def test_a_dataset_in_use_is_refused_in_one_line(copy, recorded, tmp_path, log_file):
    for make in (
        lambda: collect_small(copy, resume=True),
        lambda: rebuild(log_file, copy, resume=True),
        lambda: collect_small(tmp_path / "new"),
        lambda: Demonstrations.from_episodes(tmp_path / "new", [own(3)]),
    ):
        with locked(copy), locked(tmp_path / "new"), pytest.raises(FolderInUseError, match="in use") as caught:
            make()
        one_line(caught.value)
    assert contents(copy) == contents(recorded)
    assert not (tmp_path / "new").exists()
    collect_small(copy, resume=True)


def test_every_writer_holds_the_dataset(tmp_path, log_file):
    def check(path: Path) -> None:
        with pytest.raises(FolderInUseError), locked(path):
            pytest.fail("two processes write to one dataset")

    collect_small(tmp_path / "one", progress=lambda event: check(tmp_path / "one"))
    rebuild(log_file, tmp_path / "two", progress=lambda event: check(tmp_path / "two"))

    def episodes():
        yield own(3)
        check(tmp_path / "three")

    Demonstrations.from_episodes(tmp_path / "three", episodes())
    for name in ("one", "two", "three"):
        with locked(tmp_path / name):  # it was let go of
            pass
    assert json.loads((tmp_path / "three" / "meta.json").read_text())["driver"] == "own data"
