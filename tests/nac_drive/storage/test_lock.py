"""One process at a time writes to a folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nac_drive.storage.lock import LOCK, FolderInUseError, locked
from nac_drive.storage.write import WriteError, write_atomically

HOLDER = """
import sys
from nac_drive.storage.lock import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(folder: Path) -> subprocess.Popen:
    """A process that holds `folder` until its standard input is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_process_gets_one_line(tmp_path):
    (tmp_path / "row").write_text("mine")
    process = holder(tmp_path)
    with (
        pytest.raises(FolderInUseError, match=r"in use by another process; wait .* choose another") as caught,
        locked(tmp_path),
    ):
        pytest.fail("two processes hold one folder")
    assert "\n" not in str(caught.value)
    process.communicate()
    with locked(tmp_path):
        pass
    assert (tmp_path / "row").read_text() == "mine"


def test_kill_9_lets_go(tmp_path):
    process = holder(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    with locked(tmp_path), pytest.raises(FolderInUseError), locked(tmp_path):
        pytest.fail("the lock of the killed process stayed")


def test_two_holders_in_one_process(tmp_path):
    with locked(tmp_path), pytest.raises(FolderInUseError), locked(tmp_path):
        pytest.fail("two holders of one folder")


def test_folders_that_it_made_and_nothing_filled_are_removed(tmp_path):
    with locked(tmp_path / "runs" / "new"):
        assert [path.name for path in (tmp_path / "runs" / "new").iterdir()] == [LOCK]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_content_or_of_the_user_stays(tmp_path):
    with locked(tmp_path / "filled"):
        (tmp_path / "filled" / "row").touch()
    (tmp_path / "empty").mkdir()
    with locked(tmp_path / "empty"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "filled"]


def test_a_failed_start_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="bad setting"), locked(tmp_path / "run"):
        raise ValueError("bad setting")
    assert list(tmp_path.iterdir()) == []


def test_places_that_cannot_hold_a_folder(tmp_path):
    (tmp_path / "file").write_text("mine")
    places = [tmp_path / "file", tmp_path / "file" / "run"]
    if sys.platform == "linux":
        places.append(Path("/proc/nac-drive"))
    for place in places:
        with pytest.raises(WriteError, match=r"cannot write .*; choose another folder"), locked(place):
            pytest.fail("locked a place that is no folder")
    assert (tmp_path / "file").read_text() == "mine"
    if os.name == "posix" and os.getuid():  # root may write everywhere
        tmp_path.chmod(0o500)
        with pytest.raises(WriteError, match="make the folder writable"), locked(tmp_path / "run"):
            pytest.fail("locked a folder that is read-only")


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_writer_notices_that_its_folder_was_removed(tmp_path, made_anew):
    folder = tmp_path / "run"
    with locked(folder):
        write_atomically(folder / "first", b"")
        shutil.rmtree(folder)
        if made_anew:
            folder.mkdir()
            (folder / LOCK).touch()
        with pytest.raises(WriteError) as caught:
            write_atomically(folder / "second", b"")
    message = f"cannot write {folder / 'second'}: {folder} was removed or replaced while this process wrote to it"
    assert str(caught.value) == f"{message}; start again."
    assert not (folder / "second").exists()
    write_atomically(tmp_path / "other", b"")  # a folder that nobody holds any more


def test_other_folders_are_not_held(tmp_path):
    with locked(tmp_path / "run"):
        shutil.rmtree(tmp_path / "run")
        write_atomically(tmp_path / "other", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
