"""Tiny runs of PPO."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from nac_drive.data_collection.drivers import driver_hash
from nac_drive.envs import SPLITS, Control, EnvConfig, make_env, rollout
from nac_drive.events import Event
from nac_drive.parallel.processes import default_workers
from nac_drive.policies import CORES, Driver, DriverConfig, load_driver, save_driver
from nac_drive.policies.ops.threads import one_thread
from nac_drive.storage.lock import FolderInUseError
from nac_drive.training.finite import DivergedError
from nac_drive.training.plan import TrainingPlan
from nac_drive.training.ppo import config as ppo_config
from nac_drive.training.ppo import envs as ppo_envs
from nac_drive.training.ppo import run as ppo_module
from nac_drive.training.ppo.config import PPOConfig
from nac_drive.training.ppo.env import training_env
from nac_drive.training.ppo.run import ppo
from nac_drive.training.run_folder import RunFolder
from tests.data_collection.recordings import contents
from tests.nac_drive.small import (
    FRAMES,
    Stop,
    checkpoint,
    killed_at_every_operation,
    nested,
    results,
    score_of_weights,
    stop_at,
)
from tests.nac_drive.small import rows as rows_without_times
from tests.slow import slow_but

TINY = nested(PPOConfig(),
    driver=DriverConfig(core="cnn", encoder="pooled", d_model=8, dense=8), total_timesteps=96, n_envs=2, n_steps=16,
    action_repeat=1, patience=0, sequence_length=8, value_warmup_steps=16, batch_size=16, n_epochs=1,
    learning_rate=1e-3, ema_decay=0.5, validate_every=32, validation_tracks="val-2",
)  # fmt: skip

ENV = EnvConfig(max_steps=3)
POLICY = "training_state/policy.safetensors"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(ppo_module, "default_workers", lambda: 1)
    monkeypatch.setattr(ppo_config, "EnvConfig", partial(EnvConfig, max_steps=FRAMES))
    with one_thread():
        yield


@pytest.fixture
def no_validation(monkeypatch):
    """No validation episodes: a score that depends on the weights stands in their place."""
    monkeypatch.setattr(ppo_module, "closed_loop", score_of_weights)


class Watch:
    """Collects the events of a run, and the weights at each validation."""

    def __init__(self, folder: Path, stop_at: int | None = None):
        self.folder, self.stop_at = folder, stop_at
        self.events: list[Event] = []
        self.drivers: dict[int, dict[str, torch.Tensor]] = {}

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if not event.total:
            step = int(event.job.removeprefix("validation at step "))
            self.drivers[step] = load_driver(self.folder / "checkpoints" / "last").state_dict()
            if step == self.stop_at:
                raise KeyboardInterrupt

    @property
    def kinds(self) -> list[str]:
        names = {"ppo": "rollout", "validation": "episode"}
        return [names.get(event.job, "row") for event in self.events if event.done or not event.total]


def controlled(core: str = "cnn", control: Control = "discrete", **settings: Any) -> PPOConfig:
    """TINY with another core or control."""
    base = PPOConfig().driver if "init_from" in settings else TINY.driver
    return nested(TINY, driver=replace(base, core=core, control=control), **settings)


class CountingPool:
    """A pool that works here."""

    tasks = 0

    def imap(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        for task in tasks:
            self.tasks += 1
            yield function(task)

    imap_unordered = imap


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_it_warms_up_learns_validates_and_goes_on_after_an_interruption(tmp_path):
    folder = tmp_path / "run"
    watch = Watch(folder, stop_at=32)
    with pytest.raises(KeyboardInterrupt):
        ppo(TINY, folder, progress=watch)
    assert watch.kinds == ["episode", "episode", "row", "rollout", "episode", "episode", "row"]
    assert same(watch.drivers[0], watch.drivers[32])  # only the value network has learned so far

    with pytest.raises(FileExistsError, match="--resume"):
        ppo(TINY, folder)
    with pytest.raises(ValueError, match=rf"optim.gamma: run has {TINY.optim.gamma}, got 0.5"):
        ppo(nested(TINY, gamma=0.5), folder, resume=True)

    again = Watch(folder)
    best = ppo(TINY, folder, resume=True, pool=(pool := CountingPool()), progress=again)
    assert pool.tasks == 2 * min(2, default_workers())  # two tracks in parts, at 64 and at 96
    assert [kind for kind in again.kinds if kind != "episode"] == ["rollout", "row", "rollout", "row"]
    assert not same(again.drivers[64], watch.drivers[32])  # the actor learns
    run = RunFolder.open(folder)
    rows = run.rows()
    assert [row["step"] for row in rows] == [0, 32, 64, 96]
    assert rows[0]["returns"] == rows[1]["returns"]
    notes = [event.note for event in watch.events + again.events if not event.total]
    assert notes == [f"return {row['return_mean']:.1f}, min {min(row['returns']):.1f}" for row in rows]
    seconds = [row["seconds"] for row in rows]
    assert seconds[0] == 0
    assert seconds == sorted(set(seconds))  # they add up over interruptions
    for row in rows:
        assert len(row["returns"]) == 2
        assert row["score"] == pytest.approx(np.mean(row["returns"]) - 0.5 * np.std(row["returns"]))
        assert row["return_mean"] == pytest.approx(np.mean(row["returns"]))
    winner = max(rows, key=lambda row: row["score"])
    assert best == run.checkpoint_folder("best")
    assert best.name == f"step_{winner['step']}"
    driver = load_driver(best)
    assert driver.meta["step"] == winner["step"]
    assert driver.meta["training"]["rollout"]["n_envs"] == 2
    env = EnvConfig(max_steps=FRAMES)
    assert [rollout(make_env(env), driver, seed).episode_return for seed in (800_000, 800_001)] == winner["returns"]

    finished = Watch(folder)
    assert ppo(TINY, folder, resume=True, progress=finished) == best
    assert finished.events == []


@pytest.mark.parametrize(("repeat", "frames"), [(1, 32), (2, 64)])
def test_the_rate_falls_the_penalties_grow_and_the_note_has_the_mean_return(
    tmp_path, no_validation, monkeypatch, repeat, frames
):
    """Four rollouts, whose returns are scripted; the latest hundred count."""
    updates: list[tuple[float, bool]] = []
    shares: list[float] = []
    scripted = iter(([], [1.0, 3.0], [*[2.0] * 97, 9.0], [103.0, 1.0]))
    drive = ppo_module.Rollouts.drive

    def update(learner: Any, rollout: Any, rate: float, order: Any, *, actor: bool) -> dict[str, float]:
        updates.append((rate, actor))
        return {"kl": 0.5}

    monkeypatch.setattr(ppo_module.Learner, "update", update)

    def drive_scripted(self: Any, penalty_share: float) -> Any:
        shares.append(penalty_share)
        return replace(drive(self, penalty_share), returns=next(scripted))

    monkeypatch.setattr(ppo_module.Rollouts, "drive", drive_scripted)
    config = controlled(total_timesteps=4 * frames, action_repeat=repeat, validate_every=4 * frames)
    config = nested(config, value_warmup_steps=2 * frames, penalty_warmup_steps=2 * frames)
    watch = Watch(tmp_path / "run")
    ppo(config, tmp_path / "run", progress=watch)
    events = [event for event in watch.events if event.job == "ppo"]
    assert [event.done for event in events] == [frames, 2 * frames, 3 * frames, 4 * frames]
    assert updates == [(pytest.approx(1e-3 * part), part <= 0.5) for part in (1.0, 0.75, 0.5, 0.25)]
    assert shares == [0.0, 0.5, 1.0, 1.0]
    means = [None, 2.0, (1 + 3 + 97 * 2 + 9) / 100, (97 * 2 + 9 + 103 + 1) / 100]
    notes = ["kl 0.5", *(f"return {mean:.1f}, kl 0.5" for mean in means[1:])]
    assert [event.note for event in events] == notes
    assert all(event.total == 4 * frames for event in events)


@pytest.mark.parametrize("control", ["discrete", "continuous", "pulsed"])
def test_a_random_driver_begins_with_actions_that_hardly_depend_on_the_frame(control):
    config = controlled("lstm", control, seed=7)
    driver = ppo_module.build_policy(TrainingPlan.resolve(config, config.env)).driver
    torch.manual_seed(7)
    plain = Driver(config.driver).state_dict()
    for name, weight in driver.state_dict().items():
        expected = plain[name]
        if name == "action_head.out.weight":
            expected = 0.1 * expected
        if name == "action_head.out.bias":
            expected = torch.zeros(5) if control == "discrete" else torch.tensor([0.0, 0.0, -3.0])
        assert torch.equal(weight, expected), name


def test_more_timesteps_go_on_from_the_last_checkpoint_and_fewer_are_refused(tmp_path, no_validation):
    folder, short = tmp_path / "run", nested(TINY, total_timesteps=32, value_warmup_steps=0)
    first, second = Watch(folder), Watch(folder)
    ppo(short, folder, progress=first)
    before = rows_without_times(folder)
    ppo(nested(short, total_timesteps=96), folder, resume=True, progress=second)
    rows = rows_without_times(folder)
    assert [row["step"] for row in rows] == [0, 32, 64, 96]
    assert rows[:2] == before
    assert not same(second.drivers[64], first.drivers[32])
    assert RunFolder.open(folder).config["total_timesteps"] == 96
    left = contents(folder)
    with pytest.raises(ValueError, match="total_timesteps: run has 96, got 32, but it may only grow") as caught:
        ppo(short, folder, resume=True)
    assert "\n" not in str(caught.value)
    assert contents(folder) == left


@pytest.mark.parametrize("start", slow_but(["lstm"], ["cnn", "lstm", "circuitnet-l", "a driver with dropout"]))
def test_interrupted_in_the_middle_it_ends_the_same_bit_for_bit(tmp_path, no_validation, start):
    """The value warm-up ends, an augmentation is drawn and the learning rate falls; two rollouts are lost."""
    settings: dict[str, Any] = {
        "total_timesteps": 128, "validate_every": 64, "n_epochs": 2, "augment": ("colour:3",), "ent_coef": 0.01,
    }  # fmt: skip
    if start in CORES:
        config = controlled(start, value_core=start == "circuitnet-l", **settings)
    else:
        saved(tmp_path / "clone", "discrete", dropout=0.5)
        config = controlled(init_from=str(tmp_path / "clone"), **settings)
    ppo(config, tmp_path / "straight")
    folder = tmp_path / "resumed"
    for left in ([0, 32], [0, 32, 64, 96]):
        with pytest.raises(Stop):
            ppo(config, folder, resume=left != [0, 32], progress=stop_at(1, "ppo", after=left[-1]))
        assert [row["step"] for row in rows_without_times(folder)] == left
        torch.rand(7)  # other work of the process in between
    ppo(config, folder, resume=True)
    rows = rows_without_times(folder)
    assert [row["step"] for row in rows] == [0, 32, 64, 96, 128]
    assert ["returns" in row for row in rows] == [True, False, True, False, True]
    assert all({"loss", "value_loss", "learning_rate", "episodes"} <= row.keys() for row in rows[1:])
    assert ["entropy" in row for row in rows] == [False, False, True, True, True]  # the value network warms up
    assert results(folder) == results(tmp_path / "straight")
    policies = [(checkpoint(run, "last") / POLICY).read_bytes() for run in (folder, tmp_path / "straight")]
    assert policies[0] == policies[1]


@pytest.mark.slow
def test_killed_at_any_file_operation_it_resumes_to_the_same(tmp_path, monkeypatch):
    config = nested(TINY, total_timesteps=8, n_envs=1, n_steps=8, batch_size=8, value_warmup_steps=0, validate_every=8)
    monkeypatch.setattr(ppo_module, "closed_loop", score_of_weights)
    monkeypatch.setattr(ppo_config, "EnvConfig", partial(EnvConfig, max_steps=8))
    kills = killed_at_every_operation(
        monkeypatch, tmp_path, lambda path, resume: ppo(config, path, resume=resume), results
    )
    assert kills > 10


def test_weights_that_are_not_finite_stop_it_and_the_last_checkpoint_stays(tmp_path, monkeypatch, no_validation):
    """A rate of 10 diverges at once; a gradient of NaN stands in for it."""
    folder, real = tmp_path / "run", torch.nn.utils.clip_grad_norm_

    def spoil(parameters, *arguments):
        parameters = list(parameters)
        if (folder / "checkpoints" / "step_32").exists():
            parameters[0].grad.fill_(float("nan"))
        return real(parameters, *arguments)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", spoil)
    with pytest.raises(DivergedError, match=r"weights '.*' of frame 64 are not finite; the last checkpoint is kept"):
        ppo(nested(TINY, value_warmup_steps=0), folder)
    assert [row["step"] for row in rows_without_times(folder)] == [0, 32]
    assert checkpoint(folder, "last").name == "step_32"
    load_driver(folder)


def test_it_leaves_nothing_in_the_systems_temporary_folder(tmp_path, monkeypatch, no_validation):
    (tmp_path / "system").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "system"))
    ppo(nested(TINY, total_timesteps=32), tmp_path / "run")
    assert not list((tmp_path / "system").iterdir())


def test_a_second_process_is_refused(tmp_path, no_validation):
    def progress(event: Event) -> None:
        if event.job == "ppo":
            with pytest.raises(FolderInUseError, match="is in use by another process"):
                ppo(config, tmp_path / "run", resume=True)

    config = nested(TINY, total_timesteps=32)
    ppo(config, tmp_path / "run", progress=progress)


def test_a_driver_that_can_drive_pays_in_full_from_the_start():
    shares = [
        ppo_module._penalty_share(config, 250_000) for config in (PPOConfig(), nested(PPOConfig(), init_from="expert"))
    ]
    assert shares == [0.25, 1.0]


def test_a_core_without_memory_has_no_sequences(tmp_path, no_validation):
    config = nested(TINY, n_steps=6, batch_size=12, value_warmup_steps=0, total_timesteps=12)
    assert config.rollout.n_steps % config.optim.sequence_length
    assert load_driver(ppo(config, tmp_path / "run")).config.core == "cnn"


@pytest.mark.parametrize("control", ["discrete", "continuous", "pulsed"])
def test_every_control_trains_from_random_weights(tmp_path, control, no_validation):
    best = ppo(controlled(control=control, total_timesteps=32, n_epochs=2), tmp_path / "run")
    assert load_driver(best).config.control == control


def test_under_a_perturbation_it_learns_and_is_validated(tmp_path, monkeypatch):
    spec = "frame-rate:3+action-delay:1,frame-drop:3:skip"
    made: list[EnvConfig] = []

    def make(env: EnvConfig, config: PPOConfig, rank: int) -> gym.Env:
        made.append(env)
        return training_env(env, config, rank)

    monkeypatch.setattr(ppo_envs, "training_env", make)
    best = ppo(nested(TINY, total_timesteps=32, perturb=spec), tmp_path / "run")
    env = EnvConfig(max_steps=FRAMES, perturb=spec)
    assert set(made) == {env}
    driver = load_driver(best)
    assert EnvConfig(**driver.env_config) == env
    rows = RunFolder.open(tmp_path / "run").rows()
    tracks = SPLITS["val"][:2]
    returns = [rollout(make_env(env), driver, seed).episode_return for seed in tracks]
    assert returns == next(row["returns"] for row in rows if row["step"] == driver.meta["step"])
    for track, part in zip(tracks, spec.split(","), strict=True):
        alone = make_env(replace(env, perturb=part))
        assert rollout(alone, driver, track).episode_return == returns[track % 2], "in turn by track"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"validation_tracks": "val-99"}, "has 25 tracks"),
        ({"augment": ("frame-drop:1",)}, "'frame-drop'"),
        ({"perturb": "fog:1"}, "perturbation 'fog' is unknown"),
        ({"perturb": "frame-drop:1,gap:4"}, "'gap' has the levels 1 to 3"),
        ({"perturb": 3}, "perturb must be .*, got 3"),
        ({"n_steps": 1}, "n_steps must be at least 2, got 1"),
        ({"gamma": 1.5}, r"gamma must lie in \[0, 1\], got 1.5"),
        ({"learning_rate": 0.0}, "learning_rate must be positive and finite, got 0.0"),
        ({"ema_decay": 1.0}, r"ema_decay must lie in \[0, 1\), got 1.0; 0 is no average"),
        ({"learning_rate": 1e30}, "learning_rate must be at most 10, got 1e\\+30"),
        ({"learning_rate": float("inf")}, "learning_rate must be positive and finite, got inf"),
        ({"distribution": "cauchy"}, "distribution must be one of beta, gaussian, got 'cauchy'"),
        ({"precision": "16-mixed"}, "precision must be one of 32-true, bf16-mixed, got '16-mixed'"),
        ({"action_repeat": 0}, "action_repeat must be at least 1, got 0"),
        (
            {"sequence_length": 5, "driver": DriverConfig("lstm")},
            "sequence_length must divide n_steps = 128 in a core with memory, got 5",
        ),
        (
            {"value_warmup_steps": 64, "total_timesteps": 64},
            "value_warmup_steps must be less than total_timesteps = 64, got 64: the driver would never learn; lower it",
        ),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"seed": 2**32}, "seed must be at most 4,294,967,295"),
        ({"total_timesteps": -1}, "total_timesteps must be at least 0, got -1"),
        ({"n_envs": 0}, "n_envs must be at least 1, got 0"),
        ({"n_envs": 257}, "n_envs must be at most 256, got 257"),
        ({"n_envs": 2.0}, "n_envs must be a whole number, got 2.0"),
        ({"n_epochs": 0}, "n_epochs must be at least 1, got 0"),
        ({"batch_size": 1}, "batch_size must be at least 2, got 1"),
        ({"batch_size": 500}, "batch_size must divide the n_envs \\* n_steps = 2,048 actions of a rollout, got 500"),
        ({"batch_size": 4096}, "batch_size must divide"),
        ({"validate_every": 0}, "validate_every must be at least 1, got 0"),
        ({"clip_range": -1.0}, "clip_range must be positive and finite, got -1.0"),
        ({"gamma": float("nan")}, "gamma must be finite, got nan"),
        ({"gae_lambda": -0.1}, r"gae_lambda must lie in \[0, 1\], got -0.1"),
        ({"ent_coef": float("inf")}, "ent_coef must be finite, got inf"),
        ({"crash_penalty": -1.0}, r"crash_penalty must lie in \[0, 1e\+06\], got -1.0"),
        ({"off_road_penalty": float("nan")}, "off_road_penalty must be finite, got nan"),
        ({"missed_tile_penalty": -1.0}, r"missed_tile_penalty must lie in \[0, "),
        ({"init_from": "nope"}, "no folder nope"),
        ({"driver": DriverConfig("cnn", dropout=0.2)}, "dropout must be 0 in ppo, got 0.2: .*; leave it out"),
        ({"driver": DriverConfig("pdna-b")}, "core must add no noise in training, got pdna-b: .*; cfc is the same"),
    ],
)
def test_a_bad_setting_is_named_before_a_run_is_made(changed, message, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        ppo(nested(PPOConfig(), **changed), tmp_path / "run")
    assert not list(tmp_path.iterdir())


def saved(path: Path, control: Control, core: str = "cnn", *, mask_bar: bool = False, **settings: Any) -> Driver:
    torch.manual_seed(3)
    driver = Driver(DriverConfig(core=core, encoder="compact", control=control, **settings)).eval()
    save_driver(path, driver, env=asdict(EnvConfig(control, mask_bar=mask_bar)))
    return driver


@pytest.mark.parametrize("control", ["discrete", "continuous"])
@pytest.mark.parametrize(("core", "residual"), [("cnn", False), ("cnn", True), ("lstm", False)])
def test_it_begins_as_the_driver_that_it_starts_from(tmp_path, control, core, residual):
    driver = saved(tmp_path / "clone", control, core, residual=residual)
    with torch.no_grad():
        driver.action_head.out.weight.mul_(5.0)  # different actions on noise
    save_driver(tmp_path / "clone", driver, env=asdict(EnvConfig(control)))
    config = controlled(control=control, init_from=str(tmp_path / "clone"), init_logit_scale=3.0)
    policy = ppo_module.build_policy(TrainingPlan.resolve(config, config.env))
    frames = torch.from_numpy(np.random.default_rng(0).integers(256, size=(2, 6, 96, 96, 3), dtype=np.uint8))
    dt = torch.full((2, 6), 0.02)
    distribution: Any = policy(policy.driver.prepare(frames), dt, policy.driver.initial_state(2))[0]
    expected, _ = driver(frames, dt)
    if control == "discrete":
        torch.testing.assert_close(distribution.logits, torch.log_softmax(3.0 * expected, dim=-1))
    else:
        torch.testing.assert_close(policy.actions(distribution.mean), expected, atol=3e-4, rtol=0)


def test_config_yaml_has_the_driver_that_it_starts_from(tmp_path):
    driver = saved(tmp_path / "clone", "discrete", "lstm", dropout=0.5)
    config = controlled(init_from=str(tmp_path / "clone"))
    plan = TrainingPlan.resolve(config, config.env)
    assert plan.config.driver == driver.config
    assert plan.resolved["driver"] == asdict(driver.config)
    again = replace(config, driver=driver.config)  # as --config gives it
    again.check()
    assert TrainingPlan.resolve(again, again.env).resolved == plan.resolved


def test_a_start_without_the_bar_or_without_weights_is_refused_before_a_run_is_made(tmp_path):
    saved(tmp_path / "masked", "discrete", mask_bar=True)
    with pytest.raises(ValueError, match="without the status bar"):
        ppo(controlled(init_from=str(tmp_path / "masked")), tmp_path / "run")
    saved(tmp_path / "lstm", "discrete", "lstm")
    other = nested(TINY, driver=replace(PPOConfig().driver, core="cfc"), init_from=str(tmp_path / "lstm"))
    with pytest.raises(ValueError, match="core must be 'lstm' as in init_from, got 'cfc'; leave it out"):
        ppo(other, tmp_path / "run")
    with pytest.raises(ValueError, match="init_from must name a learned driver, got 'controller'"):
        ppo(controlled(init_from="controller"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_run_notes_the_driver_that_it_started_from(tmp_path, no_validation):
    saved(tmp_path / "clone", "discrete")
    config = controlled(init_from=str(tmp_path / "clone"), total_timesteps=0)
    ppo(config, tmp_path / "run")
    (tmp_path / "clone").rename(tmp_path / "moved")
    moved = nested(config, init_from=str(tmp_path / "moved"))
    ppo(moved, tmp_path / "run", resume=True)  # the same driver
    now = RunFolder.open(tmp_path / "run").config
    assert now["init_sha256"] == driver_hash(str(tmp_path / "moved"), EnvConfig())
    assert now["optim"]["init_from"] == moved.optim.init_from
    torch.manual_seed(4)
    other = Driver(DriverConfig(core="cnn", encoder="compact", dropout=0.0))
    save_driver(tmp_path / "moved", other, env=asdict(EnvConfig()))
    with pytest.raises(ValueError, match="init_sha256"):
        ppo(moved, tmp_path / "run", resume=True)
