"""Driving in closed loop on named tracks.

Many tracks are driven at a time, with the same result for any number of them.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import cloudpickle
import gymnasium as gym

from nac_drive.arguments import checks_shared_arguments, require_kind
from nac_drive.data_collection.drivers import (
    AnyDriver,
    driver_name,
    driving_device,
    on_device,
    resolve_driver,
    sendable,
)
from nac_drive.data_collection.trained_env import env_for, require_environment, trained_env
from nac_drive.envs import (
    BatchPolicy,
    CrashMode,
    EnvConfig,
    EpisodeSetup,
    Policy,
    make_env,
    rollouts,
    track_seeds,
)
from nac_drive.envs.config import with_perturbation
from nac_drive.evaluation.formulas import CAR_RACING
from nac_drive.evaluation.metric import EMPTY
from nac_drive.evaluation.metrics import columns
from nac_drive.evaluation.results import EpisodeMeter, EpisodeResult
from nac_drive.evaluation.statistics import Summary, grid, summarise
from nac_drive.evaluation.verdict import Verdict, corrected, paired
from nac_drive.events import Progress, counting
from nac_drive.markdown import number_text
from nac_drive.notebook import automatic, paragraph, table
from nac_drive.parallel.processes import Pool, pool_size
from nac_drive.plain import whole
from nac_drive.storage.names import shown

BATCH_SIZE = 16
"""Tracks that one process drives at a time: as many as `Driver.act_batch` takes in one pass."""


@dataclass(frozen=True)
class Evaluation:
    """The rows of one driver, by track, and their summary."""

    rows: list[EpisodeResult]
    summary: Summary
    verdict: Verdict | None = None
    """The comparison with the baseline; None without one."""
    solved_return: float | None = CAR_RACING.solved_return
    """The return from which an episode counts as solved; None for none."""

    @classmethod
    def of(
        cls,
        rows: list[EpisodeResult],
        baseline: Sequence[EpisodeResult] | None = None,
        solved_return: float | None = CAR_RACING.solved_return,
    ) -> Evaluation:
        """Return the evaluation of a driver's rows, see `summarise`.

        Args:
            rows: Its episodes.
            baseline: The episodes of another driver on the same tracks.
            solved_return: See `EnvSpec`.
        """
        summary = summarise(rows, baseline)
        if baseline is None:
            return cls(rows, summary, None, solved_return)
        verdict = paired(
            grid(rows, "episode_return"), grid(baseline, "episode_return"),
            names=(rows[0].driver, baseline[0].driver),
            trained=(rows[0].run is not None, baseline[0].run is not None), difference=summary.return_difference,
        )  # fmt: skip
        return cls(rows, summary, verdict, solved_return)

    def __repr__(self) -> str:
        return f"Evaluation({self.summary._facts})"

    def _repr_html_(self) -> str:
        """The filled columns of the tables, and the verdict."""
        cells = [(column.heading, column.cell(self)) for column in columns()]
        verdict = paragraph(self.verdict.sentence) if self.verdict else ""
        title = f"{self.summary.driver} on {len({row.seed for row in self.rows})} tracks"
        return paragraph(title, strong=True) + table([], [cell for cell in cells if cell[1] != EMPTY]) + verdict

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able entry of summary.json."""
        return {**self.summary.to_dict(), "verdict": self.verdict.to_dict() if self.verdict else None}


def with_holm(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Return evaluations whose verdicts have Holm's correction."""
    verdicts = iter(corrected([evaluation.verdict for evaluation in evaluations if evaluation.verdict]))
    return [
        replace(evaluation, verdict=next(verdicts)) if evaluation.verdict else evaluation
        for evaluation in evaluations
    ]  # fmt: skip


@checks_shared_arguments
def evaluate(
    driver: AnyDriver,
    tracks: str | Sequence[int] = "test-10",
    *,
    name: str | None = None,
    env: EnvConfig | None = None,
    crash: CrashMode = "ignore",
    perturbation: str | None = None,
    expert: AnyDriver | None = None,
    baseline: Evaluation | None = None,
    pool: Pool | None = None,
    batch_size: int = BATCH_SIZE,
    device: str = "cpu",
    on_episode: Callable[[EpisodeResult], None] = lambda row: None,
    progress: Progress = automatic,
) -> Evaluation:
    """Drive each track once, deterministically, with the native reward.

    A network drives a batch of tracks at a time. Its actions have the bits of a car alone (`Driver.act_batch`), so no
    row depends on the batch or on the processes.

    Args:
        driver: The driver, its name, or its folder, see `resolve_driver`.
        tracks: Named tracks such as "test-10" (see `track_seeds`), or their seeds.
        name: The driver's name in the rows, in which characters that do not print become escapes.
        env: The environment; by default the environment of the driver's training, without perturbations.
        crash: The effect of a crash, see `CarRacing`.
        perturbation: See `envs.perturb`, instead of the perturbation of `env`; the same perturbation for every driver
            on the same track.
        expert: A driver, its name or its folder, queried at every decision. It sees clean frames, with the status bar
            as in its training. `agreement` is the fraction of decisions where the driver does the same.
        baseline: An evaluation on the same tracks that paired differences are taken against.
        pool: A `worker_pool`, here or on a cluster, or a `multiprocessing.Pool`; the result does not depend on it,
            latencies aside.
        batch_size: Number of tracks that one process drives at a time, if the driver is a `BatchPolicy`. Every other
            driver drives them one after another.
        device: Of a network, `auto`, `cpu` or `cuda`. On a GPU numbers are rounded otherwise, so episodes differ. Each
            process of `pool` has a copy there.
        on_episode: Called with each new row, in the order in which episodes end.
        progress: Called with an event for every episode.

    Returns:
        The rows in the order of the tracks, and their summary.

    Raises:
        ValueError: For an argument of another type, a device that is not there, tracks that `track_seeds` refuses, a
            baseline on other tracks, an unknown perturbation, and an expert that was trained in another environment.

    Warns:
        UserWarning: If the driver was trained with another EnvConfig, perturbations aside.
    """
    require_kind("baseline", baseline, Evaluation, "pass the result of another evaluate(...)", optional=True)
    seeds, device = track_seeds(tracks), driving_device(device)
    if baseline is not None and {row.seed for row in baseline.rows} != set(seeds):
        raise ValueError("baseline must hold the same tracks: the comparison is paired; evaluate both on the same.")
    name, policy = shown(name or driver_name(driver)), resolve_driver(driver, env)
    env = env or env_for(policy)
    env = with_perturbation(env, perturbation)
    labels = None if expert is None else resolve_driver(expert, env)
    if labels is not None:
        require_environment("expert: the driver", labels, env)
    warn_of_other_env(policy, name, env)
    size = tracks_at_a_time(policy, env, batch_size)
    if not all(sendable(one, pool is not None) for one in (policy, labels)):
        pool = None
    task = partial(drive, policy, labels, env, name=name, crash=crash, batch_size=size, device=device)
    found: dict[int, EpisodeResult] = {}
    finished = counting(progress, f"evaluate ({name})", len(seeds))
    for row in _in_pool(pool, task, seeds, size) if pool else task(seeds):
        found[row.seed] = row
        on_episode(row)
        finished(f"track {row.seed}: return {number_text(row.episode_return, '.0f')}")
    rows = [found[seed] for seed in seeds]
    return Evaluation.of(rows, baseline.rows if baseline else None, env.spec.solved_return)


def tracks_at_a_time(driver: Policy, env: EnvConfig, batch_size: int = BATCH_SIZE) -> int:
    """Return the number of tracks of one process at a time.

    It is one, unless the driver is a `BatchPolicy` and the environment shares its process.
    """
    return whole("batch_size", batch_size, 1) if isinstance(driver, BatchPolicy) and not env.spec.own_process else 1


def _in_pool(
    pool: Pool, task: Callable[[Sequence[int]], Iterator[EpisodeResult]], seeds: Sequence[int], batch_size: int
) -> Iterator[EpisodeResult]:
    """Yield the rows of a task for some seeds at a time.

    Each process does some of the seeds.
    """
    size = max(1, min(batch_size, -(-len(seeds) // pool_size(pool))))
    parts = [seeds[start : start + size] for start in range(0, len(seeds), size)]
    for rows in pool.imap_unordered(partial(_as_list, task), parts):
        yield from rows


def _as_list(task: Callable[[Sequence[int]], Iterator[EpisodeResult]], seeds: Sequence[int]) -> list[EpisodeResult]:
    return list(task(seeds))


def drive(
    driver: Policy,
    expert: Policy | None,
    config: EnvConfig,
    seeds: Sequence[int],
    *,
    name: str,
    crash: CrashMode,
    run: int | None = None,
    batch_size: int = BATCH_SIZE,
    device: str = "cpu",
) -> Iterator[EpisodeResult]:
    """Drive tracks and yield their rows as episodes end.

    `batch_size` of them are driven at a time.

    Copies drive, on a device of `driving_device`. One copy of a `BatchPolicy` drives all tracks, as its state is
    explicit; any other driver is copied for every episode, so that nothing carries over from one to the next.
    """
    pickled = cloudpickle.dumps((driver, expert))
    shared: list[Policy | None] = [copy and on_device(copy, device) for copy in pickle.loads(pickled)]
    all_batched = all(copy is None or isinstance(copy, BatchPolicy) for copy in shared)
    running: dict[int, tuple[gym.Env, EpisodeMeter]] = {}

    def setups() -> Iterator[EpisodeSetup]:
        for seed in seeds:
            copies = shared if all_batched else pickle.loads(pickled)
            at_wheel, asked = (
                one_for_all if isinstance(one_for_all, BatchPolicy) else copy
                for one_for_all, copy in zip(shared, copies, strict=True)
            )
            env, meter = running[seed] = make_env(config, crash=crash), EpisodeMeter(config.spec)
            assert at_wheel is not None
            yield EpisodeSetup(env, at_wheel, seed, asked, subscribers=[meter])

    try:
        for setup, episode in rollouts(setups(), batch_size):
            env, meter = running.pop(setup.seed)
            env.close()
            yield meter.result(name, episode, crash_mode=crash, perturbation=config.perturb, run=run)
    finally:
        for env, _ in running.values():
            env.close()


def warn_of_other_env(driver: Policy, name: str, env: EnvConfig) -> None:
    """Warn if `driver` was trained in another environment, perturbations aside."""
    trained = trained_env(driver)
    if trained is None:
        return
    trained = replace(trained, perturb=env.perturb)
    if trained != env:
        before, now = asdict(trained), asdict(env)
        differing = ", ".join(f"{key} {before[key]!r} -> {now[key]!r}" for key in now if before[key] != now[key])
        warnings.warn(f"driver {name!r} was trained in another environment: {differing}", stacklevel=4)
