"""Advantages, sequences, the policy's distributions, and learning where the best actions are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3.common.buffers import RolloutBuffer

from nac_drive.envs import Control
from nac_drive.policies import CORES, Driver, DriverConfig
from nac_drive.policies.cores.lds import LDS
from nac_drive.policies.ops.threads import one_thread
from nac_drive.training.ppo import update as ppo_update
from nac_drive.training.ppo.config import PPOConfig
from nac_drive.training.ppo.envs import SingleEnvs
from nac_drive.training.ppo.policy import MARGIN, ActorCritic
from nac_drive.training.ppo.rollout import Rollouts, parts_of
from nac_drive.training.ppo.update import Learner, advantages, batches, cut
from tests.nac_drive.small import nested
from tests.policies.kinds import FIRST_OF_CLASS
from tests.slow import slow_but

SIDE = 16


@pytest.fixture(autouse=True)
def alone():
    with one_thread():
        yield


class Toy:
    """An environment with the interface of `TrainingEnv`, whose frames are grey of one brightness.

    With `delay` 0 the best action is the brightness: steer = 2 x - 1, gas = x, brake = 1 - x, or discrete action 1 for
    bright and 0 for dark frames. With a delay, the brightness of the first frame counts, and all later ones are grey.
    With `noise` every frame is random. With `is_cut` episodes are cut by a time limit in place of a rule.
    """

    def __init__(
        self, rank: int, control: str, delay: int = 0, length: int = 5, noise: bool = False, is_cut: bool = False
    ):
        self._rank, self._control, self._delay, self._length = rank, control, delay, length
        self._noise, self.is_cut = noise, is_cut

    def start_at(self, timesteps: int) -> None:
        self._rng = np.random.default_rng((self._rank, timesteps))

    def reset(self) -> tuple[np.ndarray, dict[str, Any]]:
        self._step, self.native_return = 0, 0.0
        self._first = self._now = float(self._rng.integers(2))
        return self._frame(), {"dt": 0.0}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        goal = self._first if self._delay else self._now
        if self._control == "discrete":
            reward = float(action == goal)
        else:
            reward = 1 - float(np.abs(action - [2 * goal - 1, goal, 1 - goal]).mean())
        reward *= self._step >= self._delay
        self._step += 1
        self.native_return += reward
        self._now = 0.5 if self._delay else float(self._rng.integers(2))
        ended = self._step == self._length
        return self._frame(), reward, ended and not self.is_cut, ended and self.is_cut, {"dt": 0.02}

    def privileged(self) -> np.ndarray:
        return np.array([self._first, self._now, self._step / self._length], dtype=np.float32)

    def close(self) -> None:
        pass

    def _frame(self) -> np.ndarray:
        if self._noise:
            return self._rng.integers(256, size=(SIDE, SIDE, 3), dtype=np.uint8)
        return np.full((SIDE, SIDE, 3), round(255 * self._now), dtype=np.uint8)


def policy(
    core: str = "cnn",
    control: Control = "continuous",
    distribution: str = "beta",
    encoder: str = "pooled",
    precision: str = "32-true",
    value_core: bool = False,
    **settings: Any,
) -> ActorCritic:
    torch.manual_seed(0)
    driver = Driver(DriverConfig(
        core=core, encoder=encoder, control=control, d_model=16, dense=8, frame_shape=(SIDE, SIDE, 3), num_actions=3,
        **settings,
    ))  # fmt: skip
    return ActorCritic(driver, 3, distribution, precision, value_core=value_core)


def rollouts(
    mine: ActorCritic,
    config: PPOConfig,
    sequence_length: int,
    toy: Callable[..., Any] = Toy,
    threads: int = 1,
    **settings: Any,
) -> Rollouts:
    def make(ranks: Sequence[int]) -> SingleEnvs:
        return SingleEnvs([toy(rank, mine.driver.config.control, **settings) for rank in ranks])

    return Rollouts(make, mine, config.rollout.n_envs, config.rollout.n_steps, sequence_length, threads)


SMALL = nested(
    PPOConfig(), n_envs=8, n_steps=16, batch_size=32, n_epochs=4, sequence_length=4, gamma=0.9, learning_rate=5e-3
)


def test_advantages_are_those_of_stable_baselines3():
    rng, (steps, envs) = np.random.default_rng(0), (30, 4)
    rewards, values = rng.normal(size=(2, steps + 1, envs)).astype(np.float32)
    starts = rng.random((steps + 1, envs)) < 0.2
    box = gym.spaces.Box(-1, 1, (1,))
    buffer = RolloutBuffer(steps, box, box, gae_lambda=0.9, gamma=0.8, n_envs=envs)
    for t in range(steps):
        nothing = np.zeros((envs, 1))
        buffer.add(nothing, nothing, rewards[t], starts[t], torch.tensor(values[t]), torch.zeros(envs))
    buffer.compute_returns_and_advantage(torch.tensor(values[steps]), starts[steps])
    ended, discounts = starts[1:], np.full((steps, envs), 0.8)
    mine = advantages(rewards[:steps], values[:steps], values[1:], ended, ended, discounts, 0.9)
    np.testing.assert_allclose(mine, buffer.advantages, atol=1e-5)


def test_an_episode_that_was_cut_counts_what_would_have_followed_and_no_later_episode():
    rewards, values, following = np.ones((3, 1)), np.zeros((3, 1)), np.full((3, 1), 10.0)
    discounts, ended = np.array([[0.5], [0.25], [0.5]]), np.array([[False], [True], [False]])
    cut_off = advantages(rewards, values, following, np.zeros((3, 1), bool), ended, discounts, 1.0)
    np.testing.assert_allclose(cut_off[:, 0], [1 + 5 + 0.5 * (1 + 2.5), 1 + 2.5, 1 + 5])
    ruled = advantages(rewards, values, following, ended, ended, discounts, 1.0)
    np.testing.assert_allclose(ruled[:, 0], [1 + 5 + 0.5 * 1, 1, 1 + 5])


@pytest.mark.parametrize("length", [1, 4, 16])
def test_sequences_hold_every_action_once_and_stay_within_an_episode(length):
    starts = np.random.default_rng(1).random((16, 5)) < 0.2
    count = np.zeros(starts.shape, dtype=int)
    for row, column, steps in cut(starts, length):
        assert 1 <= steps <= length
        assert not starts[row + 1 : row + steps, column].any()
        count[row : row + steps, column] += 1
    assert (count == 1).all()


@pytest.mark.parametrize("actor", [True, False])
@pytest.mark.parametrize(("core", "length"), [("cnn", 4), ("lstm", 1), ("lstm", 4), ("lstm", 16)])
def test_every_batch_has_its_size_and_every_epoch_every_action_once(monkeypatch, core, length, actor):
    """Episodes of 5 and 7 actions end within sequences."""
    config = nested(SMALL, sequence_length=length)
    steps: list[np.ndarray] = []
    real = Learner._step

    def step(learner: Learner, rollout: Any, data: Any, sequences: np.ndarray, actor: bool) -> torch.Tensor:
        steps.append(sequences)
        return real(learner, rollout, data, sequences, actor)

    monkeypatch.setattr(Learner, "_step", step)
    mine = policy(core)
    learner = Learner(mine, config.optim)
    driving = rollouts(
        mine, config, learner.sequence_length, lambda rank, control: Toy(rank, control, length=5 + rank % 2 * 2)
    )
    driving.start_at(0, 1)
    learner.update(driving.drive(), 0.0, np.random.default_rng(0), actor=actor)
    actions = config.rollout.n_steps * config.rollout.n_envs
    updates = actions // config.optim.batch_size
    assert [int(batch[:, 2].sum()) for batch in steps] == [config.optim.batch_size] * updates * config.optim.n_epochs
    orders = set()
    for epoch in range(config.optim.n_epochs):
        sequences = np.concatenate(steps[epoch * updates : (epoch + 1) * updates])
        rows = [(column, row + i) for row, column, count in sequences.tolist() for i in range(count)]
        assert len(set(rows)) == len(rows) == actions
        orders.add(tuple(rows))
    assert len(orders) == config.optim.n_epochs, "every epoch has an order of its own"


def test_batches_that_sequences_do_not_fill_are_as_even_as_whole_sequences_allow():
    starts = np.zeros((24, 5), dtype=bool)
    starts[7, 2] = True
    sequences = cut(starts, 8)
    for size, expected in ((20, {16, 24}), (60, {56, 64}), (2, {8}), (120, {120})):
        sizes = [int(sequences[batch, 2].sum()) for batch in batches(sequences, 8, size, np.random.default_rng(0))]
        assert set(sizes) == expected
        assert sum(sizes) == starts.size


@pytest.mark.parametrize(
    ("core", "settings"),
    [
        *slow_but([(core, {}) for core in FIRST_OF_CLASS], [(core, {}) for core in CORES]),
        ("gru", {"dropout": 0.5}),
        ("cnn", {"dropout": 0.5, "encoder": "compact", "control": "discrete"}),
        ("gru", {"zero_lost_frames": True, "control": "discrete"}),
        ("cfc", {"dt_input": True, "residual": True}),
        ("cfc", {"clockless": True, "distribution": "gaussian"}),
    ],
)
def test_the_policy_that_learns_is_the_one_that_drove(core, settings):
    """At unchanged weights every ratio is 1, also with dropout or a core that adds noise in training."""
    config = nested(SMALL, n_envs=2, n_steps=4, batch_size=4, n_epochs=1, sequence_length=2)
    mine = policy(core, **settings)
    learner = Learner(mine, config.optim)
    driving = rollouts(mine, config, learner.sequence_length, noise=True)
    driving.start_at(0, 1)
    for _ in range(2):
        learned = learner.update(driving.drive(), 0.0, np.random.default_rng(0))
        assert learned["clip_fraction"] == 0
        assert abs(learned["approx_kl"]) < 1e-6


@pytest.mark.parametrize("control", ["continuous", "discrete"])
def test_bfloat16_rounds_the_encoder_and_nothing_else(control):
    """Log probabilities and gradients equal float32's up to the rounding of features, 2^-8 of their size."""
    results = []
    for precision in ("32-true", "bf16-mixed"):
        mine = policy("lstm", control, precision=precision)
        frames = torch.rand((64, 2, SIDE, SIDE, 3), generator=torch.Generator().manual_seed(0))
        prepared, state = mine.driver.prepare(frames), mine.driver.initial_state(64)
        distribution, after = mine(prepared, torch.full((64, 2), 0.02), state)
        log_probs = distribution.log_prob(torch.full((64, 2, 3), 0.3) if mine.spread else torch.ones(64, 2))
        weights = {name: weight for name, weight in mine.driver.named_parameters() if "encoder" in name}
        gradient = torch.cat([part.flatten() for part in torch.autograd.grad(log_probs.sum(), list(weights.values()))])
        assert {tensor.dtype for tensor in (log_probs, gradient, *after)} == {torch.float32}
        results.append((log_probs.detach(), gradient))
    (log_probs, gradient), (rounded, rounded_gradient) = results
    assert 0 < (rounded - log_probs).abs().max() < 0.02
    assert torch.cosine_similarity(gradient, rounded_gradient, dim=0) > 0.999


def test_in_bfloat16_too_the_policy_that_learns_is_the_one_that_drove():
    """Batches of another size may round otherwise, which the ratios show: by far less than `clip_range`."""
    mine = policy("gru", precision="bf16-mixed")
    learner = Learner(mine, SMALL.optim)
    driving = rollouts(mine, SMALL, learner.sequence_length, noise=True)
    driving.start_at(0, 1)
    learned = learner.update(driving.drive(), 0.0, np.random.default_rng(0))
    assert learned["clip_fraction"] == 0
    assert abs(learned["approx_kl"]) < 1e-5


@pytest.mark.parametrize("control", ["continuous", "discrete"])
@pytest.mark.parametrize("core", ["cnn", "lstm", "nac-exact", "cfc"])
def test_backpropagation_through_time_sees_the_log_probabilities_of_the_rollout(core, control):
    """Over two rollouts, with episodes that end within sequences and go on across rollouts."""
    config = nested(SMALL, n_steps=8, n_epochs=1)
    mine = policy(core, control)
    learner = Learner(mine, config.optim)
    driving = rollouts(mine, config, learner.sequence_length, length=7)
    driving.start_at(0, 1)
    for _ in range(2):
        rollout = driving.drive()
        assert rollout.ended.any()
        before = [parameter.clone() for parameter in mine.parameters()]
        learned = learner.update(rollout, 0.0, np.random.default_rng(0))
        assert learned["clip_fraction"] == 0
        assert abs(learned["approx_kl"]) < 1e-6
        assert all(torch.equal(*pair) for pair in zip(before, mine.parameters(), strict=True))


def smooth_l1(error: torch.Tensor) -> torch.Tensor:
    return torch.where(error.abs() < 1, error**2 / 2, error.abs() - 0.5)


@pytest.mark.parametrize(
    ("core", "settings"),
    [("lds", {}), ("lstm", {"distribution": "gaussian"}), ("cfc", {"control": "discrete"})],
)
def test_an_update_descends_the_loss_as_it_is_written(core, settings, monkeypatch):
    """Action by action, with ratios beyond the clip range, actions of several durations and a stability loss."""
    monkeypatch.setattr(ppo_update, "_ACTIONS_PER_SHARD", 8)  # three shards, which make one gradient
    config = nested(SMALL, n_envs=3, n_steps=8, batch_size=24, n_epochs=1, ent_coef=0.3, gae_lambda=0.8)
    mine = policy(core, **settings)
    mine.get_parameter("value.4.weight").data.mul_(30)  # errors on both sides of the bend of the value loss
    if core == "lds":
        mine.get_parameter("driver.core.dynamics").data.add_(0.3)
    learner = Learner(mine, config.optim)
    driving = rollouts(mine, config, learner.sequence_length)
    driving.start_at(0, 1)
    driving.drive()
    rng, rollout = np.random.default_rng(3), driving.drive()
    noise = rng.normal(0, 0.3, rollout.log_probs.shape).astype(np.float32)
    durations = rng.choice([0.02, 0.08], rollout.durations.shape).astype(np.float32)
    ended = rollout.ended & (rng.random(rollout.ended.shape) < 0.5)  # some episodes are cut, others end by a rule
    rollout = replace(rollout, log_probs=rollout.log_probs + noise, durations=durations, terminated=ended)
    gradients: dict[str, torch.Tensor] = {}

    def step(optimizer: Any, closure: Any = None) -> None:
        gradients.update(
            {name: weight.grad.clone() for name, weight in mine.named_parameters() if weight.grad is not None}
        )

    monkeypatch.setattr(torch.optim.Adam, "step", step)
    learned = learner.update(rollout, 1e-3, np.random.default_rng(0))

    values = mine.values(torch.from_numpy(rollout.privileged))
    following = mine.values(torch.from_numpy(rollout.after)).detach()
    advantage = np.zeros(rollout.rewards.shape)
    for e in range(3):
        later = 0.0
        for t in reversed(range(8)):
            discount = 0.9 ** round(float(rollout.durations[t, e]) * 50)
            value = float(values.detach()[t, e])
            after = 0.0 if rollout.terminated[t, e] else float(following[t, e])
            error = float(rollout.rewards[t, e]) + discount * after - value
            later = error + (0.0 if rollout.ended[t, e] else discount * 0.8 * later)
            advantage[t, e] = later
    targets = torch.from_numpy(advantage) + values.detach()
    scaled = (advantage - advantage.mean()) / advantage.std()
    gains, entropies, log_ratios = [], [], []
    for e in range(3):
        for t in range(8):
            if t % 4 == 0:  # gradients go back four actions
                state = tuple(part[t // 4, e : e + 1] for part in rollout.states)
            if rollout.starts[t, e]:
                state = tuple(torch.zeros_like(part) for part in state)
            frame, dt = rollout.frames[t, e][None, None], torch.from_numpy(rollout.dt[t, e : e + 1])
            distribution, state = mine(frame, dt[None], state)
            log_prob = distribution.log_prob(torch.from_numpy(np.asarray(rollout.samples[t, e]))[None, None])[0, 0]
            log_ratios.append(log_prob - float(rollout.log_probs[t, e]))
            ratio = log_ratios[-1].exp()
            bounded = min(max(ratio, torch.tensor(0.8)), torch.tensor(1.2))
            gains.append(min(ratio * scaled[t, e], bounded * scaled[t, e]))
            entropies.append(distribution.entropy()[0, 0])
    value_loss = smooth_l1(values - targets).mean()
    entropy, ratios = torch.stack(entropies).mean(), torch.stack(log_ratios).exp()
    loss = value_loss - torch.stack(gains).mean() - 0.3 * entropy + mine.driver.core.penalty()
    mine.zero_grad()
    loss.backward()
    assert gradients.keys() == dict(mine.named_parameters()).keys()
    for is_value in (True, False):
        names = [name for name in gradients if name.startswith("value.") == is_value]
        expected = {name: mine.get_parameter(name).grad for name in names}
        norm = sum(float(gradient.square().sum()) for gradient in expected.values() if gradient is not None) ** 0.5
        assert (norm > 0.5) == (core != "cfc" or is_value), "most gradients are clipped"
        for name, gradient in expected.items():
            assert gradient is not None
            torch.testing.assert_close(gradients[name], min(1.0, 0.5 / norm) * gradient, atol=2e-6, rtol=2e-4, msg=name)
    outside = (ratios - 1).abs() > 0.2
    assert 0 < outside.sum() < len(outside)
    assert learned == pytest.approx({
        "loss": (loss - mine.driver.core.penalty()).item(), "policy_loss": -torch.stack(gains).mean().item(),
        "value_loss": value_loss.item(), "entropy": entropy.item(), "clip_fraction": outside.float().mean().item(),
        "approx_kl": (ratios - 1 - ratios.log()).mean().item(),
    }, rel=1e-4)  # fmt: skip


def test_a_core_is_corrected_after_every_step_of_the_driver(monkeypatch):
    corrected: list[bool] = []
    monkeypatch.setattr(LDS, "after_step", lambda core: corrected.append(True))
    mine = policy("lds")
    learner = Learner(mine, SMALL.optim)
    driving = rollouts(mine, SMALL, learner.sequence_length)
    driving.start_at(0, 1)
    rollout = driving.drive()
    learner.update(rollout, 1e-3, np.random.default_rng(0), actor=False)
    assert not corrected
    learner.update(rollout, 1e-3, np.random.default_rng(0))
    assert (
        len(corrected) == SMALL.optim.n_epochs * SMALL.rollout.n_envs * SMALL.rollout.n_steps // SMALL.optim.batch_size
    )


@pytest.mark.parametrize("core", ["circuitnet-lap", "nac-exact", "lds"])
def test_a_value_network_with_a_core_looks_at_one_state_at_a_time(core: str):
    args = {"neurons": 4, "iterations": 2} if core == "circuitnet-lap" else {}
    network = policy(core, core_args=args, value_core=True)
    states = torch.randn(2, 5, 3)
    with torch.no_grad():
        values = network.values(states)
        assert values.shape == (2, 5)
        for row, column in ((0, 0), (0, 3), (1, 4)):
            torch.testing.assert_close(network.values(states[row, column]), values[row, column])
        frames = states.reshape(-1, 1, 3)
        of_value: Any = network.value
        y, _ = of_value.core(frames, torch.full((10, 1), 0.02), of_value.core.initial_state(10))
        torch.testing.assert_close(of_value.out(y)[:, 0, 0].view(2, 5), values)
    assert type(of_value.core) is type(network.driver.core)
    assert of_value.core is not network.driver.core


@pytest.mark.slow
def test_a_value_network_with_a_core_learns_the_rewards_and_is_corrected(monkeypatch):
    corrected: list[Any] = []
    monkeypatch.setattr(LDS, "after_step", lambda core: corrected.append(core))
    monkeypatch.setattr(LDS, "penalty", lambda core: 0.0)
    network = policy("lds", value_core=True)
    learner = Learner(network, SMALL.optim)
    driving = rollouts(network, SMALL, learner.sequence_length)
    driving.start_at(0, 1)
    losses = []
    for number in range(12):
        rollout = driving.drive()
        losses.append(learner.update(rollout, 5e-3, np.random.default_rng(number), actor=False)["value_loss"])
    of_value: Any = network.value
    assert losses[-1] < 0.5 * losses[0]
    assert {id(core) for core in corrected} == {id(of_value.core)}  # the driver's core does not learn yet
    learner.update(rollout, 5e-3, np.random.default_rng(0))
    assert {id(core) for core in corrected} == {id(of_value.core), id(network.driver.core)}


@pytest.mark.parametrize("encoder", ["pooled", "compact"])
@pytest.mark.parametrize("distribution", ["beta", "gaussian"])
def test_the_middle_of_the_distribution_is_the_drivers_own_action(encoder, distribution):
    mine = policy(distribution=distribution, encoder=encoder)
    with torch.no_grad():
        mine.driver.action_head.out.weight.mul_(5)
    frames = torch.randint(256, (1, 6, SIDE, SIDE, 3), dtype=torch.uint8)
    dt = torch.zeros(1, 6)
    with torch.no_grad():
        drawn: Any = mine(mine.driver.prepare(frames), dt, ())[0]
        expected, _ = mine.driver(frames, dt)
    torch.testing.assert_close(mine.actions(drawn.mean), expected, atol=3e-4, rtol=0)


@pytest.mark.parametrize("squashed", [1e-6, 3e-5, 1e-3, 0.3, 0.999, 0.99997])
def test_the_mean_of_a_beta_distribution_has_a_gradient_up_to_the_ends_of_the_range(squashed):
    """The mean is an affine map of the driver's action, which keeps the margin of the samples at both ends."""
    mine, z = policy(), torch.tensor(squashed, dtype=torch.float64).logit().float()
    head: Any = mine.driver.action_head
    torch.nn.init.zeros_(head.out.weight)
    head.out.bias.data = torch.stack((z / 2, z, z))  # tanh(z / 2) is 2 sigmoid(z) - 1
    frame = torch.zeros(1, 1, SIDE, SIDE, 3, dtype=torch.uint8)
    drawn: Any = mine(mine.driver.prepare(frame), torch.zeros(1, 1), ())[0]
    mean = drawn.mean[0, 0]
    expected = MARGIN + (1 - 2 * MARGIN) * squashed
    torch.testing.assert_close(mean, torch.full((3,), expected), atol=2e-7, rtol=0)
    (gradient,) = torch.autograd.grad(mean.sum(), head.out.bias)
    slope = (1 - 2 * MARGIN) * squashed * (1 - squashed)
    torch.testing.assert_close(gradient, torch.tensor([2 * slope, slope, slope]), atol=0, rtol=0.15)


@pytest.mark.parametrize(("distribution", "noise"), [("beta", 0.05), ("beta", 0.22), ("gaussian", 0.02)])
def test_action_noise_is_the_spread_of_an_action_in_the_middle_of_its_range(distribution, noise):
    """Of 20,000 samples; squashed normal ones have it in the limit of small noise."""
    torch.manual_seed(1)
    mine = ActorCritic(policy().driver, 3, distribution, action_noise=noise)
    head: Any = mine.driver.action_head
    torch.nn.init.zeros_(head.out.weight)
    torch.nn.init.zeros_(head.out.bias)
    frames = torch.zeros(100, 1, SIDE, SIDE, 3, dtype=torch.uint8)
    with torch.no_grad():
        drawn, _ = mine(mine.driver.prepare(frames), torch.zeros(100, 1), ())
    rng = np.random.default_rng(1)
    actions = mine.actions(torch.stack([mine.sample(drawn, rng) for _ in range(200)]))
    spread = actions.flatten(0, 2).std(dim=0) / torch.tensor([2.0, 1.0, 1.0])
    torch.testing.assert_close(spread, torch.full((3,), noise), rtol=0.03, atol=0)
    assert actions.min() >= -1
    assert actions.max() <= 1


LEARNS = [
    ("cnn", "continuous", "beta", 0, 20),
    ("cnn", "continuous", "gaussian", 0, 30),
    ("cnn", "discrete", "beta", 0, 15),
    ("lstm", "discrete", "beta", 3, 20),
]


@pytest.mark.parametrize(
    ("core", "control", "distribution", "delay", "rounds"),
    slow_but([LEARNS[-1]], LEARNS),
)
def test_it_learns_what_is_rewarded_and_with_a_memory_what_was_seen_before(core, control, distribution, delay, rounds):
    config = nested(SMALL, n_envs=16, n_steps=8, batch_size=64)
    mine = policy(core, control, distribution)
    learner = Learner(mine, config.optim)
    driving = rollouts(mine, config, learner.sequence_length, delay=delay, length=delay + 1 if delay else 5)
    driving.start_at(0, 1)
    order, means = np.random.default_rng(0), []
    for _ in range(rounds):
        rollout = driving.drive()
        learner.update(rollout, config.optim.learning_rate, order)
        means.append(
            rollout.rewards[rollout.rewards > 0].sum() / rollout.ended.sum() if delay else rollout.rewards.mean()
        )
        if len(means) >= 8 and np.mean(means[-5:]) > 0.85:
            break
    chance = 1 / 3 if control == "discrete" else 0.5
    assert np.mean(means[:3]) < chance + 0.15
    assert np.mean(means[-5:]) > 0.85


@pytest.mark.parametrize("is_cut", [False, True])
def test_the_returns_are_those_of_whole_episodes(is_cut):
    """An episode that a time limit of training has cut is none, but its rewards are learned from."""
    driving = rollouts(policy(), SMALL, 1, is_cut=is_cut)
    driving.start_at(0, 1)
    rollout = driving.drive()
    assert rollout.ended.sum() == SMALL.rollout.n_envs * (SMALL.rollout.n_steps // 5)
    assert rollout.terminated.any() != is_cut
    assert len(rollout.returns) == (0 if is_cut else rollout.ended.sum())
    if not is_cut:
        rewards = [rollout.rewards[first : first + 5].sum(axis=0) for first in (0, 5, 10)]
        np.testing.assert_allclose(sorted(rollout.returns), sorted(np.concatenate(rewards)), rtol=1e-5)


@pytest.mark.parametrize(
    ("control", "precision"),
    slow_but(
        [("continuous", "32-true")], [("continuous", "32-true"), ("discrete", "32-true"), ("continuous", "bf16-mixed")]
    ),
)
def test_any_number_of_threads_drives_and_learns_the_same_bit_for_bit(control, precision, monkeypatch):
    monkeypatch.setattr(ppo_update, "_ACTIONS_PER_SHARD", 32)  # three shards a batch
    results = []
    for threads in (1, 3):
        mine = policy("lstm", control, precision=precision)
        learner = Learner(mine, nested(SMALL, batch_size=96).optim, threads)
        driving = rollouts(mine, nested(SMALL, n_envs=24, n_steps=8), learner.sequence_length, threads=threads)
        driving.start_at(7, 3)
        for _ in range(2):
            rollout = driving.drive()
            learner.update(rollout, 1e-2, np.random.default_rng(0))
        results.append((rollout, mine.state_dict()))
    (rollout, weights), *others = results
    for other, other_weights in others:
        for field in fields(rollout):
            assert np.array_equal(getattr(rollout, field.name), getattr(other, field.name)), field.name
        assert all(torch.equal(weights[name], other_weights[name]) for name in weights)
    assert len({rollout.samples[:, column].tobytes() for column in range(24)}) == 24, "each has its own random numbers"


def test_the_parts_of_a_rollout_follow_from_the_number_of_environments():
    for n_envs, expected in ((1, [1]), (2, [1, 1]), (3, [1, 2]), (16, [8, 8]), (32, [16, 16]), (64, [16] * 4)):
        parts = parts_of(n_envs)
        assert [len(part) for part in parts] == expected
        assert [rank for part in parts for rank in part] == list(range(n_envs))


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_of_an_environment_is_raised_here(threads):
    class Broken(Toy):
        def step(self, action: Any) -> Any:
            raise ValueError("flat tyre")

    driving = rollouts(policy(), SMALL, 1, Broken, threads)
    driving.start_at(0, 0)
    with pytest.raises(ValueError, match="flat tyre"):
        driving.drive()
