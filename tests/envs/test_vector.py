"""A vector environment gives the results of its single environments, bit for bit, in any number of processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics

from nac_drive.envs import ActionRepeat, EnvConfig, ProcessVectorEnv, make_env, make_vec_env, track_seeds

REPOSITORY = Path(__file__).parents[2]
SHORT = EnvConfig(max_steps=3)
SEEDS = [5, 17, 2]
PROCESSES = [0, 2]  # three environments do not divide by two


@pytest.fixture(scope="module")
def short() -> Iterator[Callable[[int], Any]]:
    """SHORT three times, in 0 or 2 processes. Made once, because each test resets."""
    envs = {processes: make_vec_env(SHORT, 3, processes=processes) for processes in PROCESSES}
    yield envs.__getitem__
    for env in envs.values():
        env.close()


def random_actions(env: VectorEnv, frames: int) -> np.ndarray:
    """(frames, environments, ...), always the same."""
    env.action_space.seed(1)
    return np.stack([env.action_space.sample() for _ in range(frames)])


def alone(env: gym.Env, seed: int, actions: np.ndarray) -> Iterator[tuple[Any, ...]]:
    """Results of the environment, stepped by hand: after the end of an episode comes a reset instead of a step."""
    yield (*env.reset(seed=seed), 0.0, False, False)
    ended = False
    for action in actions:
        if ended:
            (observation, info), reward, terminated, truncated = env.reset(), 0.0, False, False
        else:
            observation, reward, terminated, truncated, info = env.step(action)
        ended = terminated or truncated
        yield observation, info, reward, terminated, truncated


def together(env: VectorEnv, seeds: list[int], actions: np.ndarray) -> Iterator[tuple[Any, ...]]:
    none = np.zeros(env.num_envs)
    yield (*env.reset(seed=seeds), none, none, none)  # type: ignore[arg-type]
    for action in actions:
        observations, rewards, terminations, truncations, infos = env.step(action)
        yield observations, infos, rewards, terminations, truncations


def assert_equal(env: VectorEnv, make: Callable[[], gym.Env], actions: np.ndarray) -> list[dict[str, Any]]:
    """Check that `env` returns the results of single environments of `make`; return its infos."""
    singles = [alone(make(), seed, actions[:, index]) for index, seed in enumerate(SEEDS)]
    infos = []
    for outcome, *expected in zip(together(env, SEEDS, actions), *singles, strict=True):
        observations, info, *numbers = outcome
        assert observations.dtype == np.uint8
        for index, (observation, single_info, *single_numbers) in enumerate(expected):
            np.testing.assert_array_equal(observations[index], observation)
            assert [number[index] for number in numbers] == single_numbers
            assert {name: info[name][index] for name in single_info} == single_info
            assert all(info[f"_{name}"][index] for name in single_info)
        assert {name.removeprefix("_") for name in info} == set().union(*(single[1] for single in expected))
        infos.append(info)
    return infos


# Equal to the single environments


@pytest.mark.parametrize("processes", PROCESSES)
def test_results_are_those_of_single_environments(short, processes):
    env = short(processes)
    assert_equal(env, partial(make_env, SHORT), random_actions(env, 14))


@pytest.mark.parametrize("processes", PROCESSES)
def test_results_are_equal_with_gymnasiums_frames_continuous_control_and_a_masked_bar(processes):
    config = EnvConfig("continuous", mask_bar=True, max_steps=3)
    env = make_vec_env(config, 3, processes=processes)
    assert_equal(env, partial(make_env, config), random_actions(env, 5))
    env.close()


class Loaded(gym.Wrapper):
    """Reports which modules its process has loaded."""

    def loaded(self, *names: str) -> list[bool]:
        return [name in sys.modules for name in names]


def repeating(frames: int) -> gym.Env:
    return Loaded(RecordEpisodeStatistics(ActionRepeat(make_env(EnvConfig(max_steps=frames)), 4)))


def test_other_environments_and_infos_of_some_pass_through_processes_without_torch(spawned):
    """RecordEpisodeStatistics adds a dict to `info` at the end of an episode."""
    env = ProcessVectorEnv([lambda frames=frames: repeating(frames) for frames in (8, 12)], 2)
    infos = [info for _, info, *_ in together(env, [0, 1], random_actions(env, 3))]
    loaded = env.call("loaded", "gymnasium", "torch")
    env.close()
    assert ["episode" in info for info in infos] == [False, False, True, True]
    assert [info["_episode"].tolist() for info in infos[2:]] == [[True, False], [False, True]]
    assert [info["episode"]["l"].tolist() for info in infos[2:]] == [[2, 0], [0, 3]]
    assert [info["dt"].tolist() for info in infos] == [[0, 0], [0.08, 0.08], [0.08, 0.08], [0, 0.08]]
    assert loaded == ([True, False], [True, False])


def test_gymnasium_makes_it_by_name():
    env = gym.make_vec(
        "nac_drive/CarRacing-v0", num_envs=2, vectorization_mode="vector_entry_point",
        control="continuous", crash="terminate",
    )  # fmt: skip
    assert env.num_envs == 2
    assert env.single_action_space == make_env(EnvConfig("continuous")).action_space
    assert env.get_attr("crash") == ("terminate", "terminate")  # type: ignore[attr-defined]
    assert env.get_attr("_max_episode_steps") == (1000, 1000)  # type: ignore[attr-defined]
    expected = make_vec_env(EnvConfig("continuous"), 2, crash="terminate")
    actions = random_actions(env, 2)
    for one, other in zip(together(env, [3, 4], actions), together(expected, [3, 4], actions), strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[2], other[2])
    short = gym.make_vec("nac_drive/CarRacing-v0", num_envs=1, max_episode_steps=7)
    assert short.get_attr("_max_episode_steps") == (7,)  # type: ignore[attr-defined]


@pytest.mark.parametrize("processes", PROCESSES)
def test_telemetry_is_arrays_and_a_crash_has_its_name(processes):
    config = EnvConfig(max_steps=400)
    env = make_vec_env(config, 3, processes=processes, crash="terminate")
    env.set_attr("observe", False)  # at the speed of the physics
    assert env.get_attr("crash") == ("terminate",) * 3

    def blind() -> gym.Env:
        single = make_env(config, crash="terminate")
        single.unwrapped.observe = False  # type: ignore[attr-defined]
        return single

    infos = assert_equal(env, blind, np.full((180, 3), 3))  # full gas, off the road
    env.close()
    kinds = {name: infos[-1][name].dtype.kind for name in infos[-1]}
    assert {name for name, kind in kinds.items() if kind == "f"} == {
        "speed", "lateral_offset", "heading_error", "completion", "dt",
    }  # fmt: skip
    assert {name for name, kind in kinds.items() if kind == "O"} == {"crash"}
    crashes = np.array([info["crash"] for info in infos])  # (frames, environments)
    assert {*crashes.ravel()} == {None, "off_road"}
    begins = np.array([info["dt"] for info in infos]) == 0.0
    np.testing.assert_array_equal(begins[1:], crashes[:-1] == "off_road")


@pytest.mark.parametrize("processes", PROCESSES)
def test_observations_are_new_arrays(short, processes):
    env = short(processes)
    first, _ = env.reset(seed=SEEDS)
    kept = first.copy()
    second, *_ = env.step(np.full(3, 3))
    np.testing.assert_array_equal(first, kept)
    assert (first != second).any()


# Episodes and tracks


@pytest.mark.parametrize("processes", PROCESSES)
def test_the_timeline_of_an_episode_that_ends_and_the_next(short, processes):
    env = short(processes)
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    timeline = [
        (info["dt"].tolist(), (rewards != 0).tolist(), truncations.tolist())
        for _, info, rewards, _, truncations in together(env, [0, 1, 2], np.full((8, 3), 3))
    ]
    assert timeline == [
        # dt         a reward?    the end?
        ([0.00] * 3, [False] * 3, [False] * 3),  # the reset
        ([0.02] * 3, [True] * 3, [False] * 3),
        ([0.02] * 3, [True] * 3, [False] * 3),
        ([0.02] * 3, [True] * 3, [True] * 3),
        ([0.00] * 3, [False] * 3, [False] * 3),  # the first frame of the next track; the action is ignored
        ([0.02] * 3, [True] * 3, [False] * 3),
        ([0.02] * 3, [True] * 3, [False] * 3),
        ([0.02] * 3, [True] * 3, [True] * 3),
        ([0.00] * 3, [False] * 3, [False] * 3),
    ]


def tracks(env: VectorEnv, seed: Any) -> list[list[bytes]]:
    """The centre lines of three episodes in a row, per environment."""
    vector: Any = env
    vector.reset(seed=seed)
    lines = []
    for frame in range(SHORT.max_steps * 2 + 3):
        if frame % (SHORT.max_steps + 1) == 0:
            lines.append([line.points.tobytes() for line in vector.get_attr("centre_line")])
        vector.step(np.full(env.num_envs, 3))
    return lines


def test_the_seed_of_the_reset_decides_on_all_tracks_that_follow(short):
    once, again, here = tracks(short(2), 7), tracks(short(2), 7), tracks(short(0), [7, 8, 9])
    assert once == again == here
    assert len({line for lines in once for line in lines}) == 9  # a new track for every episode
    assert not {line for lines in tracks(short(2), 70) for line in lines} & {line for lines in once for line in lines}


@pytest.mark.parametrize("processes", PROCESSES)
def test_a_masked_reset_begins_chosen_tracks_and_leaves_the_others_alone(short, processes):
    """An evaluator begins the next track of a list instead of the one that would be drawn."""
    env = short(processes)
    env.reset(seed=SEEDS)
    for _ in range(SHORT.max_steps):
        observations, *_, truncations, infos = env.step(np.full(3, 3))
    assert truncations.all()
    mask = np.array([False, True, False])
    options = {"reset_mask": mask}
    after, reset_infos = env.reset(seed=[None, 900_000, None], options=options)
    single = make_env(SHORT)
    expected, info = single.reset(seed=900_000)
    np.testing.assert_array_equal(after[1], expected)
    np.testing.assert_array_equal(after[~mask], observations[~mask])
    np.testing.assert_array_equal(reset_infos["_speed"], mask)
    assert {name: reset_infos[name][1] for name in info} == info
    assert reset_infos["crash"].tolist() == [None] * 3
    _, rewards, _, _, infos = env.step(np.full(3, 3))
    assert infos["dt"].tolist() == [0.0, 0.02, 0.0]  # it drives, the others have been reset
    assert rewards[1] == single.step(3)[1]


def test_the_loop_over_named_tracks_in_the_docs_drives_each_once_to_its_end(short):
    page = (REPOSITORY / "docs" / "vector.md").read_text()
    loop = next(block for block in page.split("```python\n") if "waiting = " in block).split("```")[0]
    names: dict[str, Any] = {"envs": short(0), "np": np}
    exec(loop.replace("test-20", "test-7").replace("envs.action_space.sample()", "np.full(3, 3)"), names)
    expected = {}
    for seed in track_seeds("test-7"):
        outcomes = alone(make_env(SHORT), seed, np.full(SHORT.max_steps, 3))
        expected[seed] = sum(reward for _, _, reward, _, _ in outcomes)
    assert names["returns"] == expected


# Processes


def test_an_attribute_can_be_one_for_all_or_one_for_each(short):
    for env in map(short, PROCESSES):
        env.set_attr("name", "all")
        assert env.get_attr("name") == ("all",) * 3
        env.set_attr("name", list("abc"))
        assert env.get_attr("name") == tuple("abc")
        assert env.call("get_wrapper_attr", "name") == tuple("abc")


def test_an_exception_of_an_environment_is_raised_here_and_stepping_goes_on(short):
    env = short(2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"Pass an integer 0-4") as raised:
        env.step([3, 3, 9])
    assert "In a worker process:\nTraceback" in raised.value.__notes__[0]
    with pytest.raises(Exception, match=r"pickle"):
        env.get_attr("_world")
    assert_equal(env, partial(make_env, SHORT), random_actions(env, 3))


def test_a_killed_process_is_an_error_and_no_hang():
    env = make_vec_env(SHORT, 3, processes=2)
    assert isinstance(env, ProcessVectorEnv)
    env.reset(seed=0)
    first, second = env._processes
    second.kill()
    with pytest.raises(ChildProcessError, match=r"one of 2 worker processes died.*use fewer processes"):
        env.step(np.full(3, 3))
    assert not first.is_alive()
    with pytest.raises(ClosedEnvironmentError, match="closed; make new ones"):
        env.reset()
    env.close()


def test_it_closes_although_another_process_has_inherited_its_pipes():
    env = make_vec_env(SHORT, 1, processes=1)
    heir = multiprocessing.get_context("fork").Process(target=signal.pause)
    heir.start()
    (worker,) = env._processes  # type: ignore[union-attr]
    env.close()
    assert heir.is_alive(), "the pipe was not held open"
    assert worker.exitcode == 0, "it ended on the message"
    heir.kill()
    heir.join()


SCRIPT = (
    "import signal; import numpy as np; from nac_drive.envs import EnvConfig, make_vec_env\n"
    "if __name__ == '__main__':\n"
    "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a test run in the background ignores it
    "    env = make_vec_env(EnvConfig(), 2, processes=2)\n"
    "    env.reset(seed=0); print('they drive', flush=True)\n"
    "    while True: env.step(np.full(2, 3))"
)


@pytest.mark.parametrize("way", ["kill", "interrupt"])
def test_processes_end_with_their_parent(way):
    parent = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], cwd=REPOSITORY, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert parent.stdout is not None
    for line in parent.stdout:  # warnings of other packages may come first
        if line == "they drive\n":
            break
    if way == "kill":
        parent.kill()
    else:
        os.killpg(parent.pid, signal.SIGINT)
    output = parent.communicate()[0]  # returns when no process holds the pipe any more, the workers included
    assert output.count("Traceback") == (way == "interrupt"), output


UNGUARDED = (
    "from nac_drive.envs import EnvConfig, make_vec_env\n"
    "env = make_vec_env(EnvConfig(), 1, processes=1)\n"
    "env.reset(seed=0)\n"
)


def fails(*arguments: str, **settings: Any) -> str:
    """The last line of a Python process that fails."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    result = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, **settings)
    assert result.returncode == 1
    return result.stderr.splitlines()[-1]


def test_a_script_without_a_guard_is_told_so(tmp_path):
    (tmp_path / "script.py").write_text(UNGUARDED)
    message = fails("script.py", cwd=tmp_path)
    assert "one of 1 worker processes ended with an error, which is printed above." in message
    assert 'put the code that starts them under `if __name__ == "__main__":` in a file' in message


def test_a_script_on_stdin_is_told_so(tmp_path):
    message = fails(input=UNGUARDED, cwd=tmp_path)
    assert "worker processes: they import the script, and there is no file '<stdin>'; put the code" in message
    assert message.endswith("or make_vec_env with processes=0.")


# Refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_envs": 0}, "num_envs must be at least 1, got 0"),
        ({"num_envs": 2, "processes": 3}, "processes must be 1 to 2, .*got 3; make_vec_env also takes 0"),
        ({"num_envs": 2, "processes": -1}, "processes must be 1 to 2, .*got -1; make_vec_env also takes 0"),
        ({"num_envs": 1, "crash": "explode"}, r"crash must be one of .*intervene.*got 'explode'"),
        ({"num_envs": 1, "processes": 1, "crash": "explode"}, r"crash must be one of .*intervene.*got 'explode'"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_vec_env(SHORT, **arguments)


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("step", ([3, 3],), r"actions must be one per environment \(3\), got 2"),
        ("step", ([3] * 4,), r"actions must be one per environment \(3\), got 4"),
        ("set_attr", ("observe", [True]), r"values must be one for all or one per environment \(3\), got 1"),
    ],
)
def test_another_number_than_that_of_the_environments_is_refused(short, method, arguments, message):
    with pytest.raises(ValueError, match=message):
        getattr(short(2), method)(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": [1, 2]}, r"seed must be a number or one per environment \(3\), got 2"),
        ({"options": {"reset_mask": np.ones(4, bool)}}, r"reset_mask'\] must be 3 booleans.*leave it out"),
        ({"options": {"reset_mask": np.ones(3)}}, r"reset_mask'\] must be 3 booleans"),
        ({"options": {"reset_mask": np.zeros(3, bool)}}, "at least one of them True"),
    ],
)
def test_a_reset_of_another_number_is_refused(short, arguments, message):
    with pytest.raises(ValueError, match=message):
        short(2).reset(**arguments)
