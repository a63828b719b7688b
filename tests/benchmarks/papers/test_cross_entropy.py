"""The search for the controller's numbers."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from cross_entropy import (
    START,
    EpisodeScore,
    SearchConfig,
    drive,
    fitness,
    numbers,
    search,
)

from nac_drive.data_collection.controller.controller import CONTINUOUS, DISCRETE, Controller, ControllerConfig
from nac_drive.envs import EnvConfig, make_env, rollout
from nac_drive.events import Event


@pytest.mark.parametrize(("control", "config"), [("discrete", DISCRETE), ("continuous", CONTINUOUS)])
def test_an_episode_is_that_of_the_rollout(control, config):
    env = make_env(EnvConfig(control))
    env.unwrapped.observe = False  # type: ignore[attr-defined]
    episode, score = rollout(env, Controller(control), 42), drive(control, config, 42)
    assert score.episode_return == pytest.approx(episode.episode_return)
    assert score.frames == episode.length


def test_fitness_by_hand():
    clean, dirty = EpisodeScore(920.0, 800, 0, 0), EpisodeScore(900.0, 1000, 100, 20)
    assert fitness([clean]) == 920.0
    assert fitness([clean, dirty]) == pytest.approx(910 - 5 - (0.02 * 100 + 0.05 * 20) / 2)


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_the_start_names_numbers_of_the_config(control):
    assert set(START[control]) <= set(asdict(ControllerConfig()))
    assert set(numbers(control, ControllerConfig())) == set(START[control])


def best_at(wanted: dict[str, float]):
    """A road on which the return falls with the distance of the numbers from `wanted`, in spreads of the start."""

    def drive(control, config, seed):
        spread = {name: start[1] for name, start in START[control].items()}
        off = [(getattr(config, name) - value) / spread[name] for name, value in wanted.items()]
        return EpisodeScore(900.0 - float(np.sum(np.square(off))), 800, 0, 0)

    return drive


def test_it_finds_the_numbers_that_drive_best(monkeypatch):
    wanted = {"look_ahead": 15.0, "steering_gain": 0.6}
    monkeypatch.setattr("cross_entropy.drive", best_at(wanted))
    events: list[Event] = []
    found = search(
        SearchConfig(generations=30, candidates=40, elites=8, episodes=1),
        progress=events.append,
    )
    generations = [float(event.note.split()[1].rstrip(",")) for event in events if event.note]
    assert [event.done for event in events] == list(range(31))
    assert len(generations) == 30
    assert generations[-1] > 899.9 > generations[0]
    for name, value in wanted.items():
        assert getattr(found, name) == pytest.approx(value, abs=0.5 * START["discrete"][name][1])


def test_the_same_seed_finds_the_same_numbers(monkeypatch):
    monkeypatch.setattr("cross_entropy.drive", best_at({"look_ahead": 15.0}))
    config = SearchConfig(generations=3)
    assert search(config) == search(config)
    assert search(config) != search(SearchConfig(generations=3, seed=1))
