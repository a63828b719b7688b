"""The file of a recipe: it comes back whole, or it is refused with the reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nac_drive.data_collection.dataset.action_log import encode_action_log, read_action_log
from nac_drive.data_collection.dataset.demonstrations import DatasetError, Demonstrations
from nac_drive.data_collection.replay import rebuild, save_action_log
from tests.data_collection.recordings import ENV, contents, record_small


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Demonstrations:
    """Three episodes under noise."""
    return record_small(tmp_path_factory.mktemp("recorded") / "dataset", env=replace(ENV, renderer="fast"))


@pytest.fixture(scope="module")
def file(recorded, tmp_path_factory) -> Path:
    """Their recipe."""
    path = tmp_path_factory.mktemp("recipe") / "episodes.npz"
    save_action_log(recorded, path)
    return path


def test_the_same_dataset_gives_the_same_bytes_and_they_tell_all(file, recorded, tmp_path):
    save_action_log(recorded, tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == file.read_bytes()
    recipe, frames = read_action_log(file), recorded.load()
    assert recipe.meta == recorded.meta
    assert encode_action_log(recipe) == file.read_bytes()
    np.testing.assert_array_equal(np.concatenate([episode.action for episode in recipe.episodes]), frames.actions)
    np.testing.assert_array_equal(np.concatenate([episode.label for episode in recipe.episodes]), frames.labels)
    assert [episode.summary for episode in recipe.episodes] == [
        {key: row[key] for key in row if key not in ("index", "file", "sha256")} for row in recorded.rows
    ]


def test_a_flipped_bit_is_refused_or_changes_nothing(file, tmp_path):
    content, told = file.read_bytes(), []
    for place in range(0, len(content), 3):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path = tmp_path / "damaged.npz"
        path.write_bytes(damaged)
        try:
            assert encode_action_log(read_action_log(path)) == content, (
                place
            )  # an archive has idle bits, such as the date's
        except DatasetError as error:
            told.append(str(error))
    assert len(told) > 0.8 * len(content) / 3
    assert all(str(path) in line and "\n" not in line for line in told)


def foreign(path: Path, kind: str, file: Path) -> str:
    """Make a file that is no recipe; returns what the error must mention."""
    recipe = read_action_log(file)
    with np.load(file) as stored:
        arrays: dict[str, Any] = dict(stored)
    document = json.loads(arrays["recipe"].item())

    def save(**changed: Any) -> None:
        np.savez(path, **{**arrays, **changed})

    def save_document(**changed: Any) -> None:
        save(recipe=np.bytes_(json.dumps(document | changed).encode()))

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
            return "recipe"
        case "pickle":
            save(recipe=np.array([{"schema": 1}], dtype=object))
            return "allow_pickle=False"
        case "list":
            save(recipe=np.bytes_(b"[]"))
        case "other schema":
            save_document(schema="cookery")
            return "its schema is 'cookery', expected 'nac-drive recipe 1'"
        case "other dataset schema":
            save_document(dataset=document["dataset"] | {"schema": "minari"})
            return "'minari'"
        case "other environment":
            save_document(dataset=document["dataset"] | {"env": env | {"wheels": 4}})
            return "wheels"
        case "no episodes":
            save_document(episodes=[])
            return "expected uint8 (0,)"
        case "a episode too many":
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
            return "episode 0 is on track -1"
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
            episode = replace(recipe.episodes[0], action=np.full((60, 3), bad), label=np.zeros((60, 3), np.float32))
            object.__setattr__(recipe, "document", document["dataset"] | {"env": env | {"control": "continuous"}})
            object.__setattr__(recipe, "episodes", [episode])
            path.write_bytes(encode_action_log(recipe))
            return "value of action outside of"
        case _:
            raise AssertionError(kind)
    return ""


@pytest.mark.parametrize(
    "kind",
    [
        "missing", "folder", "text", "cut short", "other npz", "pickle", "list", "other schema", "other dataset schema",
        "other environment", "no episodes", "a episode too many", "other control", "wide labels", "no track",
        "no reason to end", "sixth action", "sixth label", "not finite", "too much gas",
    ],
)  # fmt: skip
def test_what_is_no_recipe_is_named_before_there_is_a_folder(file, tmp_path, kind):
    path = tmp_path / "foreign.npz"
    told = foreign(path, kind, file)
    before = contents(tmp_path)
    with pytest.raises(DatasetError, match=r"pass a file of `nac-drive dataset recipe`") as caught:
        rebuild(path, tmp_path / "dataset")
    assert told in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before
    assert not (tmp_path / "dataset").exists()
