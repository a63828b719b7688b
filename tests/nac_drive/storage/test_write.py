"""Safe writing: whole or not at all, and errors of one line."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys

import pytest

from nac_drive.storage import write as files
from nac_drive.storage.write import WriteError, remove_leftovers, sync_tree, temporary_path, write_atomically, writing


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / "file"
    for content in (b"one", b"", b"two" * 10_000):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_link_in_place_of_the_temporary_file_is_not_followed(tmp_path):
    victim, path = tmp_path / "victim", tmp_path / "file"
    victim.write_bytes(b"theirs")
    temporary_path(path).symlink_to(victim)
    write_atomically(path, b"ours")
    assert (victim.read_bytes(), path.read_bytes()) == (b"theirs", b"ours")
    assert not path.is_symlink()


def test_what_killed_processes_left_is_removed_and_the_work_of_others_stays(tmp_path):
    """A start in a container has the number of the killed one."""
    path, parent = tmp_path / "file", os.getppid()
    left = [temporary_path(path), tmp_path / "file.4194304.tmp", tmp_path / f"file.{10**30}.tmp"]
    stays = {"file", f"file.{parent}.tmp", "file.x.tmp", "other.4194304.tmp", "file.4194304.tmp.txt"}
    for name in (*(each.name for each in left), *stays):
        (tmp_path / name).touch()
    remove_leftovers(path)
    assert {each.name for each in tmp_path.iterdir()} == stays
    for name in left:
        name.touch()
    write_atomically(path, b"new")
    assert {each.name for each in tmp_path.iterdir()} == stays


def test_a_write_removes_what_killed_processes_left_of_its_file(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()  # no process has its number any more
    left = [tmp_path / f"{name}.{number}.tmp" for name in ("file", "other") for number in (process.pid, os.getppid())]
    for file in left:
        file.write_bytes(b"half")
    write_atomically(tmp_path / "file", b"new")
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "file", *left[1:]])


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_content_and_nothing_beside_it(tmp_path, monkeypatch, call):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, call, full)
        with pytest.raises(WriteError, match=f"cannot write {re.escape(str(path))}: No space left .*; free some space"):
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EDQUOT, "free some space"),
        (errno.EACCES, "make the folder writable or choose another"),
        (errno.EROFS, "make the folder writable"),
        (errno.EIO, "choose another folder or repair the disk"),
    ],
)
def test_an_error_becomes_one_line_with_cause_and_fix(tmp_path, code, fix):
    with pytest.raises(WriteError) as caught, writing(tmp_path / "run"):
        raise OSError(code, os.strerror(code))
    message = str(caught.value)
    assert message.startswith(f"cannot write {tmp_path / 'run'}: {os.strerror(code)}; ")
    assert fix in message
    assert "\n" not in message


def test_what_is_no_failed_write_passes(tmp_path):
    with pytest.raises(FileExistsError), writing(tmp_path):
        raise FileExistsError("already there")
    with pytest.raises(KeyError), writing(tmp_path):
        raise KeyError("a bug is a bug")


def test_a_tree_is_synced_file_by_file(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_text("x")
    synced, real = [], os.fsync

    def spy(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(files.os, "fsync", spy)
    sync_tree(tmp_path)
    assert set(synced) == {str(tmp_path / name) for name in ("", "a", "a/b", "a/b/file")} | {str(tmp_path)} - {""}
