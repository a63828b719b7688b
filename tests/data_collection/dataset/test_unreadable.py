"""Advice for datasets that are damaged or forbidden."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import nac_drive as nd
from nac_drive.data_collection.dataset.limits import DatasetError
from tests.commands import call, refused
from tests.data_collection.dataset.test_own_data import own
from tests.data_collection.recordings import collect_small, contents, tamper
from tests.data_collection.tubs import write_tub

RESTORE = "restore it, or write the dataset again"
RECORD = "record it again with --resume"


@pytest.fixture(params=[True, False], ids=["recorded", "own"])
def damaged(request, copy, tmp_path) -> tuple[Path, str]:
    """A dataset with a cut file, and the advice."""
    path = copy
    if not request.param:
        path = nd.Demonstrations.from_episodes(tmp_path / "own", [own(3), own(4)]).path
    file = path / "episodes/000001.h5"
    file.write_bytes(file.read_bytes()[:-20])
    return path, RECORD if request.param else RESTORE


READERS: dict[str, Callable[[Path], Any]] = {
    "load": lambda path: nd.Demonstrations.open(path).load(),
    "stream": lambda path: nd.Demonstrations.open(path).stream(),
    "info": lambda path: nd.Demonstrations.open(path).info(),
    "merge": lambda path: nd.Demonstrations.merge(path.with_name("merged"), path),
    "export": lambda path: nd.export_dataset(path, path.with_name("tub"), "tub"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("missing", [False, True])
def test_the_advice_for_a_damaged_episode_fits_the_dataset(damaged, reader, missing):
    path, advice = damaged
    if missing:
        (path / "episodes/000001.h5").unlink()
    cause = "the file is missing" if missing else "its content has changed"
    with pytest.raises(DatasetError, match=rf"000001.h5 cannot be read: {cause}.*; {advice}\.$"):
        READERS[reader](path)


def test_every_problem_has_the_fix_of_its_dataset(damaged, capsys):
    path, advice = damaged
    rows = (path / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (path / "episodes.jsonl").write_bytes(b"".join([*rows[1:], rows[0][:20]]))
    problems = nd.Demonstrations.open(path).verify()
    assert len(problems) == 4
    assert all(problem.rstrip(".").endswith(f"; {advice}") for problem in problems)
    message = refused(capsys, "dataset", "verify", str(path), "--workers", "1")
    assert message.endswith("has 4 problem(s), each listed above with its fix.\n")


def test_an_episode_that_contradicts_itself_is_deleted_first(copy, tmp_path):
    """`--resume` keeps files with the hashes of their rows."""

    def change(file: Any) -> None:
        file["reward"][1] = 9.0

    own_data = nd.Demonstrations.from_episodes(tmp_path / "own", [own(3)]).path
    for path, advice in ((copy, RECORD), (own_data, RESTORE)):
        tamper(path, 0, change)
        [problem] = nd.Demonstrations.open(path).verify()
        assert problem.endswith(f"; delete the file and {advice}")


def test_a_row_that_is_no_episode_has_the_fix_of_its_dataset(damaged):
    path, advice = damaged
    (path / "episodes.jsonl").write_text('{"episode": 1}\n')
    fix = f"delete the line and {advice}" if advice == RECORD else advice
    with pytest.raises(DatasetError, match=rf"line 1 is not an episode: .*; {fix}\.$"):
        nd.Demonstrations.open(path)
    (path / "episodes.jsonl").write_text("")
    with pytest.raises(DatasetError, match=rf"holds no finished episode; {advice}\.$"):
        nd.Demonstrations.open(path).load()


def test_own_data_that_is_damaged_has_no_action_log_for_what_it_is(damaged, tmp_path):
    path, advice = damaged
    expected = "its content has changed|the content has changed" if advice == RECORD else "own data, which was not sim"
    with pytest.raises(DatasetError, match=expected):
        nd.save_action_log(path, tmp_path / "log.npz")


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Take root's right to read any file from this thread."""
    if sys.platform != "linux":
        pytest.skip("root reads everything elsewhere")
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this thread
    rights = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, twice
    assert libc.capget(header, rights) == 0
    effective = rights[0]
    rights[0] = effective & ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, rights) == 0
    try:
        yield
    finally:
        rights[0] = effective
        assert libc.capset(header, rights) == 0


FORBIDDEN = ["episodes/000001.h5", "meta.json", "episodes.jsonl", "episodes", ""]


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_file_that_the_user_may_not_read_is_named(copy, tmp_path, name, capsys):
    before, mode = contents(copy), (copy / name).stat().st_mode
    (copy / name).chmod(0)
    try:
        with ordinary_user():
            for command in (
                ("info", str(copy)), ("merge", str(copy), "--out", str(tmp_path / "merged")),
                ("export", str(copy), "--to", "tub", "--out", str(tmp_path / "tub")),
                ("action-log", str(copy), "--out", str(tmp_path / "log.npz"), "--workers", "1"),
            ):  # fmt: skip
                message = refused(capsys, "dataset", *command)
                assert f"{copy / name} cannot be read: permission denied; give this user the right" in message, command
            assert call("dataset", "verify", str(copy), "--workers", "1") == 2
            printed = capsys.readouterr()
            assert f"{copy / name} cannot be read: permission denied" in printed.out + printed.err
            if name == FORBIDDEN[0]:
                with pytest.raises(DatasetError, match="cannot be read: permission denied"):
                    collect_small(copy, resume=True)
    finally:
        (copy / name).chmod(mode)
    assert contents(copy) == before


def test_an_action_log_that_the_user_may_not_read_is_named(log_file, tmp_path):
    log = tmp_path / "log.npz"
    log.write_bytes(log_file.read_bytes())
    log.chmod(0)
    with ordinary_user(), pytest.raises(DatasetError, match="Permission denied"):
        nd.rebuild(log, tmp_path / "data")


def test_a_source_that_the_user_may_not_read_is_named(tmp_path):
    write_tub(tmp_path / "tub", frames=4, sessions=1)
    (tmp_path / "driving_log.csv").touch()
    for source, name, use in (
        (tmp_path / "tub", "manifest.json", nd.import_tub),
        (tmp_path / "tub/catalog_0.catalog", "", lambda _, path: nd.import_tub(tmp_path / "tub", path)),
        (tmp_path / "driving_log.csv", "", nd.import_udacity),
    ):
        mode = source.stat().st_mode
        source.chmod(0)
        try:
            with (
                ordinary_user(),
                pytest.raises(DatasetError, match=f"{source / name} cannot be read: permission denied"),
            ):
                use(source, tmp_path / "data")
        finally:
            source.chmod(mode)
