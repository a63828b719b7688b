"""Lost frames and late actions on recordings: what a driver would have met in the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nac_drive.envs import RECORDABLE, Augmentation, EnvConfig, make_env, perturb
from nac_drive.envs.perturbations.dynamics import ActionDelay
from nac_drive.envs.perturbations.frames import Gaps
from nac_drive.envs.perturbations.registry import parse
from nac_drive.envs.perturbations.stream import Stream
from nac_drive.envs.perturbations.timing import BLACK, TimedPerturbation, Timing
from tests.envs.episodes import blind
from tests.envs.perturbations.doubles import Clock

LENGTH, TRACK = 90, 4
TIMED = ("frame-drop", "blackouts", "frame-rate", "action-repeat", "gap", "scattered-gaps", "action-delay")


def queries(spec: str, length: int = LENGTH) -> list[tuple[int, float, bool]]:
    """(simulator frame, dt, black) of each query within the first `length` frames, under `spec` in the environment."""
    env = perturb(blind(make_env(EnvConfig(renderer="fast"))), spec)
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
        timing = part.perturbation.retime(timing, length, Stream(part.name).restart(TRACK))
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
    late = skip.delay(2, 6)
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
    timing = ActionDelay(2).retime(Timing.of(8), 8, np.random.default_rng(0))
    assert [intended[row] for row in timing.rows] == [env.actions[label] for label in timing.labels]


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
    assert {*TIMED} < {*RECORDABLE}
    assert {"gaussian-noise", "shadows"} < {*RECORDABLE}
    assert not {"weak-tyres", "action-noise"} & {*RECORDABLE}
    with pytest.raises(ValueError, match=r"'weak-tyres' needs the simulator; recorded frames take .*collect --perturb"):
        Augmentation(["gap:1+weak-tyres:1"])


def test_an_augmentation_draws_images_and_time():
    augmentation = Augmentation(["shadows:1+frame-drop:3:skip", "brightness:1"])
    assert not augmentation.images_only
    assert Augmentation(["brightness:1"]).images_only
    rng, white = np.random.default_rng(0), np.full((1, 96, 96, 3), 200, np.uint8)
    drawn = [augmentation.draw(rng, (96, 96)) for _ in range(60)]
    kinds = {(bool((each.effect(white) != white).any()), len(each.timing(64, rng).rows) < 64) for each in drawn}
    assert kinds == {(False, False), (True, False), (True, True)}  # clean, brighter, shaded and lost


def test_make_env_perturbs_as_the_config_says():
    spec = "frame-drop:3:zero+colour:2"
    config = EnvConfig(max_steps=30, renderer="fast", perturb=spec)
    one = make_env(config)
    other = perturb(make_env(EnvConfig(max_steps=30, renderer="fast")), spec, episode_frames=30)
    for env in (one, other):
        env.reset(seed=3)
    for _ in range(30):
        (a, *rest), (b, *same) = one.step(3), other.step(3)
        np.testing.assert_array_equal(a, b)
        assert rest == same
    with pytest.raises(ValueError, match="perturbation 'fog' is unknown"):
        EnvConfig(perturb="fog:1")
