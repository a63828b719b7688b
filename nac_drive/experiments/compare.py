"""Several drivers, one protocol: the same demonstrations, the same tracks, one leaderboard. It can be resumed.

FOLDER/conditions.json  rows.jsonl (one row per finished episode)  latencies.json  CORE-SEED/ (a run of `train` each)
tuning/CORE,SETTINGS/ (a trial each, whose rows stand in rows.jsonl too)
summary.json  table.md  results.json  report.html  figure.png  learning_curves.png
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nac_drive.arguments import as_list, checks_shared_arguments, path_of, require_text, value_text
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.drivers import AnyDriver, accepted, driver_name, known_there
from nac_drive.data_collection.replay import drawn_anew
from nac_drive.envs import CrashMode, track_seeds
from nac_drive.envs.views import View
from nac_drive.evaluation.verdict import Verdict
from nac_drive.events import Progress, message
from nac_drive.experiments.comparison_page import save_comparison_page
from nac_drive.experiments.driving import EXPERT, Driving, Training, episodes_of
from nac_drive.experiments.entrants import ENCODER, Entrants, configs_of, is_core, on_features, with_driver
from nac_drive.experiments.evaluation import SUMMARY
from nac_drive.experiments.experiment import Results, in_own_processes, open_experiment, run
from nac_drive.experiments.headline import headline
from nac_drive.experiments.leaderboard import SHORT, RankedDriver, leaderboard
from nac_drive.experiments.ranking import LATENCIES, ranked, save_tables
from nac_drive.experiments.tuning import Tuned, TunedDriving, is_driven, tune_cores, tuned_driving
from nac_drive.notebook import automatic, paragraph
from nac_drive.parallel.cluster import has_gpus
from nac_drive.parallel.processes import number_of_workers, require_workers, worker_pool
from nac_drive.policies.device import choose_device
from nac_drive.suggest import did_you_mean
from nac_drive.training.config import TrainConfig, require_config
from nac_drive.training.train import Splits, load_splits, train_plan

BASELINE = "lstm"
"""The core that differences are taken against where nothing else is chosen; the expert, if it takes no part."""
_FILES = (SUMMARY, "table.md", "results.json", "report.html", LATENCIES)
"""Files beside conditions.json and rows.jsonl that are written whole."""


@dataclass(frozen=True)
class Comparison:
    """Result of a comparison."""

    drivers: list[RankedDriver]
    """The expert, the other drivers that were not trained here, then the trained ones, the best return first."""
    failures: dict[str, str]
    """Name of a failed run -> message; the leaderboard leaves it out."""
    tuned: Sequence[Tuned] = ()
    """The trials of each core, and what they chose; none without `tune`."""

    def __repr__(self) -> str:
        return f"Comparison({len(self.drivers)} drivers: {self.headline})"

    def _repr_html_(self) -> str:
        """The headline, the table and the verdicts."""
        failures = [f"{name} failed: {reason}" for name, reason in self.failures.items()]
        sentences = [verdict.sentence for verdict in self.verdicts]
        sentences = sentences if len(sentences) > 1 else []
        below = "".join(map(paragraph, [*sentences, *failures]))
        return paragraph(self.headline, strong=True) + leaderboard(self.drivers, SHORT).html() + below

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        return headline(self.drivers)

    @property
    def verdicts(self) -> list[Verdict]:
        """Every driver against the baseline, in the order of `drivers`."""
        return [driver.evaluation.verdict for driver in self.drivers if driver.evaluation.verdict]


@checks_shared_arguments
def compare(
    drivers: AnyDriver | Sequence[AnyDriver],
    dataset: Demonstrations | str | os.PathLike[str],
    tracks: str | Sequence[int],
    folder: str | os.PathLike[str],
    *,
    config: TrainConfig | None = None,
    num_seeds: int = 1,
    shared_encoder: bool = False,
    tune: bool = False,
    view: View | None = None,
    expert: AnyDriver = "expert",
    baseline: str | None = None,
    crash: CrashMode = "ignore",
    device: str = "auto",
    resume: bool = False,
    workers: int = 1,
    cluster: str | None = None,
    progress: Progress = automatic,
) -> Comparison:
    """Train drivers with several cores on one dataset, evaluate all on the same tracks, and rank them.

    The run of a core is `folder/CORE-SEED`. `folder` gets report.html, table.md, results.json, rows.jsonl,
    summary.json, figure.png and learning_curves.png.

    Args:
        drivers: One or several. Names in CORES, with settings of their own after a comma, such as `nac-exact,window=8`:
            each is trained. Other names, folders, files and objects are drivers, see `resolve_driver`: each is
            evaluated as it is.
        dataset: The demonstrations, or their folder.
        tracks: Named tracks such as "test-10", or their seeds.
        folder: The folder of the comparison.
        config: Settings of every run; its core is replaced by each one of `drivers`.
        num_seeds: Number of runs of each core, with the seeds config.seed, config.seed + 1, ...
        shared_encoder: Train one encoder with the core `cnn` on single frames, as many a batch as in the sequences of
            `config`, augmented as it says; all cores learn on its clean features.
        tune: Try four learning rates and two settings of every core first, with one seed, on the validation tracks of
            `config` (see `experiments.tuning`). The core's runs have the best settings.
        view: The world that cores learn and drive in: `above`, or `seat`, from the driver's seat. A dataset of another
            view is drawn anew first, see `drawn_anew`. The dataset's by default.
        expert: Evaluated on the same tracks, and queried at every frame of every evaluation, see `resolve_driver`. It
            sees the status bar as in its training, whether or not the drivers see it. The shipped expert takes part in
            CarRacing alone.
        baseline: What differences are taken against: one of `drivers`, or the expert's name. None for the core `lstm`
            where it takes part, else for the expert.
        crash: The effect of a crash in the evaluation, see `evaluate`.
        device: `auto`, `cpu` or `cuda`.
        resume: Keep finished runs and go on with the others; drivers, seeds or tracks may have been added.
        workers: Number of processes, 0 for one per core; on a GPU the runs take turns. Every run and its evaluation has
            a process of one thread; a process that dies costs no other run. The time of one `act` is measured
            afterwards, for one driver of each core in turn.
        cluster: Train and evaluate on a Ray cluster, see `worker_pool`. All its machines must see `dataset`, `folder`
            and the working folder. Each run has one CPU, and a GPU unless the device is the CPU, as auto is on a
            cluster without GPUs.
        progress: Called with an event when a run starts, ends, fails, and when its `act` is timed.

    Returns:
        The ranking, and the failed runs.

    Raises:
        ValueError: For a bad argument, before anything is created, when the shared encoder, the expert or every run
            fails, and if another process holds `folder`.
        FileExistsError: If `folder` holds anything and `resume` is off.
        FileNotFoundError: If `folder` is no comparison and `resume` is on.
    """
    config, folder = TrainConfig() if config is None else config, path_of("folder", folder)
    require_config(config, TrainConfig)
    if cluster is not None:
        require_text("cluster", cluster, "pass 'auto' or HOST:PORT")
    dataset = dataset if isinstance(dataset, Demonstrations) else Demonstrations.open(dataset)
    if view is not None:
        dataset = drawn_anew(dataset, view, workers=number_of_workers(workers), progress=progress)
    drivers = as_list(drivers)
    cores = [driver for driver in drivers if isinstance(driver, str) and is_core(driver)]
    if twice := sorted({core for core in cores if cores.count(core) > 1}):
        raise ValueError(
            f"drivers: {twice[0]} comes twice; name it once, num_seeds (--num-seeds) trains it several times."
        )
    given = tuple(accepted(driver) for driver in drivers if not (isinstance(driver, str) and is_core(driver)))
    known = known_there(expert, dataset.meta.env)
    require_workers(workers, cluster)
    configs = configs_of(cores, config, num_seeds, shared_encoder) if cores or not given else {}
    entrants = Entrants(
        dataset, config, configs, num_seeds, shared_encoder, given, None if known is None else accepted(known)
    )
    baseline = _baseline(baseline, entrants.names)
    entrants.require_runnable("cpu" if cluster else device)
    if cluster and configs and device == "auto" and not has_gpus(cluster):
        device = "cpu"
    if configs and not cluster and choose_device(device).type == "cuda":
        workers = 1  # each further process would hold a copy of the data on the one GPU
    experiment = entrants.driving(tuple(track_seeds(tracks)), crash, device)
    if tune:
        experiment = tuned_driving(experiment, entrants, device)
    with open_experiment(experiment, folder, files=_FILES, resume=resume) as journal:
        journal.begin()  # before any run is trained
        assert journal.folder is not None
        if shared_encoder and configs:
            encoder = _trained_encoder(entrants, journal.folder, device, cluster, progress)
            configs = {core: on_features(own, str(encoder)) for core, own in configs.items()}
            entrants = replace(entrants, configs=configs)
        splits = _features(entrants, experiment, journal.rows, progress)
        experiment, tuned = experiment.trained_as(configs, splits), list[Tuned]()
        if isinstance(experiment, TunedDriving):
            tuned = tune_cores(experiment, journal, workers=workers, cluster=cluster, progress=progress)
            experiment = experiment.with_chosen(tuned)
        with nullcontext() if experiment.isolated else worker_pool(workers, cluster) as pool:
            results = run(
                experiment, journal, pool=pool, workers=workers, cluster=cluster, only=is_driven, job="runs",
                progress=progress,
            )  # fmt: skip
        if EXPERT in results.failures:
            raise ValueError(
                f"the expert {driver_name(entrants.expert or EXPERT)!r} could not be evaluated: "
                f"{results.failures[EXPERT]}"
            )
        _require_one(results)
        entries = ranked(experiment, episodes_of(results), journal.folder, progress, baseline=baseline)
        save_tables(journal.folder, entries)
        save_comparison_page(
            journal.folder, entrants, experiment, entries, tracks, failed=[*results.failures], tuned=tuned
        )
        return Comparison(entries, results.failures, tuned)


def _baseline(name: str | None, names: Sequence[str]) -> str:
    """Return the baseline.

    The last of `names` is the expert, if there is one.

    Raises:
        ValueError: There is no such entry.
    """
    if name is None:
        return BASELINE if BASELINE in names else names[-1]
    if name not in names:
        raise ValueError(
            f"baseline must be one of the drivers or the expert, {', '.join(names)}, got {value_text(name)}."
            f"{did_you_mean(str(name), names)}"
        )
    return name


def _features(entrants: Entrants, experiment: Driving, rows: Mapping[str, Any], progress: Progress) -> Splits | None:
    """Return the features of a frozen encoder.

    They are computed once for all runs. None where nothing needs them.
    """
    config = next(iter(entrants.configs.values()), entrants.config)
    if not entrants.configs or not config.optim.freeze_encoder_from:
        return None
    if all(task.key in rows for task in experiment.tasks()):
        return None
    progress(message("features", "computed once for all runs"))
    return load_splits(train_plan(config, entrants.dataset, "cpu"), entrants.dataset)


def _trained_encoder(entrants: Entrants, folder: Path, device: str, cluster: str | None, progress: Progress) -> Path:
    """Train the shared encoder in a process of its own."""
    config, run_folder = entrants.config, folder / ENCODER
    frames = config.data.sequence_length * config.data.batch_size
    single = replace(config.data, sequence_length=1, batch_size=frames)
    config = replace(with_driver(config, core="cnn", core_args={}), data=single)
    progress(message(ENCODER, "started"))
    training = Training(config, entrants.dataset.path, device)
    work, gpus = [(training, run_folder)], int(device != "cpu")
    for _, outcome in in_own_processes(_train, work, folder, cluster=cluster, gpus=gpus):
        if outcome.error:
            raise ValueError(f"the shared encoder could not be trained: {outcome.error}")
    return run_folder


def _train(work: tuple[Training, Path]) -> None:
    training, folder = work
    folder.parent.mkdir(parents=True, exist_ok=True)
    training.driver(folder)


def _require_one(results: Results) -> None:
    """Check that an entry besides the expert has a result to rank.

    Raises:
        ValueError: If every run failed.
    """
    if all(row["driver"] == EXPERT for row in results.rows):
        name, text = next(iter(results.failures.items()))
        raise ValueError(
            f"all {len(results.failures)} run(s) failed, {name} with: {text.rstrip('.')}; failed.txt in the folder of "
            "a run has its traceback, and --resume tries again."
        )
