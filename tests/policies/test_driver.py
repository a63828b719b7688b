"""The driver and its two ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nac_drive.policies import CORES, ContinuousActionHead, ConvEncoder, DiscreteActionHead, Driver, DriverConfig
from nac_drive.policies.encoders import ENCODERS

SHAPE = (32, 36, 3)
ARGS = {name: {"num_heads": 4, "window": 3} if name.startswith("nac") else {} for name in CORES}


def make(core: str = "lstm", **changes: object) -> Driver:
    torch.manual_seed(0)
    config = {"core": core, "core_args": ARGS.get(core, {}), "d_model": 8, "dense": 8, "frame_shape": SHAPE, **changes}
    return Driver(DriverConfig(**config))  # type: ignore[arg-type]


def frames(batch: int, length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (batch, length, *SHAPE), dtype=np.uint8)


@pytest.mark.parametrize("control", ["discrete", "continuous"])
@pytest.mark.parametrize("core", CORES)
def test_acting_frame_by_frame_is_the_whole_sequence(core: str, control: str) -> None:
    driver = make(core, control=control).eval()
    video, dt = frames(1, 6), torch.tensor([[0.02, 0.02, 0.06, 0.02, 0.5, 0.02]])
    with torch.no_grad():
        prediction, _ = driver(torch.from_numpy(video), dt)
    expected = driver.action_head.action(prediction[0])
    state, actions = driver.begin(), []
    for step in range(6):
        action, state = driver.act(video[0, step], state, float(dt[0, step]))
        actions.append(action)
    np.testing.assert_allclose(actions, expected, atol=1e-5)
    assert all(type(a) is int for a in actions) if control == "discrete" else actions[0].dtype == np.float32


def test_continuous_actions_are_in_range() -> None:
    driver = make(control="continuous").eval()
    with torch.no_grad():
        for parameter in driver.parameters():
            parameter.mul_(5.0)
        prediction, _ = driver(torch.from_numpy(frames(8, 4)), torch.full((8, 4), 0.02))
    assert prediction.shape == (8, 4, 3)
    assert (prediction[..., 0].abs() <= 1.0).all()
    assert (prediction[..., 1:] >= 0.0).all()
    assert (prediction <= 1.0).all()
    assert prediction[..., 0].min() < 0.0


def test_acting_ignores_dropout_and_leaves_the_mode_as_it_was() -> None:
    driver = make(dropout=0.9).train()
    frame = frames(1, 1)[0, 0]
    _, first = driver.act(frame, driver.begin(), 0.02)
    _, second = driver.act(frame, driver.begin(), 0.02)
    assert torch.equal(first[0], second[0])
    assert driver.training
    assert driver.encoder.dropout.training
    assert not first[0].requires_grad


def test_acting_reads_views_and_read_only_frames() -> None:
    driver, frame = make(), frames(1, 1)[0, 0]
    locked = frame.copy()
    locked.setflags(write=False)
    flipped = np.ascontiguousarray(frame[:, ::-1])[:, ::-1]
    for other in (locked, flipped):
        assert torch.equal(driver.act(other, driver.begin(), 0.02)[1][0], driver.act(frame, driver.begin(), 0.02)[1][0])


@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize("core", ["nac-exact", "lstm", "cnn"])
def test_predict_is_act_for_every_row_with_resets(core: str, channels_first: bool) -> None:
    driver, video = make(core).eval(), frames(2, 5)
    starts = np.zeros((5, 2), dtype=bool)
    starts[0], starts[3, 1] = True, True
    state, predicted = None, []
    for step in range(5):
        observation = np.moveaxis(video[:, step], -1, 1) if channels_first else video[:, step]
        actions, state = driver.predict(observation, state, starts[step], deterministic=True)
        assert actions.shape == (2,)
        predicted.append(actions)
    for row in range(2):
        alone = driver.begin()
        for step in range(5):
            alone = driver.begin() if starts[step, row] else alone
            action, alone = driver.act(video[row, step], alone, 0.02)
            assert action == predicted[step][row]
        for ours, theirs in zip(alone, state, strict=True):  # type: ignore[arg-type]
            torch.testing.assert_close(ours[0], theirs[row], atol=1e-5, rtol=1e-5)


def test_stable_baselines3_evaluates_it_unchanged() -> None:
    import gymnasium as gym
    from stable_baselines3.common.evaluation import evaluate_policy

    class Toy(gym.Env):
        observation_space = gym.spaces.Box(0, 255, SHAPE, np.uint8)
        action_space = gym.spaces.Discrete(5)

        def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
            self.left = 4
            return frames(1, 1)[0, 0], {}

        def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
            assert self.action_space.contains(action)
            self.left -= 1
            return frames(1, 1, seed=self.left)[0, 0], 1.0, self.left == 0, False, {}

    driver: Any = make()  # its annotations are narrower than the protocol's: images only
    rewards, lengths = evaluate_policy(driver, Toy(), n_eval_episodes=3, return_episode_rewards=True, warn=False)
    assert rewards == [4.0] * 3
    assert lengths == [4] * 3


def test_predict_refuses_to_explore() -> None:
    driver = make()
    with pytest.raises(ValueError, match="deterministic: must be True"):
        driver.predict(frames(1, 1)[:, 0], deterministic=False)


GOOD, DT = torch.from_numpy(frames(2, 3)), torch.full((2, 3), 0.02)


@pytest.mark.parametrize(
    ("video", "dt", "message"),
    [
        (GOOD[:0], DT[:0], r"frames: shape must be \(B >= 1, T >= 1, 32, 36, 3\), got \(0, 3"),
        (GOOD[:, :0], DT[:, :0], r"frames: shape must be .*got \(2, 0"),
        (GOOD[0], DT, "frames: shape must be"),
        (GOOD.movedim(-1, 2), DT, "frames: shape must be .*channels come last"),
        (GOOD[..., :30, :], DT, "frames: shape must be"),
        (GOOD.to(torch.int32), DT, "frames: dtype must be uint8 .* got torch.int32"),
        (GOOD.float(), DT, r"frames: float frames must be in \[0, 1\].*divide by 255"),
        (GOOD.float() * torch.nan, DT, r"frames: float frames must be in \[0, 1\], got nan"),
        (GOOD, DT[:, :2], r"dt: shape must be \(B, T\) = \(2, 3\), got \(2, 2\)"),
        (GOOD, DT - 1.0, "dt: must be finite seconds >= 0 .*got -0.98"),
        (GOOD, DT * torch.nan, "dt: must be finite seconds"),
        (GOOD, DT + torch.inf, "dt: must be finite seconds"),
    ],
)
def test_bad_inputs_are_named(video: torch.Tensor, dt: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()(video, dt)


def test_acting_on_a_bad_observation_is_named() -> None:
    driver = make()
    with pytest.raises(ValueError, match="frames: shape must be"):
        driver.act(np.zeros((96, 96, 3), dtype=np.uint8), driver.begin(), 0.02)
    with pytest.raises(ValueError, match="dt: must be finite"):
        driver.act(frames(1, 1)[0, 0], driver.begin(), float("nan"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"control": "joystick"}, "control: must be one of .*got 'joystick'"),
        ({"d_model": 0}, "d_model: must be at least 1, got 0"),
        ({"dense": -1}, "dense: must be at least 1, got -1"),
        ({"dropout": 1.0}, r"dropout: must be in \[0, 1\), got 1.0"),
        ({"frame_shape": (26, 96, 3)}, r"frame_shape: must be \(H >= 27, W >= 27, 3\), got \(26, 96, 3\)"),
        ({"frame_shape": (96, 96, 1)}, "frame_shape: must be"),
        ({"frame_shape": (96, 96)}, "frame_shape: must be"),
        ({"core": "transformer"}, "core: unknown name 'transformer'"),
        ({"core_args": {"layers": 3}}, r"core_args: unknown \['layers'\]"),
    ],
)
def test_bad_configs_are_named(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)


# --- encoder ----------------------------------------------------------------------------------------------------------


def test_the_paper_s_2430_features() -> None:
    assert ConvEncoder((96, 96, 3), 64, 0.2).dense.in_features == 2430


def test_compact_vision_has_a_third_of_the_parameters() -> None:
    paper, compact = (ConvEncoder((96, 96, 3), 64, 0.2, layers) for layers in ENCODERS.values())
    assert compact.dense.in_features == 576
    assert sum(p.numel() for p in compact.parameters()) < sum(p.numel() for p in paper.parameters()) / 3


def seen_pixels(layers: tuple) -> torch.Tensor:
    """(96, 96) bool: the pixels that some feature depends on."""
    encoder = ConvEncoder((96, 96, 3), 8, 0.0, layers)
    for name, parameter in encoder.named_parameters():
        if name.startswith("convolutions"):
            nn.init.constant_(parameter, 1e-2)  # every ReLU lets through
    first: Any = encoder.convolutions[0]
    frame = torch.ones(1, 96, 96, 3, requires_grad=True)
    encoder._convolve(frame.permute(0, 3, 1, 2), first.weight, first.bias).sum().backward()
    assert frame.grad is not None
    return frame.grad[0].sum(-1) > 0


def test_compact_vision_sees_the_whole_frame_and_the_papers_all_but_five_rows_and_columns() -> None:
    """Strides leave out what does not fill a step: at the bottom that is the status bar, with the speed gauge."""
    assert seen_pixels(ENCODERS["compact"]).all()
    paper = torch.zeros(96, 96, dtype=torch.bool)
    paper[:91, :91] = True
    assert torch.equal(seen_pixels(ENCODERS["paper"]), paper)


@pytest.mark.parametrize(("name", "least"), [("paper", 27), ("compact", 1)])
def test_the_smallest_frames_leave_one_feature_per_filter(name: str, least: int) -> None:
    assert ConvEncoder((least, least, 3), 8, 0.0, ENCODERS[name]).dense.in_features == ENCODERS[name][-1][0]
    with pytest.raises(ValueError, match=rf"frame_shape: must be \(H >= {least}, W >= {least}, 3\)"):
        ConvEncoder((96, least - 1, 3), 8, 0.0, ENCODERS[name])


@pytest.mark.parametrize("layers", ENCODERS.values())
def test_vision_equals_the_plain_network_whatever_the_chunks(layers: tuple) -> None:
    torch.manual_seed(0)
    encoder = ConvEncoder((33, 36, 3), 8, 0.0, layers)
    video = torch.randint(0, 256, (2, 35, 33, 36, 3), dtype=torch.uint8)  # 70 frames: more than one chunk
    maps = video.flatten(0, 1).permute(0, 3, 1, 2).float() / 255.0 - 0.5
    convolutions: list[Any] = list(encoder.convolutions)
    for conv, (_, _, padding) in zip(convolutions, layers, strict=True):
        black = nn.functional.pad(maps, 4 * (padding,), value=-0.5 if conv is convolutions[0] else 0.0)
        maps = nn.functional.conv2d(black, conv.weight, conv.bias, stride=2).relu()
    features = encoder.dense(maps.flatten(1)).view(2, 35, 8)
    mean, variance = features.mean(-1, keepdim=True), features.var(-1, keepdim=True, unbiased=False)
    expected = (features - mean) / (variance + 1e-5).sqrt()
    torch.testing.assert_close(encoder(video), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(encoder(video.float() / 255.0), expected, atol=1e-5, rtol=1e-5)


def test_features_never_saturate_the_core_whatever_the_weights() -> None:
    """Without the norm they grow together in training until the core sees a constant, and cloning stalls."""
    encoder = ConvEncoder(SHAPE, 64, 0.0)
    with torch.no_grad():
        encoder.dense.weight.mul_(100.0)
        encoder.dense.bias.add_(1000.0)
    features = encoder(torch.from_numpy(frames(2, 3)))
    torch.testing.assert_close(features.square().mean(-1), torch.ones(2, 3), atol=1e-2, rtol=0)
    torch.testing.assert_close(features.mean(-1), torch.zeros(2, 3), atol=1e-4, rtol=0)


def test_pixels_get_gradients() -> None:
    driver, video = make("nac-exact"), (GOOD.float() / 255.0).requires_grad_()
    driver(video, DT)[0].sum().backward()
    assert video.grad is not None
    assert video.grad.isfinite().all()
    assert video.grad.any()


def test_a_residual_driver_decides_by_the_sum_of_features_and_memory() -> None:
    driver = make("lstm", residual=True).eval()
    plain = make("lstm").eval()
    plain.load_state_dict(driver.state_dict())
    features = driver.encoder(GOOD)
    y, _ = driver.core(features, DT, driver.initial_state(len(GOOD)))
    torch.testing.assert_close(driver(GOOD, DT)[0], driver.action_head(y + features))
    torch.testing.assert_close(plain(GOOD, DT)[0], driver.action_head(y))


# --- losses ----------------------------------------------------------------------------------------------------------


def test_cross_entropy_by_hand() -> None:
    logits, target = (
        torch.log(torch.tensor([[0.5, 0.2, 0.1, 0.1, 0.1], [0.1, 0.6, 0.1, 0.1, 0.1]])),
        torch.tensor([0, 1]),
    )
    loss = DiscreteActionHead.loss
    first, second = -np.log(0.5), -np.log(0.6)
    assert float(loss(logits, target)) == pytest.approx((first + second) / 2)
    assert float(loss(logits, target, torch.tensor([1.0, 3.0]))) == pytest.approx((first + 3 * second) / 4)
    assert float(loss(logits, target, classes=torch.tensor([2.0, 1, 1, 1, 1]))) == pytest.approx(
        (2 * first + second) / 3
    )
    both = loss(logits, target, torch.tensor([1.0, 3.0]), torch.tensor([2.0, 1, 1, 1, 1]))
    assert float(both) == pytest.approx((2 * first + 3 * second) / 5)
    assert float(loss(logits[None], target[None], torch.tensor([[1.0, 0.0]]))) == pytest.approx(first)


def test_squared_error_by_hand() -> None:
    prediction, target = (
        torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]),
        torch.tensor([[0.3, 1.0, 0.0], [1.0, 0.0, 0.6]]),
    )
    assert float(ContinuousActionHead.loss(prediction, target)) == pytest.approx((0.03 + 0.12) / 2)
    weighted = ContinuousActionHead.loss(prediction, target, torch.tensor([1.0, 0.0]))
    assert float(weighted) == pytest.approx(0.03)
