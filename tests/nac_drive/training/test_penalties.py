"""Every trainer adds the penalty of every core to its loss, and corrects the core after every step."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nac_drive
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.experiments import offline
from nac_drive.experiments.offline import Offline, _Fold
from nac_drive.experiments.paper import PaperTask
from nac_drive.policies import CORES, Driver
from nac_drive.policies.cores.base import Core
from nac_drive.training import trainer
from nac_drive.training.ppo.update import Learner
from tests.nac_drive.small import TINY, config, dagger_config, score_of_weights, train, train_dagger
from tests.nac_drive.training.test_ppo_update import SMALL, policy, rollouts

pytestmark = pytest.mark.usefixtures("one_thread")

Train = Callable[[str, Demonstrations, Path], Any]


def by_cloning(core: str, dataset: Demonstrations, folder: Path) -> None:
    train(config(core, epochs=1, batch_size=8), dataset, folder / "run")


def by_dagger(core: str, dataset: Demonstrations, folder: Path) -> None:
    train_dagger(dagger_config(core, **{**TINY, "sequence_length": 16, "max_steps": 17}, rounds=1), folder / "run")


def by_ppo(core: str, dataset: Demonstrations, folder: Path) -> None:
    mine = policy(core)
    learner = Learner(mine, SMALL.optim)
    driving = rollouts(mine, SMALL, learner.sequence_length)
    driving.start_at(0, 1)
    learner.update(driving.drive(), 1e-3, np.random.default_rng(0))


def passively(core: str, dataset: Demonstrations, folder: Path) -> None:
    experiment = Offline(folds=3, d_model=8, encoder="pooled", epochs=1)
    task = PaperTask(core, core, {}, (("split", "tracks"), ("length", 5), ("fold", 0)))
    _Fold(experiment, dataset.path.parent, task).train(Driver(experiment._driver_config(core, {})))


TRAINERS: dict[str, Train] = {
    "training/trainer.py by train": by_cloning,
    "training/trainer.py by dagger": by_dagger,
    "training/ppo/update.py": by_ppo,
    "experiments/offline.py": passively,
}
"""File that takes steps of an optimizer -> a short training."""
PENALISED = [name for name, factory in CORES.items() if getattr(factory.core, "penalty", None) is not Core.penalty]


def test_every_file_that_takes_steps_of_an_optimizer_is_tested_here():
    root = Path(nac_drive.__file__).parent
    files = set()
    for path in [*root.rglob("*.py"), *(root / "policies").rglob("*.py"), *(root / "data_collection").rglob("*.py")]:
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        if any(ast.unparse(call).endswith("optimizer.step") for call in calls):
            files.add(path.relative_to(root).as_posix())
    assert files == {name.split(" by ")[0] for name in TRAINERS}


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch, core: type[Core]) -> Iterator[dict[str, list[Any]]]:
    """Note steps, corrections, and the gradient of the loss with respect to the penalty."""
    seen: dict[str, list[Any]] = {"steps": [], "corrections": [], "gradients": []}
    real_penalty, real_correction = core.penalty, core.after_step

    def penalty(self: Core) -> torch.Tensor:
        value = real_penalty(self)
        assert isinstance(value, torch.Tensor)
        value.register_hook(lambda gradient: seen["gradients"].append(float(gradient)))
        return value

    def noted(real_step: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            seen["steps"].append(len(seen["gradients"]))
            return real_step(*arguments, **named)

        return step

    def after_step(self: Core) -> None:
        seen["corrections"].append(len(seen["steps"]))
        real_correction(self)

    with monkeypatch.context() as patch:
        patch.setattr(core, "penalty", penalty)
        patch.setattr(core, "after_step", after_step)
        steps = {
            optimizer: noted(optimizer.step) for optimizer in (torch.optim.Adam, torch.optim.AdamW)
        }  # ppo, cloning
        for optimizer, step in steps.items():
            patch.setattr(optimizer, "step", step)
        yield seen


@pytest.mark.parametrize("name", TRAINERS)
@pytest.mark.parametrize("core", PENALISED)
def test_the_penalty_is_in_every_loss_with_the_weight_1(core, name, dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "closed_loop", score_of_weights)
    monkeypatch.setattr(offline, "DATASET", dataset.path.name)
    kind: Any = CORES[core].core
    with watched(monkeypatch, kind) as seen:
        TRAINERS[name](core, dataset, tmp_path)
    steps = len(seen["steps"])
    assert steps > 0
    assert seen["gradients"] == [1.0] * steps
    assert seen["steps"] == seen["corrections"] == [*range(1, steps + 1)]


def test_ppo_keeps_a_linear_system_stable():
    """Without the penalty nothing brings an unstable matrix back."""
    mine = policy("lds")
    core: Any = mine.driver.core
    with torch.no_grad():
        core.dynamics.add_(0.5)
    learner = Learner(mine, SMALL.optim)
    driving = rollouts(mine, SMALL, learner.sequence_length)
    driving.start_at(0, 1)
    before = core.gershgorin_loss().item()
    update = partial(learner.update, rate=5e-3, rng=np.random.default_rng(0))
    for _ in range(3):
        update(driving.drive())
    assert core.gershgorin_loss().item() < 0.95 * before
