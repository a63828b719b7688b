"""Files of datasets that somebody else made, with hashes that fit: a sound episode, or one line and no memory."""

from __future__ import annotations

import json
import shutil
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from nac_drive.data_collection.dataset import episode_file, limits
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.episode_file import EncodedEpisode, encode_episode, read_episode
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.dataset.meta import Meta
from nac_drive.data_collection.replay import save_action_log
from tests.data_collection.dataset.test_demonstrations import random_episode
from tests.data_collection.recordings import ENV, NOISE, rewrite_row, tamper
from tests.slow import slow_but

LENGTH = 20
"""Frames of an episode."""
MEMORY = 8 * 2**20
"""Bytes that a refusal may take."""


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """A dataset of three episodes of grey frames."""
    path = tmp_path_factory.mktemp("small") / "dataset"
    dataset = Demonstrations.create(path, Meta(ENV, "controller", "0", NOISE, 0))
    for index in range(3):
        arrays, summary = random_episode(LENGTH, "discrete", index)
        arrays = replace(arrays, frames=np.full_like(arrays.frames, index))
        summary["return"] = float(np.cumsum(arrays.reward)[-1])
        dataset.append(EncodedEpisode.encode(index, arrays, summary).write(path))
    return path


@pytest.fixture
def copy(small, tmp_path) -> Path:
    """A copy of it."""
    return shutil.copytree(small, tmp_path / "dataset")


def refused(path: Path, match: str, *, stream: bool = True, info: bool = True) -> None:
    """Whatever reads episode 0 ends in one line. `stream` and `info` do where they are True, as they read parts."""
    dataset = Demonstrations.open(path)
    for read in (dataset.load, *([dataset.stream] * stream), *([dataset.info] * info)):
        with pytest.raises(DatasetError, match=match) as caught:
            read()
        assert "\n" not in str(caught.value)
        assert "000000.h5" in str(caught.value)
    assert "000000.h5" in " ".join(dataset.verify())


@contextmanager
def few_megabytes() -> Iterator[None]:
    """The block takes no more than `MEMORY`."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MEMORY


# F2: values, and F5 and F9: storage


def put(name: str, values: Any, **storage: Any) -> Callable[[h5py.File], None]:
    """Replace an array."""

    def change(file: h5py.File) -> None:
        del file[name]
        data = np.asarray(values)
        file.create_dataset(name, data=data, **{"chunks": data.shape, "compression": "gzip", **storage})

    return change


def at(name: str, value: Any) -> Callable[[h5py.File], None]:
    """Replace one value of an array."""

    def change(file: h5py.File) -> None:
        file[name][LENGTH // 2] = value  # type: ignore[index]

    return change


def attribute(name: str, value: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        file.attrs[name] = value

    return change


def link(name: str, target: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[name]
        file[name] = target

    return change


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout(shape=(LENGTH,), dtype="f8")
    layout[:] = h5py.VirtualSource("000002.h5", "reward", shape=(LENGTH,))
    del file["reward"]
    file.create_virtual_dataset("reward", layout)


def external(file: h5py.File) -> None:
    del file["reward"]
    file.create_dataset("reward", shape=(LENGTH,), dtype="f8", external=[("victim.bin", 0, h5py.h5f.UNLIMITED)])


def sparse(rows: int) -> Callable[[h5py.File], None]:
    """Declare a long episode of which nothing is stored: 8 KB for 27 GB."""

    def change(file: h5py.File) -> None:
        for name in ("frames", "label", "action", "reward", "dt", "zooming"):
            dtype, shape = file[name].dtype, (rows + (name == "frames"), *file[name].shape[1:])  # type: ignore
            del file[name]
            file.create_dataset(name, shape=shape, dtype=dtype, compression="gzip", chunks=(16, *shape[1:]))
        file.attrs["length"] = rows

    return change


def chunk(name: str, content: bytes, mask: int = 0) -> Callable[[h5py.File], None]:
    """Write the first chunk of an array as it is."""

    def change(file: h5py.File) -> None:
        dataset: Any = file[name]
        dataset.id.write_direct_chunk((0,) * dataset.ndim, content, mask)

    return change


BOMB = zlib.compress(bytes(2**25), 1)
"""32 MiB in 150 KB."""

EPISODES: dict[str, tuple[Callable[[h5py.File], Any], str]] = {
    "label too large": (at("label", 7), "label has a value outside of 0 to 4"),
    "label huge": (at("label", 2**62), "label has a value outside of 0 to 4"),
    "label negative": (at("label", -1), "label has a value outside"),
    "label ignored by torch": (at("label", -100), "label has a value outside"),
    "action negative": (at("action", -1), "action has a value outside"),
    "dt negative": (at("dt", -5.0), "dt has a value outside of 0 to 3600"),
    "dt huge": (at("dt", 1e30), "dt has a value outside of 0 to 3600"),
    "dt nan": (at("dt", np.nan), "dt has a value outside"),
    "reward infinite": (at("reward", np.inf), "reward has a value outside"),
    "speed nan": (at("telemetry/speed", np.nan), "telemetry/speed has a value outside"),
    "lateral offset nan": (at("telemetry/lateral_offset", np.nan), "telemetry/lateral_offset has a value outside"),
    "completion -7": (at("telemetry/completion", -7), "telemetry/completion has a value outside of 0 to 1"),
    "completion 1.5": (at("telemetry/completion", 1.5), "telemetry/completion has a value outside of 0 to 1"),
    "wheels -1": (at("telemetry/wheels_off_road", -1), "telemetry/wheels_off_road has a value outside of 0"),
    "completed -7": (attribute("completion", -7.0), "Expected `float` >= 0"),
    "completed 1.5": (attribute("completion", 1.5), "Expected `float` <= 1"),
    "no truth value": (chunk("zooming", zlib.compress(bytes([7] * LENGTH))), "zooming has a value outside of 0 to 1"),
    "dt complex": (put("dt", np.zeros(LENGTH, complex)), "dt is complex128"),
    "label wide": (put("label", np.zeros(LENGTH, np.int32)), "label is int32"),
    "label float": (put("label", np.zeros(LENGTH)), "label is float64"),
    "label of text": (put("label", np.array([b"left"] * LENGTH)), r"label is \|S4"),
    "label of objects": (put("label", np.array(["left"] * LENGTH, dtype=h5py.string_dtype())), "label is object"),
    "label continuous": (put("label", np.zeros((LENGTH, 3), np.float32)), "label is float32"),
    "reward short": (put("reward", np.zeros(19)), r"reward is float64 \(19,\), expected float64 \(20,\)"),
    "frames wide": (put("frames", np.zeros((LENGTH + 1, 96, 96, 3), np.uint16)), "frames is uint16"),
    "frames small": (put("frames", np.zeros((LENGTH + 1, 64, 64, 3), np.uint8)), "frames is uint8"),
    "a frame too many": (put("frames", np.zeros((LENGTH + 2, 96, 96, 3), np.uint8)), "frames is uint8"),
    "no frames": (lambda file: file.__delitem__("frames"), "frames is missing"),
    "no telemetry": (lambda file: file.__delitem__("telemetry/speed"), "speed is missing"),
    "a group": (lambda file: (file.__delitem__("dt"), file.create_group("dt")), "dt is no dataset"),
    "telemetry an array": (
        lambda file: (file.__delitem__("telemetry"), file.create_dataset("telemetry", data=np.zeros(LENGTH))),
        "telemetry is no group",
    ),
    "unknown array": (lambda file: file.create_dataset("secrets", data=[1]), "it holds 'secrets'"),
    "unknown telemetry": (lambda file: file.create_dataset("telemetry/fuel", data=[1.0]), "it holds 'fuel'"),
    "schema": (attribute("schema", "nac-drive episode 9"), "its schema is 'nac-drive episode 9'"),
    "schema of bytes": (attribute("schema", np.zeros(1000)), "attribute schema is float64"),
    "unknown attribute": (attribute("comment", "hello"), "attribute 'comment'"),
    "no seed": (lambda file: file.attrs.__delitem__("seed"), "missing required field `seed`"),
    "seed negative": (attribute("seed", -1), "Expected `int` >= 0"),
    "seed of text": (attribute("seed", "eleven"), "Expected `int`"),
    "seed an array": (attribute("seed", np.zeros(1000, int)), "attribute seed is int64"),
    "length zero": (attribute("length", 0), "Expected `int` >= 1"),
    "length other": (attribute("length", 19), "expected"),
    "return nan": (attribute("return", np.nan), "Expected `float`"),
    "return infinite": (attribute("return", np.inf), "Expected `float`"),
    "terminated twice": (attribute("terminated", 2), "Expected `bool`"),
    "crashes a fraction": (attribute("crashes", 0.5), "Expected `int`"),
    "round negative": (attribute("round", -1), "Expected `int"),
    "external link": (link("label", h5py.ExternalLink("000002.h5", "label")), "label is a link to another place"),
    "soft link": (link("label", h5py.SoftLink("/action")), "label is a link to another place"),
    "linked group": (link("telemetry", h5py.ExternalLink("000002.h5", "telemetry")), "telemetry is a link"),
    "linked telemetry": (link("telemetry/speed", h5py.SoftLink("/dt")), "speed is a link"),
    "virtual": (virtual, "reward is not stored in chunks of the file"),
    "external storage": (external, "reward is not stored in chunks of the file"),
    "in one piece": (put("reward", np.zeros(LENGTH), chunks=None, compression=None), "not stored in chunks"),
    "not packed": (put("reward", np.zeros(LENGTH), compression=None), "reward is stored with another filter"),
    "another filter": (put("reward", np.zeros(LENGTH), compression="lzf"), "reward is stored with another filter"),
    "two filters": (put("reward", np.zeros(LENGTH), shuffle=True), "reward is stored with another filter than gzip"),
    "filter left out": (chunk("reward", bytes(160), mask=1), "reward is not stored whole"),
    "long and sparse": (sparse(2000), "is not stored whole"),
    "longer and sparse": (sparse(10**6), "would unpack to 27,6.. bytes|would unpack to"),
    "too long": (sparse(10**6 + 1), "Expected `int` <= 1000000"),
    "a bomb in a column": (chunk("reward", BOMB), "chunk 0 of reward is not 160 bytes"),
    "a bomb in the frames": (chunk("frames", BOMB), "chunk 0 of frames is not 442368 bytes"),
    "a short chunk": (chunk("frames", zlib.compress(bytes(100))), "chunk 0 of frames is not 442368 bytes"),
    "a cut chunk": (chunk("frames", BOMB[:1000]), "chunk 0 of frames is not|incorrect|incomplete"),
}  # fmt: skip


BOMBS = ("long and sparse", "longer and sparse", "too long", "a bomb in a column", "a bomb in the frames")
FRAMES, TELEMETRY = "chunk 0 of frames", "telemetry/"
"""Faults in values that `stream` reads later or never; `info` does not read frames."""


@pytest.mark.parametrize("kind", slow_but([*EPISODES][::3], EPISODES))
def test_an_episode_of_another_kind_is_refused_before_it_is_unpacked(copy, kind):
    change, message = EPISODES[kind]
    tamper(copy, 0, change)
    with few_megabytes() if kind in BOMBS else nullcontext():
        refused(copy, message, stream=not message.startswith((FRAMES, TELEMETRY)), info=not message.startswith(FRAMES))


def test_a_row_that_is_longer_than_its_file_takes_no_memory(copy):
    rewrite_row(copy, 0, length=10**6)
    with few_megabytes():
        refused(copy, "would unpack to 27,648,000,000 bytes")


def test_frames_that_hardly_differ_are_refused_when_they_are_written(tmp_path, monkeypatch):
    black = {"observations": np.zeros((200, 96, 96, 3), np.uint8), "actions": np.zeros(200, int)}
    assert not Demonstrations.from_episodes(tmp_path / "short", [black]).load().frames.any()
    monkeypatch.setattr(limits, "_ALLOWANCE", 2**20)
    with pytest.raises(DatasetError, match=r"would unpack to 5,5.* bytes, and .* stored bytes may hold 2,"):
        Demonstrations.from_episodes(tmp_path / "dataset", [black])
    assert not (tmp_path / "dataset").exists()


def test_a_file_of_another_size_of_chunks_is_read(tmp_path, monkeypatch):
    arrays, summary = random_episode(40, "discrete", 0)
    monkeypatch.setattr(episode_file, "CHUNK_FRAMES", 7)
    (tmp_path / "000000.h5").write_bytes(encode_episode(arrays, summary))
    back, _ = read_episode(tmp_path / "000000.h5", ENV)
    np.testing.assert_array_equal(back.frames, arrays.frames)


# F8: the recorded file


def test_a_changed_label_is_seen_wherever_the_episode_is_read(copy):
    with h5py.File(copy / "episodes" / "000000.h5", "r+") as file:
        file["label"][3] = (file["label"][3] + 1) % 5  # type: ignore[index, operator]
    refused(copy, "content has changed since it was recorded")
    with pytest.raises(DatasetError, match="content has changed since it was recorded"):
        save_action_log(copy, copy.parent / "log.npz")


def test_a_file_is_hashed_once_in_a_process(copy, monkeypatch):
    hashed: list[str] = []
    real = episode_file.file_sha256
    monkeypatch.setattr(episode_file, "file_sha256", lambda path: (hashed.append(path.name), real(path))[1])
    for _ in range(2):
        dataset = Demonstrations.open(copy)
        dataset.load()
        dataset.stream([1])
        dataset.info()
    assert sorted(hashed) == ["000000.h5", "000001.h5", "000002.h5"]
    shutil.copy(copy / "episodes" / "000002.h5", copy / "episodes" / "000001.h5")
    with pytest.raises(DatasetError, match=r"000001.h5 cannot be read: its content has changed"):
        dataset.load()


# F2 and F6: rows and settings

ROWS: dict[str, Any] = {
    "null": "null", "a list": "[]", "a number": "7", "text": '"row"', "empty": "", "half": '{"index": 1',
    "no text": "\x00", "deep": "[" * 100_000, "deep object": '{"index":' * 100_000, "nan": {"return": float("nan")},
    "infinite": {"return": float("inf")}, "index negative": {"index": -1}, "index a fraction": {"index": 1.5},
    "index of text": {"index": "1"}, "index huge": {"index": 10**30}, "index true": {"index": True},
    "seed negative": {"seed": -1}, "seed huge": {"seed": 2**63}, "length zero": {"length": 0},
    "length huge": {"length": 10**6 + 1}, "return of text": {"return": "much"}, "terminated 1": {"terminated": 1},
    "completion -7": {"completion": -7}, "completion 1.5": {"completion": 1.5}, "completion nan": {"completion": None},
    "crashes negative": {"crashes": -1}, "round of text": {"round": "one"}, "round null": {"round": None},
    "hash short": {"sha256": "0" * 63}, "hash upper": {"sha256": "A" * 64}, "unknown key": {"comment": "x" * 10},
    "file a list": {"file": []}, "repeated": {"index": 0, "file": "episodes/000000.h5"},
}  # fmt: skip


@pytest.mark.parametrize("kind", ROWS)
def test_a_row_of_another_kind_is_refused_in_one_line(copy, kind):
    lines = (copy / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    row = ROWS[kind]
    line = row if isinstance(row, str) else json.dumps(json.loads(lines[1]) | row)
    lines[1] = line.encode() + b"\n"
    (copy / "episodes.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(DatasetError, match=r"episodes.jsonl, line 2 (is not an episode|repeats episode 0)") as caught:
        Demonstrations.open(copy)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def changed(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda document: document | values


METAS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "null": lambda document: None,
    "a list": lambda document: [document],
    "no env": lambda document: {key: value for key, value in document.items() if key != "env"},
    "env null": changed(env=None),
    "env unknown key": lambda document: document | {"env": document["env"] | {"wheels": 4}},
    "env of text": lambda document: document | {"env": document["env"] | {"max_steps": "60"}},
    "env a fraction": lambda document: document | {"env": document["env"] | {"max_steps": 60.5}},
    "env without an end": lambda document: document | {"env": document["env"] | {"max_steps": 10**9}},
    "env of control": lambda document: document | {"env": document["env"] | {"control": ["discrete"]}},
    "env of bar": lambda document: document | {"env": document["env"] | {"mask_bar": 0}},
    "env of a place": lambda document: document | {"env": document["env"] | {"environment": "moon"}},
    "noise of text": changed(noise={"probability": "much", "hold": 4}),
    "noise of nan": changed(noise={"probability": float("nan"), "hold": 4}),
    "noise range": changed(noise={"probability": 1.5, "hold": 4}),
    "noise key": changed(noise={"probability": 0.5, "hold": 4, "colour": "pink"}),
    "noise empty list": changed(noise=[]),
    "driver null": changed(driver=None),
    "driver of control characters": changed(driver="\x1b[2J"),
    "hash a number": changed(driver_sha256=0),
    "seed negative": changed(seed=-1),
    "seed huge": changed(seed=2**64),
    "seed of text": changed(seed="0"),
    "versions a list": changed(versions=["numpy"]),
    "versions numbers": changed(versions={"numpy": 2}),
    "unknown key": changed(extra=1),
}


@pytest.mark.parametrize("kind", METAS)
def test_settings_of_another_kind_are_refused_in_one_line(copy, kind):
    document = json.loads((copy / "meta.json").read_text())
    (copy / "meta.json").write_text(json.dumps(METAS[kind](document)))
    with pytest.raises(DatasetError, match=r"meta.json is not a dataset's meta.json: ") as caught:
        Demonstrations.open(copy)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b'{"env":' * 100_000, b"\xff\xfe", b"{}" + b" " * 5_000_000])
def test_settings_that_are_no_document_are_refused_in_one_line(copy, content):
    (copy / "meta.json").write_bytes(content)
    with pytest.raises(DatasetError, match=r"meta.json is not a dataset's meta.json: ") as caught:
        Demonstrations.open(copy)
    assert "\n" not in str(caught.value)


# F4: the fingerprint


def test_the_fingerprint_is_that_of_the_set(small, copy):
    dataset = Demonstrations.open(small)
    lines = (small / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "episodes.jsonl").write_bytes(b"".join([lines[2], lines[0], lines[1]]))  # as two workers may end
    other = Demonstrations.open(copy)
    assert other.rows == dataset.rows
    assert other.fingerprint() == dataset.fingerprint()
    rewrite_row(copy, 1, crashes=9)
    assert Demonstrations.open(copy).fingerprint() != dataset.fingerprint()
