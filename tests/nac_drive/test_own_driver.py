"""Objects, models and functions of users drive.

Their actions are checked.
"""

from __future__ import annotations

import logging
import pickle
import sys
import threading
from copy import copy
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecTransposeImage
from torch import Tensor

from nac_drive.data_collection import identity
from nac_drive.data_collection.collect import collect
from nac_drive.data_collection.controller.controller import Controller
from nac_drive.data_collection.drivers import driver_hash, driver_names, resolve_driver
from nac_drive.data_collection.identity import object_hash
from nac_drive.data_collection.own_driver import OwnDriver, as_policy
from nac_drive.data_collection.trained_env import env_for
from nac_drive.envs import EnvConfig, make_env, rollout
from nac_drive.evaluation.evaluate import Evaluation, evaluate
from nac_drive.policies import Driver, DriverConfig
from nac_drive.policies.image_input import ImageInput
from tests.own_drivers import Brakes, Recurrent, Weighs, brake, trained, worlds
from tests.slow import slow_but

ENV = EnvConfig(max_steps=20)
TRACKS = [900_001, 900_003, 5]


def rows(evaluation: Evaluation) -> list[Any]:
    return [row.with_metrics(latency_ms=0.0) for row in evaluation.rows]


def actions(driver: Any, env: EnvConfig = ENV, track: int = TRACKS[0]) -> list[Any]:
    """The actions of one episode."""
    found: list[Any] = []
    rollout(make_env(env), as_policy(driver, env), track, subscribers=[lambda step: found.append(step.intended)])
    return found


def test_a_function_drives_as_the_object_that_does_the_same():
    with_dt = evaluate(lambda observation, dt: 4 if dt in (0.0, 0.02) else 3, TRACKS, name="own", env=ENV)
    ours = evaluate(resolve_driver("controller", ENV), TRACKS, name="own", env=ENV)
    found = [rows(evaluate(driver, TRACKS, name="own", env=ENV)) for driver in (brake, Brakes(), Brakes)]
    assert found[0] == found[1] == found[2] == rows(with_dt) != rows(ours)
    assert [evaluate(driver, [5], env=ENV).rows[0].driver for driver in (brake, Brakes())] == ["brake", "Brakes"]


@pytest.mark.parametrize(
    ("algorithm", "control", "frames"),
    slow_but([("ppo", "continuous", 3)], [("ppo", "continuous", 3), ("dqn", "discrete", 2)]),
)
def test_a_model_of_stable_baselines3_scores_as_its_own_evaluation_says(algorithm, control, frames, workers):
    env = EnvConfig(control, max_steps=70)
    model, world = trained(algorithm, env, frames), worlds(env, frames)
    assert len({str(action) for action in actions(model, env)}) > 2
    world.seed(TRACKS[0])
    scored: Any = evaluate_policy(model, world, 1, return_episode_rewards=True, warn=False)
    (episode_return,), (length,) = scored
    here = evaluate(model, TRACKS, env=env)
    assert (here.rows[0].episode_return, here.rows[0].length) == (pytest.approx(episode_return, rel=1e-6), length)
    assert rows(evaluate(model, TRACKS, env=env, pool=workers)) == rows(here)
    assert env_for(resolve_driver(model)).control == control
    other = EnvConfig("continuous" if control == "discrete" else "discrete")
    with pytest.raises(ValueError, match=f"driver '{algorithm.upper()}' was made for {control} control"):
        evaluate(model, TRACKS, env=other)


@pytest.mark.parametrize("first", [True, False])
def test_stacked_frames_are_those_of_stable_baselines3(first):
    world = worlds(ENV, 3)
    theirs: Any = VecTransposeImage(world) if first else world
    form = ImageInput.of(theirs.observation_space.shape, "model")
    assert (form.frames, form.channels_first, form.frame_shape) == (3, first, (96, 96, 3))
    world.seed(7)
    stack, observation = form.start(), theirs.reset()
    simulator: Any = make_env(ENV)
    frame, _ = simulator.reset(seed=7)
    for _ in range(5):
        stack = form.push(stack, frame)
        assert np.array_equal(form.array(stack), observation[0])
        observation, *_ = theirs.step(np.array([3]))
        frame, *_ = simulator.step(3)


def test_a_recurrent_model_gets_its_state_back():
    assert actions(Recurrent()) == [4 if frame % 3 == 0 else 3 for frame in range(20)]


def test_workers_drive_as_this_process_does_bit_for_bit(workers):
    class Local(Weighs):
        """A class that no other process can import."""

    for driver in (Weighs(3), Local(3)):
        here = evaluate(driver, TRACKS, name="own", env=ENV)
        assert rows(evaluate(driver, TRACKS, name="own", env=ENV, pool=workers)) == rows(here)
        assert len(set(actions(driver))) > 1


def test_a_driver_that_cannot_be_sent_drives_here_and_a_line_says_so(workers, tmp_path):
    driver: Any = Brakes()
    driver.lock = threading.Lock()
    here = evaluate(driver, TRACKS, env=ENV)
    assert rows(here) == rows(evaluate(Brakes(), TRACKS, env=ENV))
    with pytest.warns(UserWarning, match="'Brakes' drives in this process alone: it cannot be sent.*TypeError: cannot"):
        assert rows(evaluate(driver, TRACKS, env=ENV, pool=workers)) == rows(here)
    with pytest.warns(UserWarning, match="drives in this process alone"):
        assert len(collect(tmp_path / "data", driver, env=EnvConfig(max_steps=2), seeds=[0, 1], workers=2)) == 2


DISCRETE, CONTINUOUS = "an integer from 0 to 4", r"3 finite numbers in \[-1, 1\], \[0, 1\], \[0, 1\]"
WRONG: list[tuple[Any, str, str]] = [
    (5, "discrete", f"its action must be {DISCRETE}, got 5"),
    (-1, "discrete", DISCRETE),
    (3.0, "discrete", f"{DISCRETE}, got 3.0"),
    (True, "discrete", f"{DISCRETE}, got True"),
    (None, "discrete", rf"{DISCRETE}, got None\.$"),
    (np.zeros(3), "discrete", rf"{DISCRETE}, got float64 \(3,\) \[0.0, 0.0, 0.0\]; pass --control continuous"),
    (np.zeros((1, 3)), "discrete", r"got float64 \(1, 3\) \[\[0.0, 0.0, 0.0\]\]\.$"),
    (np.array([3]), "discrete", rf"{DISCRETE}, got int64 \(1,\) \[3\]"),
    ([[1], [1, 2]], "discrete", DISCRETE),
    (3, "continuous", f"its action must be {CONTINUOUS}, got 3; pass --control discrete"),
    ((0.0, 1.5, 0.0), "continuous", CONTINUOUS),
    ([0.0, float("nan"), 0.0], "continuous", rf"{CONTINUOUS}, got \[0.0, nan, 0.0\]"),
    (torch.zeros(4, requires_grad=True), "continuous", CONTINUOUS),
]  # fmt: skip


@pytest.mark.parametrize(("action", "control", "message"), WRONG)
def test_a_wrong_action_is_one_line_that_names_driver_frame_and_what_is_expected(action, control, message):
    class Own:
        def begin(self, env):
            return 0

        def act(self, observation, state, dt):
            good = 3 if control == "discrete" else [0, 0.5, 0]
            return (action if state == 2 else good), state + 1

    with pytest.raises(ValueError, match=rf"^driver 'Own', frame 2: .*{message}") as caught:
        evaluate(Own(), TRACKS, env=EnvConfig(control, max_steps=5))
    assert "\n" not in str(caught.value)


def test_good_actions_come_in_many_types():
    for action in (3, np.int64(3), np.array(3), np.uint8(3), torch.tensor(3)):
        assert actions(lambda observation, action=action: action, EnvConfig(max_steps=2)) == [3, 3]
    plain = torch.tensor([0.0, 1.0, 0.0])
    tensors = [plain, plain.clone().requires_grad_(), plain.bfloat16()]
    for action in ([0, 1, 0], (0.0, 1.0, 0.0), np.array([0.0, 1.0, 0.0]), *tensors):
        (found, _) = actions(lambda observation, action=action: action, EnvConfig("continuous", max_steps=2))
        assert found.dtype == np.float32
        assert found.tolist() == [0, 1, 0]


def test_code_that_fails_is_named_with_its_line():
    def fails(observation):
        return 1 // int(observation[0, 0, 0] * 0)

    with pytest.raises(ValueError, match=r"'fails' failed at frame 0: test_own_driver.py:\d+: ZeroDivisionError"):
        evaluate(fails, TRACKS, env=ENV)
    with pytest.raises(ValueError, match="act must return the action and the next state, got 4"):
        evaluate(type("Own", (Brakes,), {"act": lambda *inputs: 4})(), TRACKS, env=ENV)


def test_a_driver_cannot_change_the_frame_that_is_recorded(tmp_path):
    def paints(observation):
        observation[:] = 0
        return 3

    data = collect(tmp_path / "data", paints, env=EnvConfig(max_steps=2), seeds=[0])
    assert data.load().frames.any()


def test_what_does_not_drive_is_refused():
    class Needs(Brakes):
        def __init__(self, path):
            self.path = path

    refused: list[tuple[Any, str]] = [
        ([1], "driver must be a name, a folder, an object with begin and act, .* got list"),
        (Needs, "the class Needs needs arguments"),
        (EnvConfig(), "got EnvConfig"),
        (type("Makes", (), {"__init__": lambda self: [][0], "act": 0}), "'Makes' cannot be made: .*IndexError"),
    ]
    for driver, message in refused:
        with pytest.raises(ValueError, match=message):
            resolve_driver(driver)


@pytest.mark.parametrize(("shape", "dtype", "high", "message"), [
    ((64, 64, 3), "uint8", 255, "its frames must be 64 x 64 pixels, the environment's are 96 x 96; drive where it was"),
    ((96, 96, 1), "uint8", 255, r"its input must be colour frames, .* got \(96, 96, 1\); write a function"),
    ((12,), "float32", 1, r"got \(12,\)"),
    ((96, 96, 3), "float32", 7, "frames from 0 to 255 or from 0 to 1, got numbers from 0 to 7"),
])  # fmt: skip
def test_a_model_of_other_observations_is_refused(shape, dtype, high, message):
    import gymnasium as gym

    model: Any = Recurrent()
    model.observation_space = gym.spaces.Box(0, high, shape, dtype)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message) as caught:
        evaluate(model, TRACKS, env=ENV)
    assert str(caught.value).startswith("driver 'Recurrent': ")
    model.observation_space = None
    model.action_space = gym.spaces.Discrete(3)
    with pytest.raises(ValueError, match="its action is an integer from 0 to 2, the environment takes an integer from"):
        evaluate(model, TRACKS, env=ENV)


def test_a_network_that_is_called_with_a_frame_says_what_a_frame_is():
    with pytest.raises(
        ValueError, match=r"^driver 'Conv2d' failed at frame 0: .*; it gets .* uint8 \(96, 96, 3\)"
    ) as caught:
        evaluate(torch.nn.Conv2d(3, 4, 8), TRACKS, env=ENV)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_network_drives_without_dropout_and_keeps_its_mode():
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dropout, self.frozen = torch.nn.Dropout(0.5), torch.nn.Dropout(0.5).eval()

        def forward(self, observation: np.ndarray) -> Tensor:
            return self.dropout(torch.ones(3))

    net = Net()
    assert all(action.tolist() == [1, 1, 1] for action in actions(net, EnvConfig("continuous", max_steps=8)))
    assert (net.training, net.dropout.training, net.frozen.training) == (True, True, False)


def test_a_layer_that_waits_for_its_first_input_has_a_hash():
    assert object_hash(torch.nn.LazyLinear(3)) != object_hash(torch.nn.LazyLinear(4))


def test_a_hash_says_what_decides_the_actions():
    def holds(number):
        return lambda observation: number

    def hash_of(driver):
        return driver_hash(driver, ENV)

    class Own(Brakes):
        def __init__(self, **values):
            vars(self).update(values)

    assert hash_of(Own(k=1, names=["a"])) == hash_of(Own(names=["a"], k=1))
    different = [
        Own(k=1), Own(k=2), Own(k=1.0), Own(k=[1]), Own(k=np.ones(2)), Own(k=np.ones(2, np.float32)), Own(k=brake),
        Brakes(), brake, holds(1), holds(2), Weighs(0), Weighs(1), Controller(), Controller("continuous"),
    ]  # fmt: skip
    assert len({hash_of(driver) for driver in different}) == len(different)
    assert [hash_of(driver) for driver in (Own(k=2), holds(2), Weighs(1))] == [
        hash_of(driver) for driver in (different[1], different[10], different[12])
    ]
    driver = Driver(DriverConfig(core="cnn"))
    before = hash_of(driver)
    assert hash_of(driver.eval()) == hash_of(pickle.loads(pickle.dumps(driver))) == before
    driver.action_head.out.bias.data += 1
    assert hash_of(driver) != before
    policy = as_policy(Weighs(1))
    assert isinstance(policy, OwnDriver)
    assert pickle.loads(pickle.dumps(policy)).sha256 == policy.sha256 == hash_of(policy) == hash_of(Weighs(1))


class Network(torch.nn.Module):
    """Two layers of the same weights, for any settings."""

    def __init__(self, *activations: torch.nn.Module, **settings: Any):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 5), *activations)
        vars(self.layers[0]).update(settings)


def test_a_hash_of_a_module_covers_the_settings_of_all_of_its_modules():
    """Weights alone do not say what a network computes."""
    relu, tanh = torch.nn.ReLU, torch.nn.Tanh
    networks = [
        Network(relu()), Network(tanh()), Network(relu(), tanh()), Network(relu(), relu()), Network(relu(), k=1),
        Network(relu(), k=(1, 2)), Network(relu(), k=(1, 3)), Network(relu(), k={"a": [None]}), Network(relu(), k=relu),
        Network(relu(), k=torch.ones(2)), Network(relu(), k=np.zeros(2)), Network(relu(), k=torch.relu),
        Network(relu(), k=DriverConfig()), Network(relu(), k=DriverConfig(core="cnn")), Network(torch.nn.ELU(2.0)),
        Network(torch.nn.ELU(1.0)),
    ]  # fmt: skip
    hashes = [object_hash(network) for network in networks]
    assert len(set(hashes)) == len(networks)
    assert [object_hash(pickle.loads(pickle.dumps(network.eval()))) for network in networks] == hashes
    assert object_hash(Network(relu(), trainer=object())) == hashes[0], "what computes nothing does not count"


@pytest.mark.parametrize("core", ["nac-sharp", "lstm"])
def test_a_hash_of_a_driver_covers_its_config_and_no_drive(core):
    """One without a clock has the same weights."""
    driver = Driver(DriverConfig(core=core)).eval()
    clockless = Driver(DriverConfig(core=core, clockless=True)).eval()
    clockless.load_state_dict(driver.state_dict())
    before = driver_hash(driver, ENV)
    assert driver_hash(clockless, ENV) != before
    driver.act(np.zeros((96, 96, 3), np.uint8), driver.begin(), 0.0)
    assert driver_hash(driver, ENV) == before


HASHED = """
import logging
import numpy as np
LOG, WEIGHTS, OTHER = logging.getLogger(__name__), np.zeros(2), 5

class Agent:
    GAIN = 3
    @staticmethod
    def scaled(number): return 2 * number
    @property
    def bias(self): return 1
    def act(self, observation, state, dt):
        LOG.info("a frame")
        return max(int(weight) for weight in WEIGHTS), state
    def begin(self, env): return None

def drive(observation):
    return [int(weight) for weight in WEIGHTS][0]
"""


@pytest.mark.parametrize("name", ["Agent", "drive"])
@pytest.mark.parametrize("in_a_file", [True, False])
def test_a_hash_covers_what_methods_and_inner_functions_use(name, in_a_file, tmp_path):
    """A class of a notebook has no file."""

    def hash_of(old: str = "", new: str = "", weights: float = 0.0, module: str = "hashed") -> str:
        code = HASHED.replace(old, new) if old else HASHED
        assert not old or code != HASHED
        made = ModuleType(module)
        if in_a_file:
            (tmp_path / "hashed.py").write_text(HASHED)
            made.__file__ = str(tmp_path / "hashed.py")
        sys.modules[module] = made
        try:
            exec(compile(code, "<cell>", "exec"), vars(made))
            vars(made)["WEIGHTS"] += weights
            identity.source_hash.cache_clear()
            return object_hash(vars(made)[name])
        finally:
            del sys.modules[module]

    before = hash_of()
    logging.getLogger("hashed.another one")
    assert hash_of() == before, "a logger knows all others"
    assert hash_of(weights=1.0) != before
    if name == "Agent" and not in_a_file:
        changes = [("GAIN = 3", "GAIN = 1"), ("2 * number", "3 * number"), ("return 1", "return 2"), ("max(", "min(")]
        assert len({before, *(hash_of(*change) for change in changes)}) == 5


def test_names_of_several_drivers():
    one = as_policy(Brakes())
    assert driver_names([one, Brakes(), brake, "Brakes", brake]) == [
        "Brakes",
        "Brakes (2)",
        "brake",
        "Brakes",
        "brake (2)",
    ]
    assert driver_names([brake, lambda frame: 3], taken=["brake"]) == ["brake (2)", "lambda"]


def test_a_driver_of_the_package_stays_as_it_is():
    controller = Controller()
    assert as_policy(controller) is controller
    policy = as_policy(Brakes(), name="mine")
    assert as_policy(policy) is policy


def test_a_state_is_copied_without_its_environment():
    class Remembers(Brakes):
        def begin(self, env):
            return [env, 0]

    env = make_env(ENV)
    state = as_policy(Remembers()).begin(env)
    again = copy(state)
    again.inner[1] = 7
    assert state.inner == [env, 0]
    assert again.inner[0] is env
