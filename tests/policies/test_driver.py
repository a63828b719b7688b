"""The driver: acting, predicting, and inputs that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from nac_drive.policies import CORES, ConvEncoder, Driver, DriverConfig

SHAPE = (32, 36, 3)
ARGS = {name: {"num_heads": 4, "window": 3} if name.startswith("nac") else {} for name in CORES}


def make(core: str = "lstm", **changes: object) -> Driver:
    torch.manual_seed(0)
    config = {"core": core, "core_args": ARGS.get(core, {}), "d_model": 8, "dense": 8, "frame_shape": SHAPE, **changes}
    return Driver(DriverConfig(**config))  # type: ignore[arg-type]


def frames(batch: int, length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (batch, length, *SHAPE), dtype=np.uint8)


@pytest.mark.parametrize(("core", "control"), [*((core, "discrete") for core in CORES), ("nac-exact", "continuous")])
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


def test_an_error_and_a_frozen_part_leave_the_mode_as_it_was() -> None:
    driver = make(dropout=0.9).train()
    encoder: Any = driver.encoder.eval()  # as a user freezes it
    driver.act(frames(1, 1)[0, 0], driver.begin(), 0.02)
    with pytest.raises(ValueError, match="frames: shape must be"):
        driver.predict(np.zeros((50, 50, 3), np.uint8))
    assert driver.training
    assert not encoder.dropout.training


def test_acting_ignores_dropout_and_leaves_the_mode_as_it_was() -> None:
    driver = make(dropout=0.9).train()
    frame = frames(1, 1)[0, 0]
    _, first = driver.act(frame, driver.begin(), 0.02)
    _, second = driver.act(frame, driver.begin(), 0.02)
    assert torch.equal(first[0], second[0])
    assert driver.training
    assert isinstance(driver.encoder, ConvEncoder)
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
@pytest.mark.parametrize("core", ["nac-exact", "cfc", "cnn"])
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
            action, alone = driver.act(video[row, step], alone, 0.0 if starts[step, row] else 0.02)
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
        (GOOD, DT + 2e9, r"dt: must be finite seconds >= 0 and <= 1e\+09 .*got 2e\+09"),
        (GOOD, DT.to(torch.complex64), "dt: dtype must be floating, got torch.complex64"),
        (GOOD, torch.ones(2, 3, dtype=torch.int64), r"dt: dtype must be floating, got torch.int64; pass dt.float\(\)"),
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


def test_a_driver_acts_after_a_gap_of_thirty_years() -> None:
    driver = make("cta", control="continuous").eval()
    state = driver.begin()
    for frame, dt in zip(frames(1, 6)[0], (0.0, 0.02, 1e9, 0.02, 1e9, 0.02), strict=True):
        action, state = driver.act(frame, state, dt)
        assert np.isfinite(action).all()
        assert all(tensor.isfinite().all() for tensor in state)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"residual": True, "features": 12}, r"features: must be d_model = 8 with a residual path.*got 12"),
        ({"features": 0}, "features: must be"),
        ({"control": "joystick"}, "control: must be one of .*got 'joystick'"),
        ({"d_model": 0}, "d_model: must be at least 1, got 0"),
        ({"dense": -1}, "dense: must be at least 1, got -1"),
        ({"dropout": 1.0}, r"dropout: must be in \[0, 1\), got 1.0"),
        (
            {"encoder": "paper", "frame_shape": (26, 96, 3)},
            r"frame_shape: must be \(H >= 27, W >= 27, 3\), got \(26, 96, 3\)",
        ),
        ({"frame_shape": (96, 96, 1)}, "frame_shape: must be"),
        ({"frame_shape": (96, 96)}, "frame_shape: must be"),
        (
            {"encoder": "papr"},
            r"encoder 'papr' is unknown; choose from bojarski, chroma, compact, .*thesis. Did you mean 'paper'\?",
        ),
        ({"core": "crystal-ball"}, "core 'crystal-ball' is unknown"),
        ({"core_args": {"layers": 3}}, r"core_args: unknown \['layers'\]"),
    ],
)
def test_bad_configs_are_named(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)


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


@pytest.mark.parametrize("dt_input", [False, True])
def test_an_encoder_may_have_other_features_than_the_core(dt_input: bool) -> None:
    driver = make("cfc", features=12, dt_input=dt_input).eval()
    assert (driver.core.input_size, driver.core.output_size) == (12, 8)
    video, dt = torch.from_numpy(frames(2, 3)), torch.full((2, 3), 0.06)
    with torch.no_grad():
        features = driver.features(video)
        assert features.shape == (2, 3, 12)
        inputs = features + driver.clock(torch.log1p(dt / 0.02).unsqueeze(2)) if driver.clock else features
        memory, _ = driver.core(inputs, dt, driver.initial_state(2))
        torch.testing.assert_close(driver(video, dt)[0], driver.action_head(memory))
