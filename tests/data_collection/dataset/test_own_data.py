"""Own data: episodes of other programs become an ordinary dataset, or are refused with the reason."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nac_drive.data_collection.dataset.create import write_dataset
from nac_drive.data_collection.dataset.demonstrations import DatasetError, Demonstrations
from nac_drive.data_collection.dataset.episode_file import EncodedEpisode, read_episode
from nac_drive.data_collection.dataset.info import describe
from nac_drive.data_collection.dataset.meta import Meta
from nac_drive.data_collection.dataset.own_data import own_episodes
from nac_drive.data_collection.dataset.rows import REPORTED, checked_summary
from nac_drive.data_collection.interchange.export import export_dataset
from nac_drive.data_collection.interchange.tub import import_tub
from nac_drive.data_collection.replay import save_action_log
from nac_drive.envs import EnvConfig
from nac_drive.policies import DriverConfig, load_driver
from nac_drive.training.config import DataConfig, EvalConfig, TrainConfig
from nac_drive.training.train import train
from tests.data_collection.dataset.exports import write_minari
from tests.data_collection.recordings import contents


def own(length: int, control: str = "discrete", seed: int = 0, extra: int = 1, **changed: Any) -> dict[str, Any]:
    """An episode of noise."""
    rng = np.random.default_rng(seed)
    if control == "discrete":
        actions = rng.integers(5, size=length)
    else:
        actions = rng.uniform([-1, 0, 0], 1, (length, 3))
    frames = rng.integers(256, size=(length + extra, 96, 96, 3), dtype=np.uint8)
    return {"observations": frames, "actions": actions, **changed}


def older(path: Path) -> Demonstrations:
    """Own data as earlier versions wrote it."""
    own_data = own_episodes([own(4), own(5)], None, 0.02, None)
    zeros = dict(zip(REPORTED, (0.0, False, 0, 0), strict=True))
    episodes = (
        (EncodedEpisode.encode(index, arrays, checked_summary(summary | zeros)), Meta(env, "own data", "", None, 0))
        for index, (arrays, summary, env) in enumerate(own_data)
    )
    write_dataset(path, episodes, lambda note: None)
    return Demonstrations.open(path)


@settings(max_examples=10, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=3), extra=st.integers(0, 1),
    control=st.sampled_from(["discrete", "continuous"]),
)  # fmt: skip
def test_own_data_comes_back(tmp_path_factory, lengths, control, extra):
    episodes = [own(length, control, seed, extra, rewards=np.arange(length)) for seed, length in enumerate(lengths)]
    path = tmp_path_factory.mktemp("own") / "dataset"
    dataset = Demonstrations.from_episodes(str(path), iter(episodes))
    assert dataset.path == path
    for data in (dataset, Demonstrations.open(path)):
        assert data.verify() == []
        assert (data.meta.driver, data.meta.env) == ("own data", EnvConfig(control))  # type: ignore[arg-type]
        frames = data.load()
        assert list(frames.seeds) == list(range(len(lengths)))
        assert frames.telemetry == {}
        assert not frames.zooming.any()
        seen = [episode["observations"][: len(episode["actions"])] for episode in episodes]
        np.testing.assert_array_equal(frames.frames, np.concatenate(seen))
        np.testing.assert_array_equal(frames.labels, frames.actions)
        dtype = np.int64 if control == "discrete" else np.float32
        np.testing.assert_array_equal(frames.actions, np.concatenate([e["actions"] for e in episodes]).astype(dtype))
        np.testing.assert_array_equal(frames.rewards, np.concatenate([e["rewards"] for e in episodes]))
        np.testing.assert_array_equal(frames.dt == 0, np.isin(np.arange(len(frames)), frames.offsets[:-1]))
        assert set(frames.dt) <= {np.float32(0), np.float32(1 / 50)}
    for row, episode in zip(dataset.rows, episodes, strict=True):
        last = read_episode(path / row["file"], dataset.meta.env)[0].last_frame
        assert (last is not None) == (extra == 1)
        if last is not None:
            np.testing.assert_array_equal(last, episode["observations"][-1])


def test_times_seeds_and_names_are_the_given_ones(tmp_path):
    seconds = np.array([9.0, 0.1, 0.3])
    dataset = Demonstrations.from_episodes(
        tmp_path / "dataset",
        [own(3, dt=seconds), own(2)],
        driver="me",
        dt=0.25,
        seeds=[7, 7],
        env=EnvConfig(mask_bar=True),
    )
    assert dataset.meta.driver == "me"
    assert dataset.meta.env.mask_bar
    assert dataset.seeds == [7, 7]
    np.testing.assert_allclose(dataset.load().dt, [0, 0.1, 0.3, 0, 0.25])
    assert dataset.info()["seconds"] == pytest.approx(0.65)
    assert dataset.split(0.0) == ([7], [])


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_labels_may_differ_from_the_executed_actions(tmp_path, control):
    episodes = [own(9, control, seed, labels=own(9, control, seed + 5)["actions"]) for seed in (0, 1)]
    dataset = Demonstrations.from_episodes(tmp_path / "dataset", episodes)
    frames, dtype = dataset.load(), np.int64 if control == "discrete" else np.float32
    np.testing.assert_array_equal(frames.labels, np.concatenate([e["labels"] for e in episodes]).astype(dtype))
    np.testing.assert_array_equal(frames.actions, np.concatenate([e["actions"] for e in episodes]).astype(dtype))
    assert dataset.info()["off_label_fraction"] > 0.5


def test_it_is_described_without_the_values_that_are_not_known(tmp_path):
    dataset = Demonstrations.from_episodes(tmp_path / "dataset", [own(4), own(5)])
    info = dataset.info()
    assert info["frames"] == 9
    assert not info.keys() & {"crashes", "laps_finished", "mean_completion", "off_road_events"}
    lines = dict(describe(info))
    assert lines["frames"] == "9 (0.1 s)"
    assert lines["driver"] == "own data"
    assert "crashes" not in lines


def test_rows_hold_no_value_that_nobody_measured(tmp_path):
    dataset = Demonstrations.from_episodes(tmp_path / "dataset", [own(4), own(5)])
    assert not any(name in row for row in dataset.rows for name in REPORTED)
    arrays, summary = read_episode(dataset.path / dataset.rows[0]["file"], dataset.meta.env)
    assert not summary.keys() & set(REPORTED)
    assert len(arrays.label) == 4


def test_values_that_an_older_version_stored_are_not_stated(tmp_path):
    """It wrote zeros for what nobody measured. They come back from Minari, and nobody reads them."""
    dataset = older(tmp_path / "dataset")
    assert (dataset.rows[0]["completion"], dataset.rows[0]["crashes"]) == (0.0, 0)
    assert dataset.verify() == []
    assert not dataset.info().keys() & {"crashes", "laps_finished", "mean_completion", "off_road_events"}
    export_dataset(dataset, tmp_path / "minari", "minari")
    assert contents(Demonstrations.from_minari(tmp_path / "back", tmp_path / "minari").path) == contents(dataset.path)
    export_dataset(dataset, tmp_path / "tub", "tub")
    assert not any(name in row for row in import_tub(tmp_path / "tub", tmp_path / "again").rows for name in REPORTED)


def test_it_cannot_be_simulated_again(tmp_path):
    dataset = Demonstrations.from_episodes(tmp_path / "dataset", [own(4, extra=0)])
    with pytest.raises(DatasetError, match=r"own data, which cannot be simulated again; verify without a replay"):
        dataset.verify(replay=True)
    with pytest.raises(DatasetError, match=r"own data, which was not simulated here\.$"):
        save_action_log(dataset, tmp_path / "log.npz")


BAD: dict[str, tuple[Any, str]] = {
    "no mapping": ([1, 2], "episode 1 is a list, expected a dict with observations, actions"),
    "no actions": ({"observations": own(3)["observations"]}, "episode 1 has no actions"),
    "a typo": (own(3, reward=np.zeros(3)), "key 'reward', expected are .* Did you mean 'rewards'"),
    "too few frames": (
        own(3, extra=-1),
        r"uint8 \(2, .*expected uint8 \(3, 96, 96, 3\) for its 3 actions, or 4",
    ),
    "too many frames": (own(3, extra=2), r"are uint8 \(5, 96, 96, 3\)"),
    "small frames": (own(3, observations=np.zeros((3, 64, 64, 3), np.uint8)), "resize or convert"),
    "float frames": (own(3, observations=np.zeros((3, 96, 96, 3), np.float32)), "are float32"),
    "a sixth label": (own(3, labels=np.array([0, 5, 1])), "labels of episode 1 range from 0 to 5"),
    "labels too short": (own(3, labels=np.zeros(2, int)), r"labels of episode 1 are \(2,\), expected \(3,\)"),
    "other labels": (own(3, labels=np.zeros((3, 3))), r"labels of episode 1 are \(3, 3\), expected \(3,\)"),
    "a sixth action": (own(3, actions=np.array([0, 5, 1])), "range from 0 to 5, expected 0"),
    "no action": (own(3, actions=np.zeros(0, int)), "with N at least 1"),
    "two columns": (own(3, actions=np.zeros((3, 2))), r"float64 \(3, 2\), expected integers \(N,\)"),
    "discrete floats": (own(3, actions=np.zeros(3)), r"float64 \(3,\), expected integers"),
    "negative gas": (own(3, actions=np.full((3, 3), -0.5)), "expected steer, gas, brake from"),
    "not a number": (own(3, actions=np.full((3, 3), np.nan)), "range from .*nan"),
    "other control": (own(3, "continuous"), "episode 1 has continuous actions, expected discrete ones"),
    "rewards too long": (own(3, rewards=np.zeros(4)), r"rewards of episode 1 are float64 \(4,\), expected 3 numbers"),
    "infinite reward": (own(3, rewards=np.array([0, np.inf, 0])), "rewards of episode 1 are not finite at frame 1"),
    "reward infinite in 32 bits": (own(3, rewards=np.array([0, 1e308, 0])), "episode 1 are not finite at frame 1"),
    "negative time": (own(3, dt=np.array([0, 0.1, -0.1])), "dt of episode 1 is negative at frame 2"),
    "words": (own(3, rewards=np.array(["a", "b", "c"])), "expected 3 numbers"),
    "ragged rewards": (own(3, rewards=[1.0, [2.0, 3.0], 4.0]), "rewards of episode 1 are no array: .*one shape"),
    "ragged frames": (own(3, observations=[*own(3)["observations"], [1]]), "observations of episode 1 are no array"),
    "a zoom of numbers": (own(3, zooming=np.ones(3)), r"zooming of episode 1 is float64 \(3,\), expected bool \(3,\)"),
    "a short zoom": (own(3, zooming=np.ones(2, bool)), r"zooming of episode 1 is bool \(2,\), expected bool \(3,\)"),
    "half an end": (own(3, terminated=True), "the end of episode 1 is {'terminated': True}, expected terminated and"),
    "an end that is a number": (own(3, terminated=0, truncated=1), "the end of episode 1 is .*; leave both out"),
    "ends of every step": (own(3, terminated=np.zeros(3, bool), truncated=False), "the end of episode 1 is"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_episode_is_named_and_leaves_nothing(tmp_path, kind):
    bad, message = BAD[kind]
    with pytest.raises(DatasetError, match=message) as caught:
        Demonstrations.from_episodes(tmp_path / "dataset", [own(3), bad])
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seeds", [[1], [1, -1], [1, 0.5]])
def test_bad_seeds_are_named(tmp_path, seeds):
    with pytest.raises(DatasetError, match=r"the seed of episode 1 is .*one integer of at least 0 per episode"):
        Demonstrations.from_episodes(tmp_path / "dataset", [own(3), own(3)], seeds=seeds)


def test_more_seeds_than_episodes_are_refused(tmp_path):
    """The list is of other episodes. One without an end fits."""
    with pytest.raises(DatasetError, match=r"seeds: 3 for 2 episodes; pass one integer of at least 0 per episode"):
        Demonstrations.from_episodes(tmp_path / "dataset", [own(3), own(3)], seeds=[5, 6, 7])
    assert list(tmp_path.iterdir()) == []
    assert Demonstrations.from_episodes(tmp_path / "dataset", [own(3), own(3)], seeds=count(5)).seeds == [5, 6]


def test_frames_of_the_zoom_are_not_measured(tmp_path):
    zooming = np.array([True, True, False])
    dataset = Demonstrations.from_episodes(tmp_path / "dataset", [own(3, zooming=zooming), own(3)])
    np.testing.assert_array_equal(dataset.load().zooming, [*zooming, False, False, False])


def test_actions_of_another_control_than_the_environments_are_refused(tmp_path):
    with pytest.raises(DatasetError, match="episode 0 has discrete actions, expected continuous ones"):
        Demonstrations.from_episodes(tmp_path / "dataset", [own(3)], env=EnvConfig("continuous"))
    assert list(tmp_path.iterdir()) == []


def test_a_driver_learns_from_own_data(tmp_path):
    env = EnvConfig(max_steps=10)
    dataset = Demonstrations.from_episodes(tmp_path / "dataset", [own(9), own(8, extra=0)], env=env)
    config = TrainConfig(
        DriverConfig(core="cnn"), DataConfig(sequence_length=4, batch_size=2),
        validation=EvalConfig("val-1"), epochs=1, validation_fraction=0.5, validate_every=1,
    )  # fmt: skip
    driver = load_driver(train(config, dataset, tmp_path / "run", device="cpu"))
    assert EnvConfig(**driver.env_config) == env


def test_nothing_is_overwritten_and_nothing_is_no_dataset(tmp_path):
    with pytest.raises(DatasetError, match="there is no episode"):
        Demonstrations.from_episodes(tmp_path / "dataset", [])
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("all my work")
    with pytest.raises(FileExistsError, match="choose another folder"):
        Demonstrations.from_episodes(tmp_path / "thesis", [own(3)])
    assert contents(tmp_path) == {"thesis/chapter.tex": b"all my work"}
    (tmp_path / "empty").mkdir()
    assert len(Demonstrations.from_episodes(tmp_path / "empty", [own(3)])) == 1


@dataclass
class MinariEpisode:
    """The fields of `minari.EpisodeData` that are read."""

    observations: Any
    actions: Any
    rewards: Any
    infos: dict[str, Any] = field(default_factory=dict)

    @property
    def terminations(self) -> Any:
        return np.zeros(len(self), np.bool_)

    truncations = terminations

    def __len__(self) -> int:
        return len(self.rewards)


class MinariDataset:
    """The parts of `minari.MinariDataset` that are read."""

    storage = SimpleNamespace(metadata={}, get_episode_metadata=lambda indices: [{} for _ in indices])

    def __init__(self, episodes: list[MinariEpisode]):
        self.episodes = episodes
        self.episode_indices = range(len(episodes))

    def iterate_episodes(self):
        return iter(self.episodes)


def minari_episode(seed: int) -> MinariEpisode:
    episode = own(6, seed=seed)
    return MinariEpisode(episode["observations"], episode["actions"], np.full(6, 0.5, np.float32))


def test_a_minari_dataset_is_own_data(tmp_path, monkeypatch):
    minari = MinariDataset([minari_episode(0), minari_episode(1)])
    dataset = Demonstrations.from_minari(tmp_path / "object", minari, driver="minari")
    assert dataset.meta.driver == "minari"
    assert [row["return"] for row in dataset.rows] == [3.0, 3.0]
    np.testing.assert_array_equal(
        dataset.load().frames, np.concatenate([episode.observations[:-1] for episode in minari.episodes])
    )

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    episodes = [{"observations": e.observations, "actions": e.actions, "rewards": e.rewards} for e in minari.episodes]
    write_minari(tmp_path / "minari/CarRacing/human-v0", episodes)
    same = Demonstrations.from_minari(tmp_path / "id", "CarRacing/human-v0", driver="minari")
    assert contents(same.path) == contents(dataset.path)


def test_minari_is_optional_and_dict_observations_are_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ValueError, match=r"minari is not installed; run `pip install 'nac-drive\[minari\]'`") as caught:
        Demonstrations.from_minari(tmp_path / "dataset", "CarRacing/human-v0")
    assert "\n" not in str(caught.value)
    bad = MinariEpisode({"camera": np.zeros((7, 96, 96, 3), np.uint8)}, np.zeros(6, int), np.zeros(6))
    with pytest.raises(DatasetError, match="observations of episode 0 are a dict of arrays"):
        Demonstrations.from_minari(tmp_path / "dataset", MinariDataset([bad]))
    assert not (tmp_path / "dataset").exists()
