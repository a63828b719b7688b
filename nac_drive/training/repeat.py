"""Run a training again and compare the results.

Its folder records what is needed. Nothing that the folder names is imported.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch

from nac_drive.arguments import checks_shared_arguments
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.drivers import driver_hash
from nac_drive.data_collection.human import HUMAN
from nac_drive.envs import EnvConfig
from nac_drive.events import Progress, silent
from nac_drive.parallel.processes import Pool
from nac_drive.policies import load_driver
from nac_drive.policies.ops.threads import threads
from nac_drive.storage.checkpoints import NAMES, step_of
from nac_drive.storage.links import require_own_files
from nac_drive.storage.names import shown
from nac_drive.storage.read import read_json
from nac_drive.training.dagger import dagger
from nac_drive.training.dagger_config import DaggerConfig
from nac_drive.training.machine import describe_machine
from nac_drive.training.plan import source_hashes
from nac_drive.training.ppo.config import PPOConfig
from nac_drive.training.ppo.run import ppo
from nac_drive.training.run_folder import MACHINE, RunFolder
from nac_drive.training.settings import CONFIGS, SavedConfig, read_config, settings
from nac_drive.training.tracking import numbers
from nac_drive.training.train import TrainConfig, stalled, train

_MOST_THREADS = 1024
_LENGTHS = {"train": "epochs", "dagger": "rounds", "ppo": "total_timesteps"}
"""Command -> setting that says how long its runs are."""
_MEASURED = ("seconds", "_per_second", "memory_mb")
"""Ends of the names of metrics that are never the same twice."""


class _Machine(msgspec.Struct):
    """Machine and code in env.json."""

    python: str | None = None
    platform: str | None = None
    gpus: list[str] = []
    threads: Annotated[int, msgspec.Meta(ge=1, le=_MOST_THREADS)] | None = None
    versions: dict[str, str] = {}
    git_commit: str | None = None
    code_sha256: str | None = None
    grown_from: dict[str, int] = {}


@dataclass(frozen=True)
class Repetition:
    """How a repeated run compares with its original."""

    best: Path
    """The folder of its best checkpoint."""
    equal: bool
    """Whether the weights of its last and its best checkpoint are the original's, bit for bit."""
    lines: tuple[str, ...]
    """The comparison in plain lines."""


@checks_shared_arguments
def repeat(
    run: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    dataset: str | os.PathLike[str] | None = None,
    device: str | None = None,
    resume: bool = False,
    pool: Pool | None = None,
    progress: Progress = silent,
) -> Repetition:
    """Run a finished training again.

    It has the settings, the data, the device and the threads of torch that the folder records, but no trackers. On the
    CPU, with the same code and packages, the weights are equal bit for bit.

    Args:
        run: The folder of the run.
        folder: The folder of the new run.
        dataset: The folder of the dataset if it has moved; its content has to be the same.
        device: `cpu` or `cuda`; None: the device of the run.
        resume: Go on with an interrupted repetition.
        pool: Processes for episodes and validations.
        progress: Called as by the training.

    Returns:
        The comparison.

    Raises:
        ValueError: The run is not finished, a person was its expert, its folder is damaged, or the dataset or a driver
            has other content than then.
        FileNotFoundError: The run, its dataset or a driver is missing.

    Warns:
        UserWarning: For every difference of code, packages or machine, before the training starts.
    """
    original, saved = RunFolder.open(run), read_config(run)
    require_own_files(original.path)
    config = _finished(original, saved)
    machine = read_json(original.path / MACHINE, _Machine, "a run's machine", "restore it or start a new run")
    if machine.grown_from:
        name, number = next(iter(machine.grown_from.items()))
        raise ValueError(
            f"{original.path} was begun with {number:,} {name} and went on with more by --resume. One run in one go "
            "has other validations and rates, so it cannot be repeated."
        )
    used: str = device or saved.facts.get("device", "auto")
    data = None
    if saved.command == "train":
        data = Demonstrations.open(dataset or saved.facts["dataset"])
    _require_same_data(config, saved, data)
    for line in _differences(machine, saved.facts.get("device"), used):
        warnings.warn(f"repeat: {line}; the result may differ.", stacklevel=3)
    with threads(machine.threads) if machine.threads else nullcontext():
        if isinstance(config, PPOConfig):
            best = ppo(config, folder, device=used, resume=resume, pool=pool, progress=progress)
        elif isinstance(config, DaggerConfig):
            best = dagger(
                config, folder, expert=saved.facts["expert"], device=used, resume=resume, pool=pool, progress=progress
            )
        else:
            assert data is not None
            best = train(config, data, folder, device=used, resume=resume, pool=pool, progress=progress)
    equal, lines = _compared(original, RunFolder.open(folder))
    return Repetition(best, equal, tuple(lines))


def _finished(run: RunFolder, saved: SavedConfig) -> Any:
    """Return the config of a run that is finished.

    Raises:
        ValueError: The run is not, its config lacks something, or it cannot be repeated.
    """
    if missing := settings(CONFIGS[saved.command]).keys() - saved.values.keys():
        raise ValueError(f"{run.path} does not record {min(missing)}, so it cannot be repeated.")
    facts = {"train": ("dataset", "dataset_sha256"), "dagger": ("expert", "expert_sha256"), "ppo": ()}[saved.command]
    if absent := [name for name in facts if name not in saved.facts]:
        raise ValueError(f"{run.path} does not record {absent[0]}, so it cannot be repeated.")
    if saved.facts.get("expert") == HUMAN:
        raise ValueError(f"{run.path} was labelled by a person, who cannot be repeated.")
    config = replace(saved.trained, track=())
    config.check()
    last, length = run.checkpoint_folder("last"), _LENGTHS[saved.command]
    step = None if last is None else step_of(last)
    ended_early = step is not None and isinstance(config, TrainConfig) and stalled(run, config.optim.patience)
    if (step is None or step < getattr(config, length)) and not ended_early:
        raise ValueError(
            f"{run.path} is not finished: it is at step {step or 0:,} and has {length} {getattr(config, length):,}; "
            "go on with --resume first."
        )
    return config


def _require_same_data(config: Any, saved: SavedConfig, data: Demonstrations | None) -> None:
    """Check the content of the dataset and the drivers.

    Raises:
        ValueError: It is another one.
    """
    env: EnvConfig = config.env if data is None else data.meta.env
    hashes = source_hashes(config, env)
    if data is not None:
        hashes["dataset_sha256"] = data.fingerprint()
    if "expert" in saved.facts:
        hashes["expert_sha256"] = driver_hash(saved.facts["expert"], env)
    for name, sha256 in hashes.items():
        if sha256 != saved.facts.get(name):
            what = name.removesuffix("_sha256").replace("init", "init_from").replace("encoder", "encoder_from")
            raise ValueError(
                f"repeat: the content of {what} has changed since the run: its SHA-256 was "
                f"{shown(str(saved.facts.get(name)))[:12]}, is {sha256[:12]}; restore it."
            )


def _differences(then: _Machine, device_then: str | None, device: str) -> list[str]:
    """Return what is different from then, one line for each."""
    now = msgspec.convert(describe_machine(), _Machine)
    pairs: list[tuple[str, Any, Any]] = [
        ("python", then.python, now.python), ("platform", then.platform, now.platform),
        ("device", device_then, device), ("GPUs", then.gpus, now.gpus if device == "cuda" else then.gpus),
        *((name, then.versions.get(name), now.versions.get(name)) for name in sorted({*then.versions, *now.versions})),
    ]  # fmt: skip
    if then.code_sha256 != now.code_sha256:
        pairs.insert(0, ("code of nac-drive", _code(then), _code(now)))
    return [f"{name} was {_text(old)}, is {_text(new)}" for name, old, new in pairs if old != new]


def _code(machine: _Machine) -> str:
    commit = f" (commit {machine.git_commit[:7]})" if machine.git_commit else ""
    return f"{(machine.code_sha256 or 'not recorded')[:12]}{commit}"


def _text(value: Any) -> str:
    return "none" if value in (None, []) else shown(str(value))[:100]


# Results


def _compared(original: RunFolder, again: RunFolder) -> tuple[bool, list[str]]:
    """Return whether two runs have equal weights, and lines."""
    lines, equal = [], True
    for name in NAMES:
        folders = [run.checkpoint_folder(name) for run in (original, again)]
        assert folders[0] is not None
        assert folders[1] is not None
        apart = _distance(*(load_driver(folder).state_dict() for folder in folders if folder))
        steps = [step_of(folder) for folder in folders if folder]
        same_step = steps[0] == steps[1]
        where = f"{name} checkpoint (step {steps[0]:,}{'' if same_step else f', and {steps[1]:,}'})"
        if apart is None and same_step:
            lines.append(f"{where}: the weights are equal, bit for bit")
        else:
            equal = False
            lines.append(f"{where}: the weights differ by up to {apart or 0:.3g}")
    return equal, [*lines, *_metrics_apart(original.rows(), again.rows())]


def _distance(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float | None:
    """Return the largest difference of two weights.

    None if all are equal, bit for bit. Drivers of one config have the same tensors.
    """
    unlike = [name for name in one if not torch.equal(_bytes(one[name]), _bytes(other[name]))]
    apart = [(one[name].double() - other[name].double()).abs().nan_to_num(math.inf).max() for name in unlike]
    return max(map(float, apart), default=None)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def _metrics_apart(original: Sequence[Mapping[str, Any]], again: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each metric that differs."""
    apart: dict[str, float] = {}
    rows = {row["step"]: numbers(row) for row in again}
    for row in original:
        before, after = numbers(row), rows.get(row["step"], {})
        for name in before.keys() | after.keys():
            difference = abs(before.get(name, math.inf) - after.get(name, math.inf))
            if difference and not name.endswith(_MEASURED):  # of infinities: NaN, which counts
                apart[name] = max(apart.get(name, 0.0), math.inf if math.isnan(difference) else difference)
    if not apart:
        return ["metrics.jsonl: the metrics of every row are equal"]
    return [f"{name} differs by up to {difference:.3g}" for name, difference in sorted(apart.items())]
