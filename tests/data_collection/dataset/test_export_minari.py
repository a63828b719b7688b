"""Exports to Minari: Minari reads the same episodes, and they come back as the same dataset."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import minari
import numpy as np
import pytest
from minari.namespace import list_local_namespaces
from minari.storage import hosting

from nac_drive.data_collection.dataset.demonstrations import DatasetError, Demonstrations
from nac_drive.data_collection.interchange.export import export_dataset
from tests.commands import call
from tests.data_collection.dataset.exports import (
    CONTINUOUS,
    DISCRETE,
    ENDS,
    OWN,
    episodes_of,
    every_dataset,
    grey,
    write_minari,
)
from tests.data_collection.recordings import contents


@pytest.fixture(scope="module")
def exports(datasets, tmp_path_factory) -> dict[str, Path]:
    """Dataset -> the folder of its export; not to be changed."""
    root = tmp_path_factory.mktemp("minari")
    for name, dataset in datasets.items():
        export_dataset(dataset, root / name, "minari")
    return {name: root / name for name in datasets}


def loaded_by_minari(folder: Path, monkeypatch: pytest.MonkeyPatch) -> minari.MinariDataset:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    [dataset_id] = minari.list_local_datasets()
    return minari.load_dataset(dataset_id)


@every_dataset
def test_minari_reads_the_same_episodes(exports, datasets, name, monkeypatch):
    dataset = loaded_by_minari(exports[name], monkeypatch)
    source = datasets[name]
    assert dataset.total_episodes == len(source)
    assert dataset.total_steps == sum(row["length"] for row in source.rows)
    for episode, (arrays, summary) in zip(dataset.iterate_episodes(), episodes_of(source), strict=True):
        assert arrays.last_frame is not None
        n = summary["length"]
        np.testing.assert_array_equal(episode.observations, np.concatenate([arrays.frames, arrays.last_frame[None]]))
        assert all(dataset.observation_space.contains(frame) for frame in episode.observations)
        assert all(dataset.action_space.contains(action) for action in episode.actions)
        for stored, expected in (
            (episode.actions, arrays.action), (episode.rewards, arrays.reward),
            (episode.infos["label"][:n], arrays.label), (episode.infos["dt"][:n], arrays.dt),
            (episode.infos["zooming"][:n], arrays.zooming),
        ):  # fmt: skip
            assert stored.dtype == expected.dtype
            np.testing.assert_array_equal(stored, expected)
        telemetry = episode.infos.get("telemetry", {})
        assert telemetry.keys() == arrays.telemetry.keys()
        for key, values in telemetry.items():
            np.testing.assert_array_equal(values[:n], arrays.telemetry[key])
        assert not (episode.terminations | episode.truncations)[:-1].any()
        assert (episode.terminations[-1], episode.truncations[-1]) == (summary["terminated"], not summary["terminated"])
    seeds = [metadata["seed"] for metadata in dataset.storage.get_episode_metadata(range(len(source)))]
    assert seeds == source.seeds


def test_minari_knows_driver_and_environment(exports, datasets, monkeypatch):
    dataset = loaded_by_minari(exports[CONTINUOUS], monkeypatch)
    assert dataset.id == "nac-drive/car-racing-continuous-v0"
    assert list_local_namespaces() == ["nac-drive"]
    assert dataset.storage.metadata["algorithm_name"] == "controller"
    env = dataset.recover_environment()
    assert env.action_space == gym.make("CarRacing-v3").action_space
    assert (env.spec.id, env.spec.max_episode_steps) == ("CarRacing-v3", 25)  # type: ignore[union-attr]
    env.close()


def test_frames_are_compressed(exports, datasets):
    [file] = exports[DISCRETE].rglob("*.hdf5")
    frames = sum(row["length"] + 1 for row in datasets[DISCRETE].rows)
    assert file.stat().st_size < 0.25 * frames * 96 * 96 * 3
    with h5py.File(file) as content:
        assert content["episode_0/observations"].compression == "gzip"  # type: ignore[union-attr]


@every_dataset
def test_an_export_to_minari_comes_back_file_by_file(exports, datasets, name, tmp_path, capsys):
    assert call("dataset", "import", str(exports[name]), "--out", str(tmp_path / "back")) == 0
    assert f"{len(datasets[name])}" in capsys.readouterr().out
    assert contents(tmp_path / "back") == contents(datasets[name].path)
    assert Demonstrations.open(tmp_path / "back").verify(replay=name == DISCRETE) == []


def test_labels_and_times_survive_a_combination_by_minari(exports, datasets, tmp_path, monkeypatch):
    single = loaded_by_minari(exports[OWN], monkeypatch)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    (tmp_path / "minari").mkdir()
    combined = minari.combine_datasets([single, single], "both-v0")
    back, source = Demonstrations.from_minari(tmp_path / "back", combined).load(), datasets[OWN].load()
    for name in ("labels", "actions", "rewards", "dt"):
        np.testing.assert_array_equal(getattr(back, name), np.tile(getattr(source, name), 2), err_msg=name)


# Ends and seeds


def ends_and_seeds(folder: Path) -> tuple[list[tuple[bool, bool]], list[int | None]]:
    """The ends and the seeds that a dataset of Minari states, read without Minari."""
    [path] = folder.rglob("*.hdf5")
    with h5py.File(path) as file:
        episodes: list[Any] = [file[f"episode_{index}"] for index in range(len(file))]
        flags = [np.stack([episode["terminations"], episode["truncations"]]) for episode in episodes]
        assert not any(values[:, :-1].any() for values in flags)
        return [tuple(values[:, -1].tolist()) for values in flags], [episode.attrs.get("seed") for episode in episodes]


@pytest.mark.parametrize(("seeds", "stored"), [
    ([100, 101, 102, 100], [100, 101, 102, 100]),
    (None, [None] * 4),
    ([7, None, 8, 9], [None] * 4),
    ([2**63, 1, 2, 3], [None] * 4),
])  # fmt: skip
def test_ends_and_seeds_of_minari_come_back_or_are_absent(tmp_path, seeds, stored):
    source = write_minari(tmp_path / "other/cars-v0", [grey(3, i) for i in range(4)], seeds, ENDS)
    dataset = Demonstrations.from_minari(tmp_path / "data", source)
    assert dataset.verify() == []
    assert dataset.seeds == ([0, 1, 2, 3] if stored[0] is None else stored)
    export_dataset(dataset, tmp_path / "minari", "minari")
    assert ends_and_seeds(tmp_path / "minari") == (ENDS, stored)
    assert contents(Demonstrations.from_minari(tmp_path / "back", tmp_path / "minari").path) == contents(dataset.path)


def test_an_end_or_a_seed_that_is_not_known_is_not_stated(tmp_path):
    episodes = [grey(3, i) for i in range(5)]
    for episode, (terminated, truncated) in zip(episodes[1:], ENDS, strict=True):
        episode |= {"terminated": terminated, "truncated": truncated}
    dataset = Demonstrations.from_episodes(tmp_path / "data", episodes)
    export_dataset(dataset, tmp_path / "minari", "minari")
    assert ends_and_seeds(tmp_path / "minari") == ([(False, False), *ENDS], [None] * 5)
    back = Demonstrations.from_minari(tmp_path / "back", tmp_path / "minari")
    assert contents(back.path) == contents(dataset.path)
    assert ["truncated" in row for row in back.rows] == [False, True, True, True, True]


def test_values_that_nobody_measured_are_absent(tmp_path):
    export_dataset(Demonstrations.from_episodes(tmp_path / "data", [grey(3)]), tmp_path / "minari", "minari")
    [path] = (tmp_path / "minari").rglob("*.hdf5")
    with h5py.File(path) as file:
        episode: Any = file["episode_0"]
        stated = {name.removeprefix("nac_drive/") for name in episode.attrs if name.startswith("nac_drive/")}
    assert stated == {"seed", "return", "length", "terminated"}


def test_an_episode_that_goes_on_after_its_end_has_no_known_end(tmp_path):
    source = write_minari(tmp_path / "other/cars-v0", [grey(3)], ends=[(False, True)])
    [path] = source.rglob("*.hdf5")
    with h5py.File(path, "r+") as file:
        set_first(file["episode_0"], "terminations", True)
    [row] = Demonstrations.from_minari(tmp_path / "data", source).rows
    assert "truncated" not in row


def test_frames_that_minari_stores_as_jpeg_are_read(tmp_path):
    source = write_minari(tmp_path / "other/cars-v0", [grey(3, i) for i in range(2)], jpeg=True)
    frames = Demonstrations.from_minari(tmp_path / "data", source).load().frames
    np.testing.assert_array_equal(frames[:, 0, 0, 0], [0, 0, 0, 10, 10, 10])


def change_metadata(folder: Path, value: Any) -> None:
    [path] = folder.rglob("data/metadata.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"nac_drive": value}))


def change(folder: Path, change: Callable[[Any], Any]) -> None:
    [path] = folder.rglob("*.hdf5")
    with h5py.File(path, "r+") as file:
        change(file["episode_1"])


def set_first(episode: Any, name: str, value: Any) -> None:
    episode[name][0] = value


DIFFERENT = "episode 1 of the Minari dataset is not as it was exported"
TAMPERED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a sixth label": (lambda f: change(f, lambda e: set_first(e, "infos/label", 7)), "label has a value outside"),
    "a sixth action": (lambda f: change(f, lambda e: set_first(e, "actions", -1)), "action has a value outside"),
    "backwards": (lambda f: change(f, lambda e: set_first(e, "infos/dt", -1.0)), "dt has a value outside"),
    "no labels": (lambda f: change(f, lambda e: e["infos"].pop("label")), DIFFERENT),
    "no infos": (lambda f: change(f, lambda e: e.pop("infos")), DIFFERENT),
    "few frames": (lambda f: change(f, lambda e: e["observations"].resize(3, 0)), "3 observations for 7 rewards"),
    "no return": (lambda f: change(f, lambda e: e.attrs.pop("nac_drive/return")), DIFFERENT),
    "words": (lambda f: change(f, lambda e: e.attrs.__setitem__("nac_drive/seed", "first")), DIFFERENT),
    "other settings": (lambda f: change_metadata(f, {"schema": 3}), "in the metadata of the Minari dataset is no meta"),
    "no settings": (lambda f: change_metadata(f, []), "in the metadata of the Minari dataset is no meta.json"),
}


@pytest.mark.parametrize("kind", TAMPERED)
def test_a_tampered_export_is_refused_and_leaves_nothing(exports, tmp_path, kind):
    folder = shutil.copytree(exports[OWN], tmp_path / "exported")
    tamper, message = TAMPERED[kind]
    tamper(folder)
    with pytest.raises(DatasetError, match=message) as caught:
        Demonstrations.from_minari(tmp_path / "back", folder)
    assert "\n" not in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} == {"exported"}


def test_other_options_than_those_of_the_export_are_refused(exports, tmp_path):
    with pytest.raises(ValueError, match="seeds, dt: the dataset knows them"):
        Demonstrations.from_minari(tmp_path / "back", exports[OWN], seeds=[1], dt=0.1)
    assert not (tmp_path / "back").exists()


def test_own_data_without_last_frames_cannot_be_completed(tmp_path, datasets):
    [(arrays, _), _] = episodes_of(datasets[OWN])
    episode = {"observations": arrays.frames, "actions": arrays.action}
    own = Demonstrations.from_episodes(tmp_path / "own", [episode])
    with pytest.raises(
        DatasetError, match=r"episode 0 has no observation .* write it again with N \+ 1 observations"
    ) as caught:
        export_dataset(own, tmp_path / "minari", "minari")
    assert "export it to lerobot, which needs none" in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} == {"own"}
    export_dataset(own, tmp_path / "lerobot", "lerobot")  # which has no place for it


@pytest.mark.parametrize("source", ["nobody/nothing-v0", "no id at all", "empty", "nowhere", "a/b", "car-racing-v"])
def test_a_source_that_is_no_dataset_of_minari_is_named(source, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.setattr(hosting, "download_dataset", lambda name: (_ for _ in ()).throw(OSError("offline")))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert call("dataset", "import", source, "--out", str(tmp_path / "out")) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert source in error
    assert "NoneType" not in error
    assert "; pass " in error
    assert not (tmp_path / "out").exists()
