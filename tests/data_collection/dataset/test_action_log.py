"""The file of an action log: it comes back whole, or it is refused with the reason."""

from __future__ import annotations

import io
import json
import re
import tracemalloc
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nac_drive.data_collection.dataset import limits
from nac_drive.data_collection.dataset.action_log import ActionLog, encode_action_log, read_action_log
from nac_drive.data_collection.dataset.demonstrations import DatasetError, Demonstrations
from nac_drive.data_collection.replay import rebuild, save_action_log
from nac_drive.envs import EnvConfig
from tests.data_collection.recordings import contents

SHIPPED = Path(__file__).parents[3] / "action_logs"


def test_the_same_dataset_gives_the_same_bytes_and_they_hold_everything(log_file, recorded, tmp_path):
    recorded = Demonstrations.open(recorded)
    save_action_log(recorded, tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == log_file.read_bytes()
    log, frames = read_action_log(log_file), recorded.load()
    assert log.meta == recorded.meta
    assert encode_action_log(log) == log_file.read_bytes()
    np.testing.assert_array_equal(np.concatenate([episode.action for episode in log.episodes]), frames.actions)
    np.testing.assert_array_equal(np.concatenate([episode.label for episode in log.episodes]), frames.labels)
    assert [episode.summary for episode in log.episodes] == [
        {key: row[key] for key in row if key not in ("index", "file", "sha256")} for row in recorded.rows
    ]


def test_a_flipped_bit_is_refused_or_changes_nothing(log_file, tmp_path):
    content, messages = log_file.read_bytes(), []
    for place in range(0, len(content), 3):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path = tmp_path / "damaged.npz"
        path.write_bytes(damaged)
        try:
            read = read_action_log(path)  # an archive has idle bits, such as the date's
            assert encode_action_log(read) == content, place
        except DatasetError as error:
            messages.append(str(error))
    assert len(messages) > 0.8 * len(content) / 3
    assert all(str(path) in line and "\n" not in line for line in messages)


def foreign(path: Path, kind: str, file: Path) -> str:
    """Make a file that is no action log. Return the words that the error must contain."""
    log = read_action_log(file)
    with np.load(file) as stored:
        arrays: dict[str, Any] = dict(stored)
    document = json.loads(arrays["action_log"].item())

    def save(**changed: Any) -> None:
        np.savez(path, **{**arrays, **changed})

    def save_document(**changed: Any) -> None:
        save(action_log=np.bytes_(json.dumps(document | changed).encode()))

    episodes, env = document["episodes"], document["dataset"]["env"]
    match kind:
        case "missing":
            return "there is no such file"
        case "folder":
            path.mkdir()
            return "no npz archive"
        case "text":
            path.write_text("all my work")
            return "no npz archive"
        case "cut short":
            path.write_bytes(file.read_bytes()[:-30])
            return "cut short"
        case "other npz":
            np.savez(path, weights=np.zeros(3))
            return "action_log"
        case "pickle":
            save(action_log=np.array([{"schema": 1}], dtype=object))
            return "action_log.npy is object (1,)"
        case "list":
            save(action_log=np.bytes_(b"[]"))
        case "other schema":
            save_document(schema="cookery")
            return "its schema is 'cookery', expected 'nac-drive action log 1'"
        case "other dataset schema":
            save_document(dataset=document["dataset"] | {"schema": "minari"})
            return "'minari'"
        case "other environment":
            save_document(dataset=document["dataset"] | {"env": env | {"wheels": 4}})
            return "wheels"
        case "no episodes":
            save_document(episodes=[])
            return "expected uint8 (0,)"
        case "an episode too many":
            save_document(episodes=[*episodes, episodes[0]])
            return "action is uint8 (180,), expected uint8 (240,)"
        case "other control":
            save_document(dataset=document["dataset"] | {"env": env | {"control": "continuous"}})
            return "action is uint8 (180,), expected float32 (180, 3)"
        case "wide labels":
            save(label=arrays["label"].astype(np.int64))
            return "label is int64"
        case "no track":
            save_document(episodes=[episodes[0] | {"seed": -1}, *episodes[1:]])
            return "Expected `int` >= 0 - at `$.episodes[0].seed`"
        case "no reason to end":
            save_document(dataset=document["dataset"] | {"env": env | {"max_steps": 61}})
            return "episode 0 has 60 frames of 61"
        case "sixth action":
            save(action=arrays["action"] | np.uint8(8))
            return "value of action outside of 0 to 4"
        case "sixth label":
            save(label=arrays["label"] | np.uint8(8))
            return "value of label outside of 0 to 4"
        case "not finite" | "too much gas":
            bad = np.float32("nan") if kind == "not finite" else np.float32(1.5)
            episode = replace(log.episodes[0], action=np.full((60, 3), bad), label=np.zeros((60, 3), np.float32))
            object.__setattr__(log, "document", document["dataset"] | {"env": env | {"control": "continuous"}})
            object.__setattr__(log, "episodes", [episode])
            path.write_bytes(encode_action_log(log))
            return "value of action outside of"
        case _:
            raise AssertionError(kind)
    return ""


@pytest.mark.parametrize(
    "kind",
    [
        "missing", "folder", "text", "cut short", "other npz", "pickle", "list", "other schema", "other dataset schema",
        "other environment", "no episodes", "an episode too many", "other control", "wide labels", "no track",
        "no reason to end", "sixth action", "sixth label", "not finite", "too much gas",
    ],
)  # fmt: skip
def test_a_foreign_file_is_named_before_there_is_a_folder(log_file, tmp_path, kind):
    path = tmp_path / "foreign.npz"
    message = foreign(path, kind, log_file)
    before = contents(tmp_path)
    with pytest.raises(DatasetError, match=r"pass a file of `nac-drive dataset action-log`") as caught:
        rebuild(path, tmp_path / "dataset")
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before
    assert not (tmp_path / "dataset").exists()


# Bombs: little on disk, much in memory


def npy(array: np.ndarray, **header: Any) -> bytes:
    """An array as a member of an archive, with another header."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape, **header}
    )
    return file.getvalue() + array.tobytes()


def archive(path: Path, members: list[tuple[str, bytes]], compression: int = zipfile.ZIP_DEFLATED) -> None:
    with zipfile.ZipFile(path, "w", compression) as file, warnings.catch_warnings(action="ignore"):
        for name, content in members:
            file.writestr(name, content)


BOMBS: dict[str, str] = {
    "many zeros": "would unpack to 8.,...,... bytes",
    "a long document": "would unpack to 7.,...,... bytes",
    "many values": "its action_log.npy would unpack to more than 4,194,304 bytes",
    "many values in 1 MB": "its dataset is not a meta.json: it holds more than 524,288 values",
    "a long shape": "label.npy is uint8 (1099511627776,), which 180 bytes do not hold",
    "a negative shape": "action.npy is uint8 (-180,), which 180 bytes do not hold",
    "a size that lies": "would unpack to 4,...,...,... bytes",
    "a long header": "Header info length",
    "a fourth member": "expected action_log.npy, action.npy, label.npy",
    "a member twice": "expected action_log.npy, action.npy, label.npy",
    "another packing": "action_log.npy is not packed by deflate",
    "by columns": "which",
    "deep": "nested too deeply",
    "nan": "invalid character",
    "null episode": "Expected `object`, got `null` - at `$.episodes[0]`",
    "a long episode": "Expected `int` <= 1000000 - at `$.episodes[0].length`",
    "no hash": "missing required field `sha256`",
    "another hash": "Object contains unknown field `labels` - at `$.episodes[0].sha256`",
    "an unknown key": "Object contains unknown field `comment` - at `$.episodes[0]`",
    "a deep setting": "wheels",
}


def bomb(path: Path, kind: str, log_file: Path) -> None:
    with zipfile.ZipFile(log_file) as file:
        log, action, label = (file.read(f"{name}.npy") for name in ("action_log", "action", "label"))
    document = json.loads(np.load(log_file)["action_log"].item())
    episode, compression = document["episodes"][0], zipfile.ZIP_DEFLATED
    match kind:
        case "many zeros":
            action = label = npy(np.zeros(40 * 2**20, np.uint8))
        case "a long document":
            log = npy(np.array(b" " * (70 * 2**20) + b"{}"))
        case "many values":
            log = npy(np.array(b'{"schema":"","dataset":{"a":[' + b"[]," * (7 * 2**20) + b"[]]}}"))
        case "many values in 1 MB":
            start = b'{"schema":"nac-drive action log 1","episodes":[],"dataset":{"a":['
            log = npy(np.array(start + b"[]," * 300_000 + b"[]]}}"))
        case "a long shape":
            label = npy(np.zeros(180, np.uint8), shape=(2**40,))
        case "a negative shape":
            action = npy(np.zeros(180, np.uint8), shape=(-180,))
        case "a long header":
            action = npy(np.zeros(180, np.uint8), comment="x" * 60_000)
        case "by columns":
            action = npy(np.zeros(180, np.uint8), fortran_order=True)
        case "another packing":
            compression = zipfile.ZIP_LZMA
        case "deep":
            log = npy(np.array(b'{"schema":"","dataset":{"a":' + b"[" * 100_000))
        case "nan":
            episode["return"] = float("nan")
        case "null episode":
            document["episodes"] = [None]
        case "a long episode":
            episode["length"] = 10**12
        case "no hash":
            del episode["sha256"]
        case "another hash":
            episode["sha256"]["labels"] = "0" * 64
        case "an unknown key":
            episode["comment"] = "hello"
        case "a deep setting":
            document["dataset"]["env"]["wheels"] = [[4]]
    if kind in ("nan", "null episode", "a long episode", "no hash", "another hash", "an unknown key", "a deep setting"):
        log = npy(np.array(json.dumps(document).encode()))
    members = [("action_log.npy", log), ("action.npy", action), ("label.npy", label)]
    members += {"a fourth member": [("label2.npy", label)], "a member twice": [("label.npy", label)]}.get(kind, [])
    archive(path, members, compression)
    if kind == "a size that lies":
        content = bytearray(path.read_bytes())
        directory = content.index(b"PK\x01\x02")
        content[directory + 24 : directory + 28] = (2**32 - 2).to_bytes(4, "little")
        path.write_bytes(content)


@pytest.mark.parametrize("kind", BOMBS)
def test_an_archive_is_checked_before_it_is_unpacked(log_file, tmp_path, kind):
    path = tmp_path / "bomb.npz"
    bomb(path, kind, log_file)
    assert path.stat().st_size < 300_000
    tracemalloc.start()
    with pytest.raises(DatasetError, match=f"no action log at {path}: ") as caught:
        read_action_log(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2**20
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert BOMBS[kind] in str(caught.value) or re.search(BOMBS[kind], str(caught.value))


def test_a_log_that_could_not_be_read_again_is_not_written(log_file, monkeypatch):
    monkeypatch.setattr(limits, "_ALLOWANCE", 100)
    log = read_action_log(log_file)
    episodes = [replace(episode, action=episode.label) for episode in log.episodes]
    long = [replace(e, action=np.zeros(60, int), label=np.zeros(60, int)) for e in episodes] * 3000
    with pytest.raises(DatasetError, match="would unpack to"):
        encode_action_log(ActionLog(log.document, long))


# Published logs


@pytest.mark.parametrize(("name", "frames", "noise"), [("expert-20", 16_110, 0.0), ("expert-20-dart", 19_728, 0.1)])
def test_published_logs_are_read(name, frames, noise):
    log = read_action_log(str(SHIPPED / f"{name}.npz"))
    assert [episode.summary["seed"] for episode in log.episodes] == list(range(20))
    assert sum(len(episode.action) for episode in log.episodes) == frames
    assert log.meta.env == EnvConfig("discrete")
    assert (log.meta.noise.probability if log.meta.noise else 0.0) == noise
    assert all(set(episode.sha256) == {"frames", "columns", "last_frame"} for episode in log.episodes)
    changed = np.mean(np.concatenate([episode.action != episode.label for episode in log.episodes]))
    assert changed == pytest.approx(0.8 * noise, abs=0.02)  # one random action in five is the intended one


@pytest.mark.parametrize("name", ["expert-20", "expert-20-dart"])
def test_a_published_log_has_the_bytes_of_its_content(name):
    path = SHIPPED / f"{name}.npz"
    assert encode_action_log(read_action_log(path)) == path.read_bytes()
