"""The warm start: whose labels, whose hand at the wheel, and that the network learns them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from data_collection import warm_start as module
from data_collection.controller import Controller
from data_collection.expert import Expert, ExpertNetwork
from data_collection.processes import one_thread
from data_collection.warm_start import WarmStartConfig, warm_start
from envs import EnvConfig, Step, make_env, rollout

ENV = EnvConfig(max_steps=60, renderer="fast")
SMALL = WarmStartConfig(laps=2, epochs=3, rounds=2, round_laps=1, final_epochs=1, batch_size=32, sharpness=1.0)


@pytest.fixture(autouse=True)
def here(monkeypatch):
    def map_here(function: Callable, tasks: Iterable, workers: int) -> Iterable:
        return map(pickle.loads(pickle.dumps(function)), tasks)

    monkeypatch.setattr(module, "map_in_processes", map_here)
    with one_thread():
        yield


def start(config: WarmStartConfig, env: EnvConfig = ENV) -> tuple[ExpertNetwork, list[dict[str, Any]]]:
    torch.manual_seed(0)
    reports: list[dict[str, Any]] = []
    return warm_start(config, env, 0, reports.append), reports


def test_the_labels_are_the_controllers_under_noise():
    frames, labels, _ = module._noisy_lap(SMALL, ENV, 5)
    assert frames.shape == (60, 96, 96, 3)
    assert labels.shape == (60,)
    quiet, quiet_labels, quiet_return = module._noisy_lap(replace(SMALL, noise=0.0), ENV, 5)
    assert not np.array_equal(frames, quiet)
    assert len(quiet_labels) == 60
    assert quiet_return == rollout(make_env(ENV), Controller(), 5).episode_return


def test_in_turns_the_actor_drives_and_the_controller_labels():
    torch.manual_seed(0)
    actor = Expert(ExpertNetwork("discrete"), ENV, {})
    steps: list[Step] = []
    alone = rollout(make_env(ENV), actor, 5, advisor=Controller(), subscribers=[steps.append])
    teacher = rollout(make_env(ENV), Controller(), 5)
    returns, labels = {}, {}
    for share in (0.0, 1.0):
        _, labels[share], returns[share] = module._lap_in_turns(
            replace(SMALL, student_share=share), ENV, pickle.dumps(actor), 0, 5
        )
    assert returns == {0.0: teacher.episode_return, 1.0: alone.episode_return}
    assert (labels[0.0] == module._noisy_lap(replace(SMALL, noise=0.0), ENV, 5)[1]).all()
    assert labels[1.0].tolist() == [step.advice for step in steps]


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_it_learns_in_rounds_and_repeats_itself(control):
    env = replace(ENV, control=control)
    network, reports = start(SMALL, env)
    again, _ = start(SMALL, env)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))
    rows = [(row["round"], "loss" in row) for row in reports]
    first = [(0, False)] * 2 + [(0, True)] * 3
    assert rows == [*first, (1, False), (1, True), (2, False), (2, True), (3, True)]
    losses = [row["loss"] for row in reports if "loss" in row]
    assert losses[2] < losses[0]


def test_sharper_logits_mean_the_same_actions():
    plain, sharp = start(SMALL)[0], start(replace(SMALL, sharpness=3.0))[0]
    frames = torch.rand(4, 3, 96, 96)
    torch.testing.assert_close(sharp(frames), 3 * plain(frames))


def test_without_rounds_it_is_plain_cloning_with_noise():
    _, reports = start(replace(SMALL, rounds=0))
    assert {row["round"] for row in reports if "lap" in row} == {0}
