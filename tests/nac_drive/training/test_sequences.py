"""Sequences of frames: order, flips, augmentation, lost frames."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nac_drive.envs import BAR_TOP, EnvConfig, make_env
from nac_drive.evaluation.formulas import CAR_RACING
from nac_drive.events import Event
from nac_drive.policies import Driver, DriverConfig
from nac_drive.policies.action_heads import DiscreteActionHead
from nac_drive.policies.encoders import ZeroBlack
from nac_drive.training import trainer
from nac_drive.training.config import DataConfig
from nac_drive.training.data.augmentation import augmented
from nac_drive.training.data.images import flipped
from nac_drive.training.data.sequences import Sequences, TrainingData, curve_weights
from nac_drive.training.offline import action_changes
from tests.nac_drive.small import config, nested, part_of, rows, score_of_weights, synthetic, train

# Sequences and images

CPU = torch.device("cpu")
SPEC = EnvConfig().spec


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=5), length=st.integers(1, 20), seed=st.integers(0, 99))
def test_sequences_tile_every_frame_of_every_episode_that_fills_one(lengths, length, seed):
    lengths = [max(lengths[0], length), *lengths[1:]]
    data = TrainingData(DataConfig(sequence_length=length), EnvConfig(), CPU)
    data.offsets = np.cumsum([0, *lengths])  # frames play no part
    starts = data.starts(np.random.default_rng(seed))
    seen = np.zeros(sum(lengths), int)
    for start in starts:
        seen[start : start + length] += 1
        episode = np.searchsorted(data.offsets, start, side="right") - 1
        assert start + length <= data.offsets[episode + 1], "a sequence over two episodes"
    for first, end in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        expected = end - first >= length
        assert (seen[first:end] > 0).all() == expected or not expected
        assert expected or not seen[first:end].any()
    assert len(np.unique(starts)) == len(starts)
    assert len(starts) <= sum(frames // length + 2 for frames in lengths)


def test_sequences_are_shuffled_and_move_from_epoch_to_epoch():
    data = TrainingData(config().data, EnvConfig(), CPU)
    data.add(synthetic([100, 80]))
    epochs = [data.starts(np.random.default_rng((0, epoch))).tolist() for epoch in range(4)]
    assert all(starts != sorted(starts) for starts in epochs)
    assert len({tuple(sorted(starts)) for starts in epochs}) > 1
    assert data.starts(np.random.default_rng((0, 2))).tolist() == epochs[2]


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_episodes_added_in_parts_give_the_same_sequences_as_all_at_once(control):
    lengths = [40, 9, 25, 31]
    whole = synthetic(lengths, control)
    settings = config(curve_weight=0.0 if control == "discrete" else 0.5).data
    at_once, in_parts = (TrainingData(settings, EnvConfig(control), CPU) for _ in range(2))
    at_once.add(whole)
    for episodes in (slice(0, 1), slice(1, 3), slice(3, 4)):
        in_parts.add(part_of(whole, episodes))
    assert len(in_parts) == len(at_once) == 105
    starts = at_once.starts(np.random.default_rng(0))
    assert in_parts.starts(np.random.default_rng(0)).tolist() == starts.tolist()
    for data in (at_once, in_parts):
        sequences = data.sequences(starts, np.zeros(len(starts), dtype=bool))
        assert (sequences.weight is None) == (control == "discrete")
        for row, start in enumerate(starts):
            frames = slice(start, start + data.length)
            np.testing.assert_array_equal(sequences.frames[row], whole.frames[frames])
            np.testing.assert_array_equal(sequences.labels[row], whole.labels[frames])
            np.testing.assert_array_equal(sequences.dt[row], whole.dt[frames])
            if sequences.weight is not None:
                np.testing.assert_array_equal(
                    sequences.weight[row], curve_weights(whole.labels[frames], 0.5, CAR_RACING)
                )
        sequences.frames.zero_()  # a copy
    assert whole.frames.any(axis=(1, 2, 3)).all()


def test_loss_and_accuracy_are_means_over_the_sequences_of_an_epoch(dataset, tmp_path, monkeypatch):
    """Also where the last batch is smaller."""
    batches: list[tuple[int, float, float]] = []
    real = DiscreteActionHead.loss

    def loss(prediction: torch.Tensor, target: torch.Tensor, *weights: Any) -> torch.Tensor:
        mean = real(prediction, target, *weights)
        right = (prediction.argmax(-1) == target).float().mean()
        batches.append((len(target), mean.item(), right.item()))
        return mean

    monkeypatch.setattr(DiscreteActionHead, "loss", staticmethod(loss))
    monkeypatch.setattr(trainer, "closed_loop", score_of_weights)
    events: list[Event] = []
    settings = config("cnn", epochs=1, sequence_length=1, batch_size=50, learning_rate=1e-2)
    train(settings, dataset, tmp_path / "run", progress=events.append)
    sizes, losses, rights = (np.array(column) for column in zip(*batches, strict=True))
    assert len(sizes) > 1
    assert sizes[-1] < sizes[0] == 50
    (row,) = rows(tmp_path / "run")
    assert row["loss"] == pytest.approx((sizes * losses).sum() / sizes.sum(), rel=1e-5)
    assert row["accuracy"] == pytest.approx((sizes * rights).sum() / sizes.sum(), rel=1e-5)
    assert row["frames"] == sizes.sum()
    so_far = [float(event.note.removeprefix("loss ")) for event in events if event.job == "train (cnn)"]
    assert so_far == pytest.approx(np.cumsum(sizes * losses) / np.cumsum(sizes), abs=5.1e-4)


def test_bends_to_both_sides_weigh_alike():
    """exp(alpha |steering|), in sequences as they are and flipped."""
    labels = np.array([[-0.8, 1, 0], [-0.8, 1, 0], [0.8, 1, 0], [0.0, 0, 1]], np.float32)
    np.testing.assert_allclose(curve_weights(labels, 0.5, CAR_RACING), np.exp([0.4, 0.4, 0.4, 0.0]), rtol=1e-6)
    data = TrainingData(config(curve_weight=0.5, sequence_length=4).data, EnvConfig("continuous"), CPU)
    data.add(replace(synthetic([4], "continuous"), labels=labels))
    for flip in (False, True):
        weight = data.sequences(np.zeros(1, dtype=int), np.array([flip])).weight
        assert weight is not None
        np.testing.assert_allclose(weight[0], np.exp([0.4, 0.4, 0.4, 0.0]), rtol=1e-6)


def test_a_change_of_action_is_marked_within_its_episode():
    labels = np.array([0, 0, 3, 3, 1, 1, 2])
    changes = action_changes(labels, np.array([0, 4, 7]))
    np.testing.assert_array_equal(changes, [False, False, True, False, False, False, True])
    pedals = np.array([[0, 1, 0], [0, 1, 0], [0, 0.5, 0]], np.float32)
    np.testing.assert_array_equal(action_changes(pedals, np.array([0, 3])), [False, False, True])


@given(seed=st.integers(0, 99), control=st.sampled_from(["discrete", "continuous"]))
@settings(max_examples=10, deadline=None)
def test_flipping_twice_changes_nothing(seed, control):
    episode = synthetic([3], control, seed)
    frames, labels = torch.from_numpy(episode.frames)[None], torch.from_numpy(episode.labels)[None]
    before = frames.clone(), labels.clone()
    once = flipped(frames, labels, SPEC)
    assert torch.equal(frames, before[0])
    assert torch.equal(labels, before[1])
    assert not torch.equal(once[0], frames)
    twice = flipped(*once, SPEC)
    assert torch.equal(twice[0], frames)
    assert torch.equal(twice[1], labels)


def test_a_flip_swaps_left_and_right_and_leaves_the_gauges_in_place():
    _, labels = flipped(torch.zeros(5, 96, 96, 3), torch.arange(5), SPEC)
    assert labels.tolist() == [0, 2, 1, 3, 4]
    _, labels = flipped(torch.zeros(1, 96, 96, 3), torch.tensor([[0.3, 0.6, 0.1]]), SPEC)
    assert labels.tolist() == [[pytest.approx(-0.3), pytest.approx(0.6), pytest.approx(0.1)]]
    frame = torch.zeros(1, 96, 96, 3)
    frame[0, 10, 20, 0] = 1.0  # a point on the left
    frame[0, 90, 5, 1] = 1.0  # the speed gauge
    frame[0, 90, 50, 1] = 1.0  # the wheel is turned to the right of its centre
    frame[0, 90, 70, 1] = 1.0  # so is the gyroscope, to the left
    frame[0, 90, 90, 1] = 1.0  # right of all gauges
    image, _ = flipped(frame, torch.tensor([0]), SPEC)
    assert image.nonzero().tolist() == [[0, 10, 75, 0], *([0, 90, x, 1] for x in (5, 45, 73, 90))]


def test_the_simulator_draws_the_flipped_world():
    """Steering gauges of opposite commands are each other's mirror images."""
    bars = []
    for steer in (-0.8, 0.8):
        env = make_env(EnvConfig("continuous"))
        env.reset(seed=0)
        for _ in range(8):
            frame = env.step(np.array([steer, 0, 0], np.float32))[0]
        bars.append(torch.from_numpy(frame[None].copy()))
    image, _ = flipped(bars[0], torch.tensor([0]), SPEC)
    steering = slice(37, 60)  # green, around column 48
    assert (bars[0][0, BAR_TOP:, steering].int() - bars[1][0, BAR_TOP:, steering].int()).abs().max() > 100
    assert (image[0, BAR_TOP:, steering].int() - bars[1][0, BAR_TOP:, steering].int()).abs().float().mean() < 3


def test_frames_that_do_not_count_spoil_no_mean():
    weight = torch.tensor([[1.0, 0.5, 0.0]])
    sequences = Sequences(torch.zeros(1, 3), torch.zeros(1, 3), torch.zeros(1, 3), weight)
    assert sequences.mean(torch.tensor([[1.0, 3.0, torch.nan]])) == 2.0
    assert sequences.mean(torch.tensor([[1.0, 3.0, torch.inf]])) == 2.0


def test_each_sequence_is_augmented_by_one_draw_of_one_perturbation_or_none():
    frames = torch.full((60, 4, 96, 96, 3), 200, dtype=torch.uint8)
    labels, dt = torch.zeros(60, 4, dtype=torch.int64), torch.full((60, 4), 0.02)
    sequences, specs = Sequences(frames, labels, dt, None), ["occlusion-bars:3", "shadows:2+salt-and-pepper:1"]
    changed = augmented(sequences, specs, np.random.default_rng(0), bar_top=BAR_TOP)
    assert (changed.labels is labels, changed.dt is dt, changed.weight) == (True, True, None)
    result = changed.frames
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
    again = augmented(sequences, specs, np.random.default_rng(0), bar_top=BAR_TOP).frames
    assert torch.equal(result, again)


SPECS = {
    "drop": ["frame-drop:3:zero"], "hold": ["frame-drop:2:hold"], "skip": ["frame-rate:3"], "late": ["action-delay:3"],
    "dark": ["blackouts:3"], "dark hold": ["blackouts:2:hold"], "dark skip": ["blackouts:2:skip"],
    "all": ["frame-drop:3:zero+frame-rate:2+action-delay:1", "gap:3", "scattered-gaps:2:hold", "blackouts:1"],
}  # fmt: skip


@pytest.mark.parametrize("kind", SPECS)
def test_lost_frames_and_late_actions_leave_every_query_its_frame_label_and_time(kind):
    """Frames, labels and weights name their own place, so that each query can be looked up in the recording."""
    batch, length = 40, 32
    names = torch.arange(1, batch * length + 1).view(batch, length)
    dt = torch.rand(batch, length, generator=torch.Generator().manual_seed(0)) + 0.01
    sequences = Sequences(names.unsqueeze(2).float(), names.clone(), dt, names.float())
    changed = augmented(sequences, SPECS[kind], np.random.default_rng(1), bar_top=BAR_TOP, black=torch.tensor([-1.0]))
    assert changed.weight is not None
    assert torch.equal(sequences.frames[..., 0].long(), names)  # the sequences stay as they are
    clean = disturbed = 0
    for row in range(batch):
        present = int((changed.weight[row] > 0).sum())
        assert bool((changed.weight[row, :present] > 0).all())  # what is left out is at the end
        shown, label = changed.frames[row, :present, 0], changed.labels[row, :present]
        assert torch.equal(changed.weight[row, :present], label.float())  # weights go with the labels
        black = shown == -1.0
        assert bool(((shown == names[row, 0]) | black | (shown > names[row, 0])).all())
        assert bool((shown[~black] <= label[~black]).all())  # nobody sees the future
        clean += int(present == length and torch.equal(shown, names[row].float()) and torch.equal(label, names[row]))
        disturbed += int(present < length or bool(black.any()) or not torch.equal(shown, names[row].float()))
        if kind not in ("late", "all"):  # the label names the frame, so that the time can be summed
            rows = (label - names[row, 0]).tolist()
            passed = dt[row].double().cumsum(0)[rows]
            expected = torch.cat((dt[row, :1].double(), passed.diff()))
            torch.testing.assert_close(changed.dt[row, :present].double(), expected, rtol=1e-5, atol=1e-6)
    assert clean + disturbed >= 30
    assert min(clean, disturbed) >= 5


def test_a_lost_frame_reaches_the_core_as_zeros_or_as_a_black_image(dataset):
    torch.manual_seed(0)
    black, zeros = (Driver(DriverConfig(zero_lost_frames=flag, encoder="paper")).eval() for flag in (False, True))
    zeros.load_state_dict(black.state_dict())
    frames = torch.from_numpy(dataset.load().frames[None, :6]).clone()
    frames[0, 3] = 0
    with torch.no_grad():
        plain, zeroed = black.features(frames), zeros.features(frames)
        assert bool(plain[0, 3].any())
        assert not bool(zeroed[0, 3].any())
        unlost = [0, 1, 2, 4, 5]
        assert torch.equal(plain[:, unlost], zeroed[:, unlost])
        data = TrainingData(config().data, EnvConfig(), torch.device("cpu"), ZeroBlack(black.encoder))
        assert not bool(data.black.any())
        other = TrainingData(config().data, EnvConfig(), torch.device("cpu"), black.encoder)
        torch.testing.assert_close(other.black, plain[0, 3])


@pytest.mark.parametrize("frozen", [False, True])
def test_a_driver_trains_under_lost_frames(dataset, tmp_path, frozen):
    settings = config("gru", augment=("frame-drop:2:zero", "frame-rate:2"), epochs=1, zero_lost_frames=True)
    if frozen:
        settings = nested(settings, freeze_encoder_from="expert", encoder="compact")
    train(settings, dataset, tmp_path / "run")
    train(nested(settings, augment=()), dataset, tmp_path / "clean")
    assert rows(tmp_path / "run")[0]["loss"] != rows(tmp_path / "clean")[0]["loss"]
