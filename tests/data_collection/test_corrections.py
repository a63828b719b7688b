"""A person corrects a driver: what is recorded of it, and what is learned from it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from nac_drive.data_collection.collect import EpisodeJob, collect_corrected_episode
from nac_drive.data_collection.controller.controller import Controller
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.dataset.meta import Meta
from nac_drive.data_collection.dataset.rows import CORRECTIONS, checked_summary, frame_ranges, labelled_frames
from nac_drive.data_collection.human import Human, KeyboardDriver
from nac_drive.data_collection.interchange.export import export_dataset
from nac_drive.data_collection.replay import rebuild, save_action_log
from nac_drive.envs import EnvConfig, Step, make_env, rollout
from nac_drive.policies.action_heads import ContinuousActionHead
from nac_drive.training.config import DataConfig
from nac_drive.training.dagger import dagger
from nac_drive.training.dagger_config import DaggerConfig
from nac_drive.training.data.sequences import TrainingData
from nac_drive.training.offline import counted
from tests.nac_drive.small import TINY, nested, synthetic

HELD = [False] * 3 + [True] * 4 + [False] * 4 + [True]
"""Whether the person of a test holds the wheel, frame by frame."""


class Script(Human):
    """A person who steers to the right with half gas, and holds the wheel in some frames."""

    def __init__(self, control: Any, held: Sequence[bool] = HELD) -> None:
        super().__init__(control)
        self.held, self.frame = held, 0

    def begin(self, env: Any) -> None:
        super().begin(env)
        self.frame = 0

    def act(self, observation: np.ndarray, state: Any, dt: float) -> tuple[Any, None]:
        self.controls, self.holds = (1.0, 0.5, 0.0), self.held[self.frame % len(self.held)]
        self.frame += 1
        return super().act(observation, state, dt)


def corrected_run(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Path:
    """The folder of a DAgger run of one round whose expert is `Script`."""
    monkeypatch.setattr("nac_drive.training.dagger.resolve_driver", lambda spec, env: Script(env.control))
    config = replace(
        nested(DaggerConfig(), **TINY, core="cnn", control="continuous", validation_tracks="val-1"),
        max_steps=len(HELD), rounds=1, noise=0.0, **settings,
    )  # fmt: skip
    dagger(config, folder, expert="human", device="cpu")
    return folder


def test_a_round_records_who_drove_and_what_the_person_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = corrected_run(tmp_path / "run", monkeypatch)
    dataset = Demonstrations.open(run / "dataset")
    first, second = dataset.rows
    assert CORRECTIONS not in first  # round 0 is the person's alone
    assert labelled_frames(first) is None
    assert second[CORRECTIONS] == "3:7 11:12"
    np.testing.assert_array_equal(labelled_frames(second), HELD)
    frames = dataset.load([second["seed"]])
    assert frames.labelled is not None
    person = np.array([1.0, 0.5, 0.0], np.float32)
    np.testing.assert_array_equal(frames.actions, frames.labels)
    np.testing.assert_array_equal((frames.labels == person).all(axis=1), HELD)
    assert dataset.verify(replay=True) == []
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row.get("corrected") for row in rows] == [None, 5 / 12]
    assert dataset.info()["corrected_fraction"] == 5 / 12

    save_action_log(dataset, tmp_path / "log.safetensors")
    again = rebuild(tmp_path / "log.safetensors", tmp_path / "again")
    assert again.rows == dataset.rows  # with the SHA-256 of every file
    with pytest.raises(DatasetError, match="cannot say which frames have a label"):
        export_dataset(dataset, tmp_path / "minari", "minari")


def test_without_a_hand_at_the_wheel_the_driver_drives_as_ever():
    env = EnvConfig("continuous", max_steps=80)
    meta = Meta(env, "human", "0" * 64, None, 0)
    job = EpisodeJob(pickle.dumps(Script("continuous", [False])), meta)
    row = collect_corrected_episode(job, pickle.dumps(Controller("continuous")), (0, 3)).row
    assert row[CORRECTIONS] == ""
    assert row["return"] == rollout(make_env(env), Controller("continuous"), 3).episode_return


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_only_corrected_frames_are_learned_from(control: Any):
    frames = synthetic([12, 12, 12], control)
    masks = [np.ones(12, bool), np.array(HELD), np.zeros(12, bool)]
    labelled = np.concatenate(masks)
    frames = replace(frames, labelled=labelled)
    env = EnvConfig(control)
    data = TrainingData(DataConfig(sequence_length=6, horizontal_flip=False), env, torch.device("cpu"))
    data.add(replace(frames, labelled=None) if control == "discrete" else frames)
    if control == "discrete":  # episodes with labels throughout, then corrected ones
        data.add(frames)
    drawn = np.concatenate([data.starts(np.random.default_rng(seed)) for seed in range(20)])
    sequences = data.sequences(drawn, np.zeros(len(drawn), bool))
    assert sequences.weight is not None
    assert (sequences.weight.sum(1) > 0).all()
    offset = 36 if control == "discrete" else 0
    assert drawn.max() < offset + 24  # nothing of the last episode, which nobody corrected
    chosen = drawn >= offset
    expected = np.stack([labelled[start - offset : start - offset + 6] for start in drawn[chosen]])
    np.testing.assert_array_equal(sequences.weight.numpy()[chosen], expected)
    np.testing.assert_array_equal(counted(frames), labelled & ~frames.zooming)


def test_a_label_that_the_driver_gave_moves_no_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = corrected_run(tmp_path / "run", monkeypatch)
    dataset = Demonstrations.open(run / "dataset")
    frames = dataset.load([dataset.rows[1]["seed"]])
    assert frames.labelled is not None
    labels = frames.labels.copy()
    labels[~frames.labelled] = 0.77
    losses = []
    for given in (frames.labels, labels):
        data = TrainingData(DataConfig(sequence_length=12), EnvConfig("continuous"), torch.device("cpu"))
        data.add(replace(frames, labels=given))
        sequences = data.sequences(np.array([0]), np.array([False]))
        torch.manual_seed(0)
        losses.append(ContinuousActionHead.loss(torch.rand(1, 12, 3), sequences.labels, sequences.weight))
    assert losses[0] == losses[1] > 0


@pytest.mark.parametrize("ranges", ["4:3", "0:5 4:6", "0:13", "x", "1-2", "1:2 ", "-1:2"])
def test_ranges_that_are_none_are_refused(ranges: str):
    summary = {
        "seed": 0, "return": 0.0, "length": 12, "terminated": False, "completion": 0.0, "lap_finished": False,
        "off_road_events": 0, "crashes": 0,
    }  # fmt: skip
    assert checked_summary(summary | {CORRECTIONS: "3:7 11:12"})[CORRECTIONS] == frame_ranges(np.array(HELD))
    with pytest.raises(ValueError, match="corrections"):
        checked_summary(summary | {CORRECTIONS: ranges})


def test_no_label_at_all_is_an_error():
    frames = replace(synthetic([12]), labelled=np.zeros(12, bool))
    data = TrainingData(DataConfig(sequence_length=6), EnvConfig("discrete"), torch.device("cpu"))
    data.add(frames)
    with pytest.raises(ValueError, match="no frame of these episodes has a label"):
        data.starts(np.random.default_rng(0))


def test_the_space_bar_holds_the_wheel(monkeypatch: pytest.MonkeyPatch):
    import pygame

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    keys = dict.fromkeys((pygame.K_UP, pygame.K_DOWN, pygame.K_LEFT, pygame.K_RIGHT, pygame.K_SPACE), False)
    monkeypatch.setattr(pygame.key, "get_pressed", lambda: keys)
    driver = KeyboardDriver("continuous")
    driver.begin(None)  # type: ignore[arg-type]
    frame, held = np.zeros((96, 96, 3), np.uint8), partial(getattr, driver, "holds")
    for key, expected in ((None, False), (pygame.K_SPACE, True), (pygame.K_LEFT, True), (None, False)):
        keys.update(dict.fromkeys(keys, False) | ({} if key is None else {key: True}))
        driver.act(frame, None, 0.02)
        assert held() is expected
    pygame.display.quit()


def test_a_person_drives_in_the_time_of_the_simulator(monkeypatch: pytest.MonkeyPatch):
    """Under action-repeat:3 a decision lasts eight frames."""
    import pygame

    class Clock:
        rates: ClassVar[list[float]] = []

        def tick(self, rate: float) -> None:
            self.rates.append(rate)

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setattr(pygame.time, "Clock", Clock)
    steps: list[Step] = []
    with closing(make_env(EnvConfig(max_steps=20, perturb="action-repeat:3"))) as env:
        rollout(env, KeyboardDriver("discrete"), 0, subscribers=[steps.append])
    pygame.display.quit()
    assert Clock.rates == pytest.approx([1 / step.dt if step.dt else 0 for step in steps])
    assert Clock.rates == pytest.approx([0, 6.25, 6.25])
