"""Agents of the search: equal to their cores in torch. Tasks: equal to the environments. And a small reproduction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import circuits
import gymnasium as gym
import numpy as np
import pytest
import torch
from agents import CELLS, SECONDS, Agent, CircuitAgent, LSTMAgent, make_agent
from circuits import Budget, Circuits, potentials
from control_tasks import TASKS, Car, MountainCar, rollouts
from random_search import SearchResult
from reproduce import PROTOCOLS
from torch import nn

from nac_drive.envs import SPLITS, CarRacing, wrap_angle
from nac_drive.experiments import reproduce as run
from nac_drive.experiments.paper import PaperTask
from nac_drive.experiments.protocol import load
from nac_drive.policies import build_core
from nac_drive.policies.wiring.tap_withdrawal import NEURONS

AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "tap-withdrawal": ("tap-withdrawal", {"unfolds": 3}),
    "random": ("tap-withdrawal", {"wiring": "d", "seed": 4, "unfolds": 3}),
    "repeats": ("tap-withdrawal", {"wiring": "a", "seed": 2}),
    "lstm": ("lstm", {}),
    "cnn": ("cnn", {}),
}


def agent_of(name: str, observations: int = 6, actions: int = 3, *, direct: bool = False) -> Agent[Any]:
    core, args = AGENTS[name]
    return make_agent(core, args, observations, actions, direct=direct, seed=0)


def moved(agent: Agent[Any], seed: int = 0) -> np.ndarray:
    """Parameters away from the first ones."""
    low, high = agent.bounds
    return np.clip(agent.start + 0.3 * np.random.default_rng(seed).normal(size=agent.start.shape), low, high)


def in_torch(name: str, parameters: Mapping[str, np.ndarray], x: np.ndarray, actions: int) -> np.ndarray:
    """Outputs (R, T, A) of the core, and of its linear readout where there is one, with these parameters."""
    core_name, args = AGENTS[name]
    circuit = core_name == "tap-withdrawal"
    core = build_core(core_name, x.shape[2], actions if circuit else CELLS, **args)
    readout = nn.Identity() if circuit else nn.Linear(CELLS, actions)
    module = (core if circuit else nn.ModuleDict({"core": core, "readout": readout})).double()
    assert {key for key, _ in module.named_parameters()} == set(parameters)
    module.load_state_dict({key: torch.from_numpy(array.copy()) for key, array in parameters.items()}, strict=False)
    inputs = torch.from_numpy(x)
    with torch.no_grad():
        y, _ = core(inputs, torch.full(x.shape[:2], SECONDS, dtype=torch.float64), core.initial_state(len(x)))
        return readout(y).numpy()


@pytest.mark.parametrize("name", AGENTS)
def test_a_step_equals_the_core_in_torch(name: str) -> None:
    agent = agent_of(name)
    for vector in (agent.start, moved(agent)):
        agent.load(vector)
        x = np.random.default_rng(1).normal(size=(4, 9, 6))
        state, outputs = agent.begin(4), []
        for step in range(9):
            y, state = agent.step(x[:, step], state)
            outputs.append(y)
        assert np.stack(outputs, axis=1) == pytest.approx(in_torch(name, agent.named(vector), x, 3), abs=1e-9)


@pytest.mark.parametrize("name", AGENTS)
def test_rows_go_on_alone(name: str) -> None:
    agent = agent_of(name)
    agent.load(moved(agent))
    x = np.random.default_rng(1).normal(size=(4, 6))
    _, state = agent.step(x, agent.begin(4))
    together, _ = agent.step(x, state)
    rows = np.array([1, 3])
    alone, _ = agent.step(x[rows], agent.keep(state, rows))
    assert alone == pytest.approx(together[rows], abs=1e-12)


def test_a_circuit_searches_the_ranges_of_the_published_code() -> None:
    agent = agent_of("tap-withdrawal", 2, 1, direct=True)
    assert ((agent.start >= 0) & (agent.start <= 1)).all()
    assert len(agent.start) == 28 + 26 + 3 * 7  # conductances; gains of chemical synapses; C, g and leak
    softplus = np.logaddexp
    for vector, values in ((0.0, (1e-3, 1e-3, 0.05, -0.4, 2.5)), (1.0, (3.0, 1.0, 5.0, 1.4, 25.0))):
        named = agent.named(np.full(len(agent.start), vector))
        weight, capacitance, conductance, leak, gain = values
        for part in ("sensory", "recurrent", "electrical"):
            assert softplus(0, named[f"network.{part}.weight"]) == pytest.approx(weight)
        assert softplus(0, named["network.capacitance"]) == pytest.approx(capacitance)
        assert softplus(0, named["network.conductance"]) == pytest.approx(conductance)
        assert named["network.leak"] == pytest.approx(leak)
        assert named["network.sensory.gain"] == pytest.approx(gain)
        assert set(named["network.recurrent.reversal"].round(6)) == {1.4, -0.4}
    start = agent.named(agent.start)
    assert softplus(0, start["network.capacitance"]) == pytest.approx(0.05)
    assert start["network.sensory.gain"] == pytest.approx(5.0)
    assert softplus(0, start["network.recurrent.weight"]).max() < 2.0


def test_two_observations_reach_the_sensory_neurons_without_a_layer() -> None:
    agent = agent_of("tap-withdrawal", 2, 1, direct=True)
    assert isinstance(agent, CircuitAgent)
    agent.load(moved(agent))
    x = np.array([[0.3, -0.4], [-2.0, 0.1]])
    assert agent.sense(x) == pytest.approx(np.array([[0.4, 0.3, 0.0, 0.0], [0.0, 0.0, 1.0, 0.1]]))
    y, v = agent.step(x, agent.begin(2))
    assert y[:, 0] == pytest.approx(v[:, 5] - v[:, 6])


def test_rollouts_of_the_mountain_car_are_those_of_gymnasium() -> None:
    """Two of five are driven to the top by full force along the velocity."""

    class Along(Agent[None]):
        def __init__(self) -> None:
            super().__init__(nn.Linear(1, 1))

        def load(self, vector: np.ndarray) -> None: ...
        def begin(self, rows: int) -> None: ...
        def keep(self, state: None, rows: np.ndarray) -> None: ...

        def step(self, x: np.ndarray, state: None) -> tuple[np.ndarray, None]:
            return 2.0 * np.where(x[:, 1:] >= 0, 1.0, -1.0), None  # clipped to the action's range

    seeds = [3, 17, 40]
    found = rollouts(Along(), "mountain-car", seeds, 999)
    env: Any = gym.make("MountainCarContinuous-v0")
    for seed, expected in zip(seeds, found, strict=True):
        (_, velocity), _ = env.reset(seed=seed)
        total, ended = 0.0, False
        while not ended:
            (_, velocity), reward, terminated, truncated, _ = env.step(np.array([1.0 if velocity >= 0 else -1.0]))
            total, ended = total + reward, terminated or truncated
        assert expected == pytest.approx(total)
        assert total > 80
    assert rollouts(Along(), "mountain-car", [17], 999)[0] == found[1]


def test_the_car_sees_the_truth_and_earns_what_the_environment_pays() -> None:
    car = Car()
    first = car.reset(5)
    assert len(first) == Car.observations
    assert first[0] == pytest.approx(0.0, abs=0.05)
    assert first[4] == pytest.approx(0.0, abs=0.02)
    env = CarRacing(control="continuous")
    env.observe = False
    env.reset(seed=5)
    seen = []
    for action in [np.array([0.0, 1.0, 0.0])] * 30 + [np.array([1.0, 0.5, 0.0])] * 15:
        observation, reward, ended = car.step(action)
        _, expected, _, _, info = env.step(action.astype(np.float32))
        assert reward == expected
        assert not ended
        assert list(observation[:2]) == [info["lateral_offset"], info["heading_error"]]
        assert observation[4] == info["speed"] / 50
        seen.append(observation)
    env.close()
    assert seen[-1][5] < seen[29][5] - 0.1  # steering to the right turns the car to the right
    assert seen[-1][1] < seen[29][1]
    assert max(map(abs, np.ravel(seen))) < 3


def test_the_turn_of_the_road_ahead_is_that_of_the_centre_line() -> None:
    car = Car()
    car.reset(5)
    env = car._env
    line, info = env.centre_line, env._info(0.0)
    turns = []
    for index in range(len(line)):
        env._cars["index"] = index
        _, _, near, far, _, _ = car._observe(info)
        for tiles, turn in ((6, near), (16, far)):
            assert abs(turn) <= np.pi
            steps = [wrap_angle(float(line.angles[(index + i + 1) % len(line)] - line.angles[(index + i) % len(line)]))
                     for i in range(tiles)]  # fmt: skip
            assert np.cos(turn - sum(steps)) == pytest.approx(1.0)
        turns.append((near, far))
    assert np.sum(turns, axis=0) == pytest.approx([6 * 2 * np.pi, 16 * 2 * np.pi])  # once round, counter-clockwise


def test_other_cores_have_no_form_in_numpy() -> None:
    with pytest.raises(ValueError, match="core: must be tap-withdrawal, lstm or cnn, got 'gru'"):
        make_agent("gru", {}, 2, 1, direct=True, seed=0)


def test_a_small_reproduction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budgets = {
        "mountain-car": {"iterations": 4, "rollouts": 2, "steps": 30, "episodes": 3},
        "car": {"iterations": 1, "rollouts": 2, "steps": 10, "episodes": 1, "worst": 1},
    }
    for world, steps in ((MountainCar, 60), (Car, 20)):
        monkeypatch.setattr(world, "steps", steps)
    small = replace(load("thesis-4.4", PROTOCOLS), settings={"runs": 2, "budgets": budgets})
    monkeypatch.setattr(run, "load", lambda *_: small)
    only = ["ONC", "Random circuit", "MLP"]
    kinds = {"circuits": Circuits}
    page = run.reproduce("thesis-4.4", tmp_path / "out", only=only, workers=1, experiments=kinds).read_text()
    rows = [json.loads(line) for line in (tmp_path / "out" / "rows.jsonl").read_text().splitlines()]
    assert len(rows) == 3 * 2 * 2
    for row in rows:
        assert row["sparsity"] == pytest.approx(93 / 121 if row["core"] == "tap-withdrawal" else 0.0)
        assert ("contributions" in row) == (row["entry"] == "ONC")
        best = [value for _, value in row["curve"]]
        assert best == sorted(best)
        assert best[-1] == row["objective"]
        assert row["curve"][-1][0] == budgets[row["task"]]["iterations"]
        assert row["success"] == float(row["return"] >= TASKS[row["task"]].solved)
    random = [row["parameters"] for row in rows if row["entry"] == "Random circuit" and row["task"] == "car"]
    assert len(set(random)) > 1  # another circuit in every run
    onc = next(row for row in rows if row["entry"] == "ONC" and row["run"] == 0 and row["task"] == "car")
    assert onc["contributions"].keys() == {"FWD", "REV"}
    assert list(onc["contributions"]["FWD"]) == list(NEURONS[:9])
    assert "| ONC | `tap-withdrawal` | 91.5 |" in page
    assert f"- car, return {onc['return']:.1f}, FWD: " in page


@pytest.mark.parametrize(("solved", "success"), [(5.0, 1.0), (5.1, 0.0)])
def test_a_row_is_that_of_the_search_and_of_other_episodes(
    solved: float, success: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scripted search and scripted returns: what is searched, what is tested, and the numbers by hand."""
    driven: list[tuple[Any, ...]] = []
    searched: list[tuple[Any, ...]] = []

    def drive(agent: Any, task: str, seeds: Any, steps: int) -> np.ndarray:
        driven.append((agent.named_now, task, list(seeds), steps))
        return np.array([4.0, 9.0, 2.0]) if steps == 20 else np.array([1.0, 8.0, 6.0])

    def search(objective: Any, start: np.ndarray, rng: Any, **settings: Any) -> SearchResult:
        searched.append((start, settings))
        assert [objective(start + 1), objective(start + 2)] == [-(2.0 + 4.0) / 2] * 2
        return SearchResult(start + 3, 9.0, np.array([-1.0, -7.0, 2.0, -4.0]), np.ones(4))

    def load(self: Any, vector: np.ndarray) -> None:
        self.named_now = vector

    monkeypatch.setattr(circuits, "rollouts", drive)
    monkeypatch.setattr(circuits, "random_search", search)
    monkeypatch.setattr(LSTMAgent, "load", load)
    monkeypatch.setattr(MountainCar, "solved", solved)
    budget = Budget(iterations=3, rollouts=3, steps=20, episodes=2, worst=2)
    experiment = Circuits({"mountain-car": budget}, sigma=0.7, alpha=1.5, patience=4)
    row = experiment.measure(Path(), PaperTask("LSTM", "lstm", {}, (("task", "mountain-car"), ("run", 2))))
    ((start, settings),) = searched
    bounds = settings.pop("bounds")
    assert settings == {"iterations": 3, "sigma": 0.7, "alpha": 1.5, "patience": 4}
    assert all(bound.shape == start.shape for bound in bounds)
    *estimated, (tested, task, seeds, steps) = driven
    assert [int((vector - start).mean()) for vector, *_ in estimated] == [1, 2]
    assert all(len(set(seeds)) == 3 and set(seeds) <= set(SPLITS["train"]) for _, _, seeds, _ in estimated)
    assert estimated[0][2] != estimated[1][2]
    np.testing.assert_array_equal(tested, start + 3)
    assert (task, seeds, steps) == ("mountain-car", list(SPLITS["test"][:2]), MountainCar.steps)
    assert row == {
        "return": 5.0, "success": success, "objective": 7.0, "curve": [[0, 1.0], [1, 7.0], [2, 7.0], [3, 7.0]],
        "parameters": len(start), "sparsity": 0.0,
    }  # fmt: skip


def test_the_contributions_are_those_of_the_best_run_of_a_task() -> None:
    experiment = Circuits({"car": Budget(1, 1, 1, 1)})
    rows = [
        {"entry": "x", "task": "car", "return": value, "contributions": {"FWD": {"AVA": kind, "AVB": "none"}}}
        for value, kind in ((1.0, "phases"), (7.0, "positive"), (3.0, "negative"))
    ]
    text = experiment.conclude(Path(), rows)
    assert text.splitlines()[2:] == ["- car, return 7.0, FWD: none: AVB; positive: AVA"]


def test_the_fraction_of_solved_runs_is_that_of_the_task() -> None:
    experiment = Circuits({"mountain-car": Budget(1, 1, 1, 1), "car": Budget(1, 1, 1, 1)})
    rows = [{"task": "mountain-car", "success": success} for success in (1.0, 0.0, 1.0, 1.0)]
    columns = {column.key: column for column in experiment.columns()}
    assert columns["success_mountain-car"].values(rows).tolist() == [75.0]
    assert np.isnan(columns["success_car"].values(rows)).all()
    assert columns["success_car"].values([*rows, {"task": "car", "success": 0.0}]).tolist() == [0.0]


def test_potentials_are_those_of_the_first_test_episode() -> None:
    agent = agent_of("tap-withdrawal", 2, 1, direct=True)
    assert isinstance(agent, CircuitAgent)
    agent.load(moved(agent))
    path = potentials(agent, "mountain-car")
    assert path.shape[1] == 11
    world = MountainCar()
    x = np.array([world.reset(900_000)])
    assert path[0, :4] == pytest.approx(agent.sense(x)[0])
    assert path[0, 4:] == pytest.approx(agent.step(x, agent.begin(1))[1][0])
