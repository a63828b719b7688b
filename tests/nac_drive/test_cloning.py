"""Cloning: it learns, it mirrors and tiles right, it tells what it does, and refuses what cannot be trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nac_drive import training
from nac_drive.envs import BAR_TOP, EnvConfig, make_env
from nac_drive.evaluation.evaluate import evaluate
from nac_drive.policies import Driver, DriverConfig, load_driver
from nac_drive.policies.cores.lds import LDS
from nac_drive.training.data import TrainingData, action_changes, augmented, masked, mirrored
from nac_drive.training.offline import offline_accuracy
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.train import clone
from tests.data_collection.recordings import contents
from tests.nac_drive.small import FRAMES, config, part_of, rows, synthetic, train

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread")


# The pieces


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=5), window=st.integers(1, 20), seed=st.integers(0, 99))
def test_windows_tile_every_frame_of_every_episode_that_fills_one(lengths, window, seed):
    lengths = [max(lengths[0], window), *lengths[1:]]
    data = object.__new__(TrainingData)  # frames play no part
    data.offsets, data.window = np.cumsum([0, *lengths]), window
    starts = data.starts(np.random.default_rng(seed))
    seen = np.zeros(sum(lengths), int)
    for start in starts:
        seen[start : start + window] += 1
        episode = np.searchsorted(data.offsets, start, side="right") - 1
        assert start + window <= data.offsets[episode + 1], "a window over two episodes"
    for first, end in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        expected = end - first >= window
        assert (seen[first:end] > 0).all() == expected or not expected
        assert expected or not seen[first:end].any()
    assert len(np.unique(starts)) == len(starts)
    assert len(starts) <= sum(length // window + 2 for length in lengths)


def test_windows_are_shuffled_and_move_from_epoch_to_epoch():
    data = TrainingData(config(), EnvConfig(), CPU)
    data.add(synthetic([100, 80]))
    epochs = [data.starts(np.random.default_rng((0, epoch))).tolist() for epoch in range(4)]
    assert all(starts != sorted(starts) for starts in epochs)
    assert len({tuple(sorted(starts)) for starts in epochs}) > 1
    assert data.starts(np.random.default_rng((0, 2))).tolist() == epochs[2]


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_what_is_added_in_parts_gives_the_same_windows_as_the_whole(control):
    lengths = [40, 9, 25, 31]
    whole = synthetic(lengths, control)
    settings = config(change_weight=3.0, class_weights=control == "discrete")
    at_once, in_parts = (TrainingData(settings, EnvConfig(control), CPU) for _ in range(2))
    at_once.add(whole)
    for episodes in (slice(0, 1), slice(1, 3), slice(3, 4)):
        in_parts.add(part_of(whole, episodes))
    assert len(in_parts) == len(at_once) == 105
    starts = at_once.starts(np.random.default_rng(0))
    assert in_parts.starts(np.random.default_rng(0)).tolist() == starts.tolist()
    if control == "discrete":
        np.testing.assert_array_equal(in_parts.classes, at_once.classes)
    for data in (at_once, in_parts):
        sequences = data.sequences(starts, np.zeros(len(starts), dtype=bool))
        assert sequences.weight is not None
        for window, start in enumerate(starts):
            rows = slice(start, start + data.window)
            np.testing.assert_array_equal(sequences.frames[window], whole.frames[rows])
            np.testing.assert_array_equal(sequences.labels[window], whole.labels[rows])
            np.testing.assert_array_equal(sequences.dt[window], whole.dt[rows])
            changes = action_changes(whole.labels, whole.offsets)[rows]
            np.testing.assert_array_equal(sequences.weight[window], np.where(changes, 3.0, 1.0))
        sequences.frames.zero_()  # a copy
    assert whole.frames.any(axis=(1, 2, 3)).all()


def test_a_change_of_action_is_marked_within_its_episode():
    labels = np.array([0, 0, 3, 3, 1, 1, 2])
    changes = action_changes(labels, np.array([0, 4, 7]))
    np.testing.assert_array_equal(changes, [False, False, True, False, False, False, True])
    pedals = np.array([[0, 1, 0], [0, 1, 0], [0, 0.5, 0]], np.float32)
    np.testing.assert_array_equal(action_changes(pedals, np.array([0, 3])), [False, False, True])


@given(seed=st.integers(0, 99), control=st.sampled_from(["discrete", "continuous"]))
@settings(max_examples=10, deadline=None)
def test_mirroring_twice_changes_nothing(seed, control):
    episode = synthetic([3], control, seed)
    frames, labels = torch.from_numpy(episode.frames)[None], torch.from_numpy(episode.labels)[None]
    before = frames.clone(), labels.clone()
    once = mirrored(frames, labels)
    assert torch.equal(frames, before[0])
    assert torch.equal(labels, before[1])
    assert not torch.equal(once[0], frames)
    twice = mirrored(*once)
    assert torch.equal(twice[0], frames)
    assert torch.equal(twice[1], labels)


def test_a_mirror_swaps_left_and_right_and_leaves_the_gauges_in_place():
    _, labels = mirrored(torch.zeros(5, 96, 96, 3), torch.arange(5))
    assert labels.tolist() == [0, 2, 1, 3, 4]
    _, labels = mirrored(torch.zeros(1, 96, 96, 3), torch.tensor([[0.3, 0.6, 0.1]]))
    assert labels.tolist() == [[pytest.approx(-0.3), pytest.approx(0.6), pytest.approx(0.1)]]
    frame = torch.zeros(1, 96, 96, 3)
    frame[0, 10, 20, 0] = 1.0  # a point on the left
    frame[0, 90, 5, 1] = 1.0  # the speed gauge
    frame[0, 90, 50, 1] = 1.0  # the wheel is turned to the right of its centre
    frame[0, 90, 70, 1] = 1.0  # so is the gyroscope, to the left
    frame[0, 90, 90, 1] = 1.0  # right of all gauges
    image, _ = mirrored(frame, torch.tensor([0]))
    assert image.nonzero().tolist() == [[0, 10, 75, 0], *([0, 90, x, 1] for x in (5, 45, 73, 90))]


def test_the_mirrored_world_is_what_the_simulator_draws():
    """Steering gauges of opposite commands are each other's mirror images."""
    bars = []
    for steer in (-0.8, 0.8):
        env = make_env(EnvConfig("continuous"))
        env.reset(seed=0)
        for _ in range(8):
            frame = env.step(np.array([steer, 0, 0], np.float32))[0]
        bars.append(torch.from_numpy(frame[None].copy()))
    image, _ = mirrored(bars[0], torch.tensor([0]))
    steering = slice(37, 60)  # green, around column 48
    assert (bars[0][0, BAR_TOP:, steering].int() - bars[1][0, BAR_TOP:, steering].int()).abs().max() > 100
    assert (image[0, BAR_TOP:, steering].int() - bars[1][0, BAR_TOP:, steering].int()).abs().float().mean() < 3


def test_each_sequence_is_augmented_by_one_draw_of_one_perturbation_or_none():
    frames = torch.full((60, 4, 96, 96, 3), 200, dtype=torch.uint8)
    result = augmented(frames, ["occlusion-bars:3", "shadows:2+salt-and-pepper:1"], np.random.default_rng(0))
    assert bool((frames == 200).all())
    shaded = ((result > 100) & (result < 200)).flatten(1).any(1)
    hidden = (result == 0).flatten(1).any(1) & ~shaded
    clean = (result == 200).flatten(1).all(1)
    assert (hidden | shaded | clean).all()
    assert all(10 <= kind.sum() <= 30 for kind in (hidden, shaded, clean))
    bars, shadows = result[hidden], result[shaded]
    assert bool((bars == bars[:, :1]).all())  # one draw for all frames of a sequence
    assert not bool((bars == bars[:1]).all())  # another for the next
    assert not bool((shadows == shadows[:, :1]).all())  # noise is drawn per frame
    again = augmented(frames, ["occlusion-bars:3", "shadows:2+salt-and-pepper:1"], np.random.default_rng(0))
    assert torch.equal(result, again)


def test_masking_is_what_the_environment_does(dataset):
    frames = dataset.load().frames
    np.testing.assert_array_equal(masked(frames.copy(), EnvConfig()), frames)
    hidden = masked(frames.copy(), EnvConfig(mask_bar=True))
    assert not hidden[:, BAR_TOP:].any()
    np.testing.assert_array_equal(hidden[:, :BAR_TOP], frames[:, :BAR_TOP])


def test_held_out_accuracy_is_that_of_acting_frame_by_frame():
    frames = synthetic([300, 20], seed=3)  # longer than the chunks that it is streamed in
    frames.zooming[:10] = True
    torch.manual_seed(0)
    driver = Driver(DriverConfig(core="lstm")).eval()
    correct = []
    for first, end in zip(frames.offsets[:-1], frames.offsets[1:], strict=True):
        state = driver.begin()
        for i in range(first, end):
            action, state = driver.act(frames.frames[i], state, float(frames.dt[i]))
            if not frames.zooming[i]:
                correct.append(action == frames.labels[i])
    assert offline_accuracy(driver, frames, EnvConfig()).accuracy == pytest.approx(np.mean(correct))


# Learning


@pytest.mark.parametrize("core", ["nac-exact", "lstm", "cnn"])
def test_it_learns_a_tiny_dataset_by_heart(core, dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "closed_loop", lambda *_: {"score": 0.0})
    frames = synthetic([48, 48, 48])
    frames.frames[:] = 0
    for i, label in enumerate(frames.labels):  # a bright band whose height is the action
        frames.frames[i, 16 * label : 16 * label + 16] = 200
    monkeypatch.setattr(dataset, "load", lambda seeds: frames)
    settings = config(core, epochs=12, validation_fraction=0.0, learning_rate=3e-3, validate_every=12)
    train(settings, dataset, tmp_path / "run")
    losses = [row["loss"] for row in rows(tmp_path / "run")]
    assert losses[0] > 1.0
    assert losses[-1] < 0.2 * losses[0]
    driver = load_driver(tmp_path / "run" / "checkpoints" / "last")
    assert offline_accuracy(driver, frames, EnvConfig()).accuracy > 0.95


def test_a_run_tells_everything(dataset, tmp_path):
    reports: list[dict[str, Any]] = []
    best = train(config(epochs=3, validate_every=2, mask_bar=True), dataset, tmp_path / "run", report=reports.append)
    lines = [row for row in reports if "step" in row]
    assert [row["step"] for row in lines] == [1, 2, 3]
    assert ["score" in row for row in lines] == [False, True, True]  # the last epoch is always validated
    assert RunFolder.open(tmp_path / "run").rows() == lines
    assert all(0 <= row["validation"]["accuracy"] <= 1 for row in lines)
    batches = [row for row in reports if "batch" in row]
    assert [row["batch"] for row in batches if row["epoch"] == 1] == list(range(1, batches[0]["batches"] + 1))
    driver = load_driver(best)
    assert driver.env_config == {"control": "discrete", "mask_bar": True, "max_steps": FRAMES, "renderer": "gymnasium"}
    assert driver.meta["training"]["core"] == "lstm"
    winner = max((row for row in lines if "score" in row), key=lambda row: row["score"])
    assert driver.meta["epoch"] == winner["step"]
    evaluation = evaluate(driver, [800_000], env=EnvConfig(**driver.env_config))
    assert [row.episode_return for row in evaluation.rows] == winner["returns"]


def test_without_held_out_tracks_there_is_no_accuracy_on_them(dataset, tmp_path):
    train(config("cnn", epochs=1, validation_fraction=0.0, window=1, batch_size=32), dataset, tmp_path / "run")
    (row,) = rows(tmp_path / "run")
    assert "validation" not in row
    assert row["frames"] == 3 * FRAMES


# Refusals


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"window": 15}, "window must be at least 16 for core 'lstm', got 15"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"validate_every": 0}, "validate_every must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate must be positive, got 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive, got nan"),
        ({"change_weight": 0.0}, "change_weight must be positive"),
        ({"augment": ("fog:1",)}, "perturbation 'fog' is unknown"),
        ({"augment": ("shadows:1", "frame-drop:1")}, "'frame-drop' changes the drive, not the picture"),
    ],
)
def test_a_bad_setting_is_named(changed, told):
    with pytest.raises(ValueError, match=told):
        config(**changed)
    assert config("cnn", window=1).window == 1


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"window": FRAMES + 1}, "window must not exceed the longest episode .60 frames., got 61"),
        ({"core": "transformer"}, "core: unknown name 'transformer'"),
        ({"core_args": {"foo": 1}}, r"core_args: unknown \['foo'\]"),
        ({"validation_fraction": 1.0}, "validation_fraction must lie in"),
        ({"validation_tracks": "val-99"}, "has 25 tracks"),
        ({"precision": "8-bit"}, "8-bit"),
    ],
)
def test_what_cannot_be_trained_leaves_no_folder(changed, told, dataset, tmp_path):
    with pytest.raises(ValueError, match=told):
        train(config(**changed), dataset, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_class_weights_need_classes(continuous, tmp_path):
    with pytest.raises(ValueError, match="class_weights applies to discrete actions"):
        train(config(class_weights=True), continuous, tmp_path / "run")


def test_devices(dataset, tmp_path):
    with pytest.raises(ValueError, match="device must be auto, cpu or cuda, got 'tpu'"):
        clone(config(), dataset, tmp_path / "run", device="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device is cuda, but torch sees no GPU here; pass --device cpu or auto"):
            clone(config(), dataset, tmp_path / "run", device="cuda")
    assert not (tmp_path / "run").exists()


def test_a_run_is_never_overwritten_nor_resumed_with_something_else(dataset, continuous, tmp_path):
    settings = config("cnn", epochs=1)
    train(settings, dataset, tmp_path / "run")
    before = contents(tmp_path / "run")
    with pytest.raises(FileExistsError, match="--resume"):
        train(settings, dataset, tmp_path / "run")
    with pytest.raises(ValueError, match=r"learning_rate: run has 0.001, asked for 0.5"):
        train(replace(settings, learning_rate=0.5), dataset, tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match="dataset_sha256"):
        train(settings, continuous, tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before
    with pytest.raises(FileNotFoundError, match="not a run folder"):
        train(settings, dataset, tmp_path / "typo", resume=True)


def test_a_training_descends_the_penalty_of_its_core_too(dataset, tmp_path, monkeypatch):
    """The matrix of a linear dynamical system that begins unstable ends closer to stability than without it."""
    settings = config("lds", core_args={"margin": 50.0}, epochs=1)
    told = load_driver(train(settings, dataset, tmp_path / "with")).core.penalty()
    with monkeypatch.context() as patch:
        patch.setattr(LDS, "penalty", lambda core: 0.0)
        silent = train(settings, dataset, tmp_path / "without")
    assert 0 < told < load_driver(silent).core.penalty()
