"""Lost frames and late actions on recordings: what a driver would have met in the simulator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

import gymnasium as gym
import numpy as np
import pytest

from nac_drive.envs import PERTURBATIONS, Augmentation, EnvConfig, make_env, perturb, recordable
from nac_drive.envs.perturbations.dynamics import ActionDelay
from nac_drive.envs.perturbations.effects import Chain
from nac_drive.envs.perturbations.frames import FrameLoss, Gaps, Missing
from nac_drive.envs.perturbations.images import FrameSize
from nac_drive.envs.perturbations.registry import Augmented, parse
from nac_drive.envs.perturbations.stream import Stream
from nac_drive.envs.perturbations.timing import BLACK, TimedPerturbation, Timing
from tests.envs.episodes import blind
from tests.envs.perturbations.doubles import Clock

LENGTH, TRACK = 90, 4
TIMED = ("frame-drop", "blackouts", "frame-rate", "action-repeat", "gap", "scattered-gaps", "action-delay")


def queries(spec: str, length: int = LENGTH) -> list[tuple[int, float, bool]]:
    """(simulator frame, dt, black) of each query within the first `length` frames, under `spec` in the environment."""
    env = perturb(blind(make_env(EnvConfig())), spec)
    simulator: Any = env.unwrapped
    _, info = env.reset(seed=TRACK)
    found = []
    while simulator.frame < length:
        found.append((simulator.frame, info["dt"], bool(info.get("frame_lost"))))
        *_, info = env.step(3)
    env.close()
    return found


def retimed(spec: str, length: int = LENGTH) -> Timing:
    """The same from a recording of `length` frames, with the random numbers of the environment."""
    timing = Timing.of(length)
    for part in parse(spec):
        assert isinstance(part.perturbation, TimedPerturbation)
        timing = part.perturbation.retime(timing, Stream(part.name).restart(TRACK))
    return timing


@pytest.mark.parametrize(
    "spec",
    [
        "frame-drop:2:zero", "frame-drop:3:hold", "frame-drop:3:skip", "frame-rate:3", "frame-rate:2:hold",
        "frame-drop:3:zero+frame-rate:3", "frame-drop:1:hold+frame-rate:1", "blackouts:2:zero", "blackouts:1:hold",
        "blackouts:3:skip", "blackouts:2:zero+frame-rate:2", "action-repeat:2", "action-repeat:1:hold",
    ],
)  # fmt: skip
def test_a_recording_is_queried_at_the_frames_at_which_the_simulator_queries(spec):
    expected, timing = queries(spec), retimed(spec)
    dt = np.full(LENGTH, 0.02)
    dt[0] = 0.0
    found = list(zip(timing.rows.tolist(), timing.seconds(dt).tolist(), strict=True))
    assert [(row, pytest.approx(seconds)) for row, seconds, _ in expected] == found
    if "zero" in spec:
        assert [black for *_, black in expected] == (timing.shown == BLACK).tolist()
    if "hold" in spec:
        held = timing.shown != timing.rows
        assert [black for *_, black in expected] == held.tolist()
        assert held.any()
        assert (timing.shown[held] < timing.rows[held]).all()


def test_every_kind_of_loss_and_delay_literally():
    lost = np.array([False, True, True, False, True, False])
    zero, hold, skip = (Timing.of(6).lose(lost, missing) for missing in ("zero", "hold", "skip"))
    assert zero.shown.tolist() == [0, BLACK, BLACK, 3, BLACK, 5]
    assert hold.shown.tolist() == [0, 0, 0, 3, 3, 5]
    assert skip.shown.tolist() == skip.rows.tolist() == skip.labels.tolist() == [0, 3, 5]
    assert zero.rows.tolist() == hold.labels.tolist() == [0, 1, 2, 3, 4, 5]
    dt = np.array([0.5, 1, 2, 3, 4, 5], np.float32)
    assert skip.seconds(dt).tolist() == [0.5, 6, 9]
    assert zero.seconds(dt).tolist() == dt.tolist()
    late = hold.delay(2)
    assert (late.rows.tolist(), late.labels.tolist()) == ([0, 1, 2, 3], [2, 3, 4, 5])
    late = skip.delay(2)  # of queries: the action of the first query is executed when the third one comes
    assert (late.rows.tolist(), late.labels.tolist()) == ([0], [5])
    late = Timing.of(6).delay(2).lose(lost[:4], "skip")  # of frames: each action is held until the next query
    assert (late.rows.tolist(), late.labels.tolist()) == ([0, 3], [2, 5])
    twice = hold.lose(np.array([False, False, False, True, False, False]), "hold")
    assert twice.shown.tolist() == [0, 0, 0, 0, 3, 5]


def test_a_late_action_gets_the_label_of_the_frame_that_executes_it():
    env = Clock()
    delayed = perturb(env, "action-delay:2")
    delayed.reset(seed=0)
    intended = [1, 2, 3, 4, 0, 1, 2, 3]
    for action in intended:
        delayed.step(action)
    timing = ActionDelay(2).retime(Timing.of(8), np.random.default_rng(0))
    assert [intended[row] for row in timing.rows] == [env.actions[label] for label in timing.labels]


class Film(gym.Env):
    """Frame n shows n + 1, which is not black, and any number is an action."""

    observation_space = gym.spaces.Box(0, 255, (1, 1, 3), np.uint8)
    action_space = gym.spaces.Discrete(LENGTH, start=-1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        self.executed: list[int] = []
        return self._frame()

    def step(self, action):
        self.executed.append(int(action))
        observation, info = self._frame()
        return observation, 0.0, False, False, info

    def _frame(self) -> tuple[np.ndarray, dict[str, Any]]:
        return np.full((1, 1, 3), len(self.executed) + 1, np.uint8), {"dt": 0.02 if self.executed else 0.0}


@dataclass(frozen=True)
class Drawn(FrameLoss):
    """A frame loss whose lost frames were drawn before."""

    mask: tuple[bool, ...]

    def lost(self, rng: np.random.Generator) -> Iterator[bool]:
        return itertools.chain(self.mask, itertools.repeat(False))


def random_chain(rng: np.random.Generator) -> list[ActionDelay | Drawn]:
    """One to four timed perturbations of the registry at random levels, their losses drawn for LENGTH queries."""
    timed = [name for name, levels in PERTURBATIONS.items() if isinstance(levels[0], TimedPerturbation)]
    chain = []
    for name in rng.choice(timed, rng.integers(1, 5), replace=False):
        perturbation = PERTURBATIONS[name][rng.integers(len(PERTURBATIONS[name]))]
        if isinstance(perturbation, FrameLoss):
            missing: Any = rng.choice(get_args(Missing))
            perturbation = Drawn(tuple(perturbation.lost_of(LENGTH, rng).tolist()), missing=missing)
        assert isinstance(perturbation, ActionDelay | Drawn)
        chain.append(perturbation)
    return chain


def simulated(chain: list[ActionDelay | Drawn]) -> tuple[list[tuple[int, int]], list[int | None]]:
    """Drive LENGTH frames under `chain`, query q answering with action q.

    Returns:
        The frame of each query and the frame that it sees, and the query whose action each frame executes.
    """
    executed: list[int | None] = []
    seen = [0] * (len(chain) + 1)  # what comes out of each perturbation
    counts = [0] * len(chain)  # queries of each perturbation so far
    waiting: list[list[int | None]] = [[None] * part.frames if isinstance(part, ActionDelay) else [] for part in chain]

    def arrives(level: int) -> bool:
        """Let the frame that has reached `chain[level]` pass through it, unless it is skipped."""
        part, lost = chain[level], False
        if isinstance(part, Drawn):
            lost = counts[level] < LENGTH and part.mask[counts[level]]
            counts[level] += 1
        if not lost:
            seen[level + 1] = seen[level]
        elif part.missing == "zero":  # type: ignore[union-attr]
            seen[level + 1] = BLACK
        return not (lost and part.missing == "skip")  # type: ignore[union-attr]

    def advance(level: int, action: int | None) -> None:
        """Execute an action of the driver, or of the perturbation `chain[level]`, until it is answered."""
        if level < 0:
            executed.append(action)
            seen[0] = len(executed)
            return
        if isinstance(chain[level], ActionDelay):
            waiting[level].append(action)
            action = waiting[level].pop(0)
        advance(level - 1, action)
        while not arrives(level):
            advance(level - 1, action)

    for level in range(len(chain)):
        arrives(level)
    queries = []
    while len(executed) < LENGTH:
        queries.append((len(executed), seen[-1]))
        advance(len(chain) - 1, len(queries) - 1)
    return queries, executed[:LENGTH]


def test_random_chains_query_show_and_execute_as_a_simulation_and_as_the_environment():
    rng, delayed = np.random.default_rng(0), 0
    for _ in range(300):
        chain = random_chain(rng)
        queries, executed = simulated(chain)
        first_frames = [executed.index(query) if query in executed else None for query in range(len(queries))]
        expected = [(*query, first) for query, first in zip(queries, first_frames, strict=True) if first is not None]

        timing = Augmented(Chain(()), list(chain)).timing(LENGTH, rng)
        rows = list(zip(timing.rows.tolist(), timing.shown.tolist(), timing.labels.tolist(), strict=True))
        assert rows == expected, chain
        delayed += any(row != label for row, _, label in rows)

        film = Film()
        env: gym.Env = film
        for part in chain:
            env = part.wrap(env, Stream("test"), LENGTH, 84)
        observation, _ = env.reset(seed=0)
        met = []
        while len(film.executed) < LENGTH:
            met.append((len(film.executed), int(observation.max()) - 1))
            observation, *_ = env.step(len(met))
        assert met == queries, chain
        assert [action - 1 if action else None for action in film.executed[:LENGTH]] == executed, chain
    assert delayed > 50


def test_a_sequence_too_short_for_its_perturbations_has_no_query():
    for spec in ("action-delay:4+gap:2", "action-repeat:1+action-delay:4+blackouts:3:skip"):
        timed = [part.perturbation for part in parse(spec)]
        timing = Augmented(Chain(()), timed).timing(4, np.random.default_rng(0))  # type: ignore[arg-type]
        assert len(timing.rows) == len(timing.shown) == len(timing.labels) == 0


@pytest.mark.parametrize(("fraction", "pieces"), [(0.25, 1), (0.5, 4), (0.3, 4)])
def test_gaps_of_a_recording_lose_their_fraction_of_it_anywhere(fraction, pieces):
    draws = np.stack([Gaps(fraction, pieces).lost_of(40, np.random.default_rng(seed)) for seed in range(200)])
    assert not draws[:, 0].any()
    wanted = round(fraction * 40)
    assert set(draws.sum(axis=1)) == {wanted, wanted - 1}  # frame 0 always arrives
    assert draws[:, 1:].mean(axis=0).min() > 0.5 * fraction
    starts = (np.diff(draws.astype(int), axis=1) == 1).sum(axis=1)
    assert starts.max() <= pieces + 1  # one may go round the end


def test_names_that_can_be_trained_under():
    assert {*TIMED} < {*recordable()}
    assert {"gaussian-noise", "shadows"} < {*recordable()}
    assert not {"weak-tyres", "action-noise"} & {*recordable()}
    with pytest.raises(ValueError, match=r"'weak-tyres' needs the simulator; recorded frames take .*collect --perturb"):
        Augmentation(["gap:1+weak-tyres:1"])


def test_an_augmentation_draws_images_and_time():
    augmentation = Augmentation(["shadows:1+frame-drop:3:skip", "brightness:1"])
    assert not augmentation.images_only
    assert Augmentation(["brightness:1"]).images_only
    rng, white = np.random.default_rng(0), np.full((1, 96, 96, 3), 200, np.uint8)
    drawn = [augmentation.draw(rng, FrameSize(96, 96, 84)) for _ in range(60)]
    kinds = {(bool((each.effect(white) != white).any()), len(each.timing(64, rng).rows) < 64) for each in drawn}
    assert kinds == {(False, False), (True, False), (True, True)}  # clean, brighter, shaded and lost


def test_make_env_perturbs_as_the_config_says():
    spec = "frame-drop:3:zero+colour:2"
    config = EnvConfig(max_steps=30, perturb=spec)
    one = make_env(config)
    other = perturb(make_env(EnvConfig(max_steps=30)), spec, episode_frames=30)
    for env in (one, other):
        env.reset(seed=3)
    for _ in range(30):
        (a, *rest), (b, *same) = one.step(3), other.step(3)
        np.testing.assert_array_equal(a, b)
        assert rest == same
    with pytest.raises(ValueError, match="perturbation 'fog' is unknown"):
        EnvConfig(perturb="fog:1")
