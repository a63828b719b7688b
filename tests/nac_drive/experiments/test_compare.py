"""A comparison: every core is trained and drives the same tracks.

It is in the table, the figure and the page.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import pytest
import torch

from nac_drive.data_collection.collect import collect
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.drivers import driver_hash, resolve_driver
from nac_drive.data_collection.identity import source_hash
from nac_drive.envs import EnvConfig
from nac_drive.evaluation.evaluate import evaluate
from nac_drive.events import Event
from nac_drive.experiments import driving, experiment
from nac_drive.experiments.compare import Comparison, compare
from nac_drive.experiments.driving import folder_name
from nac_drive.experiments.entrants import Entrants
from nac_drive.experiments.figures import LEARNING_CAPTION
from nac_drive.parallel.outcome import TaskOutcome
from nac_drive.plugins import named_object
from nac_drive.policies import Driver, DriverConfig, load_driver, save_driver
from nac_drive.policies.ops.threads import one_thread
from nac_drive.storage.checkpoints import checkpoint_folder
from nac_drive.storage.lock import FolderInUseError, locked
from nac_drive.storage.names import markdown
from nac_drive.storage.read import FileError
from nac_drive.storage.write import writing
from nac_drive.training.run_folder import RunFolder
from tests.data_collection.recordings import contents
from tests.nac_drive.small import (
    FRAMES,
    config,
    demonstrations,
    each_here,
    nested,
    score_of_weights,
    train,
)
from tests.own_parts import MINE, forgotten

TRACKS = [900_000, 900_001]
CORES = ("cnn", "lstm")
SETTINGS = config(epochs=1)
pytestmark = pytest.mark.usefixtures("one_thread")


def run(dataset: Demonstrations, folder: Path, **keywords: Any) -> tuple[Comparison, list[Event]]:
    """The comparison, and its events."""
    events: list[Event] = []
    arguments = {"config": SETTINGS, "device": "cpu", "expert": "controller", **keywords}
    arguments = {"cores": CORES, "progress": events.append, **arguments}
    comparison = compare(arguments.pop("cores"), dataset, TRACKS, folder, **arguments)
    return comparison, events


def started(events: list[Event]) -> list[str]:
    """The runs that were begun."""
    return [event.note.removesuffix(" started") for event in events if event.note.endswith(" started")]


def without_rows(folder: Path, *runs: tuple[str, int | None]) -> None:
    """Take the rows of some runs away."""
    lines = (folder / "rows.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if (json.loads(line)["driver"], json.loads(line)["run"]) not in runs]
    (folder / "rows.jsonl").write_text("".join(kept))


def timeless(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "latency_ms": 0, "training_seconds": 0} for row in results]


def read(folder: Path) -> list[dict[str, Any]]:
    return timeless(json.loads((folder / "results.json").read_text()))


@pytest.fixture
def in_this_process(monkeypatch) -> None:
    monkeypatch.setattr(experiment, "each_in_a_process", each_here)


@pytest.fixture(scope="module")
def whole(dataset, tmp_path_factory) -> tuple[Path, Comparison, list[Event]]:
    """A comparison without interruption; read only."""
    folder = tmp_path_factory.mktemp("compare") / "whole"
    with pytest.MonkeyPatch.context() as patch, one_thread():
        patch.setattr(experiment, "each_in_a_process", each_here)
        return folder, *run(dataset, folder, num_seeds=2)


@pytest.mark.slow
def test_processes_do_the_same(whole, dataset, tmp_path):
    comparison, _ = run(dataset, tmp_path / "c", cores=("cnn",), workers=2)
    there = {entry.summary.driver: [row.with_metrics(latency_ms=0) for row in entry.evaluation.rows[:2]]
             for entry in comparison.drivers}  # fmt: skip
    here = {entry.summary.driver: [row.with_metrics(latency_ms=0) for row in entry.evaluation.rows[:2]]
            for entry in whole[1].drivers}  # fmt: skip
    assert there == {name: here[name] for name in ("expert", "cnn")}


@pytest.mark.slow
def test_a_process_that_dies_is_a_failed_run(whole, dataset, tmp_path, monkeypatch):
    folder = tmp_path / "c"
    shutil.copytree(whole[0], folder, symlinks=True)
    without_rows(folder, ("cnn", 1))
    dead = TaskOutcome(error="its process died (-9)")
    monkeypatch.setattr(experiment, "each_in_a_process", lambda _, waiting, workers: [(work, dead) for work in waiting])
    comparison, _ = run(dataset, folder, num_seeds=2, resume=True)
    assert comparison.failures == {"cnn-1": "its process died (-9)"}
    assert "Runs that failed are left out: cnn-1." in (tmp_path / "c" / "report.html").read_text()
    assert {entry.summary.driver: entry.runs for entry in comparison.drivers} == {
        "expert": None,
        "lstm": 2,
        "cnn": 1,
    }


def test_every_core_is_trained_from_every_seed_and_driven_on_every_track(whole, dataset):
    folder, comparison, events = whole
    names = [f"{core}-{seed}" for core in CORES for seed in (0, 1)]
    assert started(events) == ["expert", *names]
    assert comparison.failures == {}
    assert {path.name for path in folder.iterdir()} == {
        *names, "conditions.json", "rows.jsonl", "latencies.json", "summary.json", "table.md", "results.json",
        "figure.png", "learning_curves.png", "report.html", ".lock",
    }  # fmt: skip
    expert, *trained = comparison.drivers
    assert (expert.summary.driver, expert.runs, expert.summary.tracks) == ("expert", None, 2)
    assert {entry.summary.driver for entry in trained} == set(CORES)
    returns = [entry.summary.return_mean for entry in trained]
    assert returns == sorted(returns, reverse=True)
    for entry in trained:
        assert entry.runs == 2
        rows = entry.evaluation.rows
        assert [row.seed for row in rows] == [*TRACKS, *TRACKS]
        runs = [folder / f"{entry.summary.driver}-{seed}" for seed in (0, 1)]
        bests = [checkpoint_folder(path, "best") for path in runs]
        weights = [(best / "model.safetensors").read_bytes() for best in bests if best]
        assert weights[0] != weights[1]
        last = [json.loads((path / "metrics.jsonl").read_text().splitlines()[-1]) for path in runs]
        driver: Any = resolve_driver(str(runs[0]), dataset.meta.env)
        assert entry.parameters == sum(p.numel() for p in driver.parameters())
        assert entry.core_parameters == sum(p.numel() for p in driver.core.parameters())
        counts = {"cnn": (None, None), "lstm": (64, 4 * 64 * (64 + 64))}  # of 64 features
        assert (entry.neurons, entry.synapses) == counts[entry.summary.driver]
        accuracy = [row["validation"]["accuracy"] for row in last]
        changes = [row["validation"]["at_changes"] for row in last]  # None where the expert changes nothing
        assert entry.validation_accuracy == pytest.approx(sum(accuracy) / 2)  # validated in the last epoch alone
        assert entry.validation_at_changes == (None if None in changes else pytest.approx(sum(changes) / 2))
        assert entry.summary.agreement is not None
        assert json.loads((folder / "latencies.json").read_text())[entry.summary.driver] == entry.summary.latency_ms
    page = (folder / "report.html").read_text()
    for name in ("figure.png", "learning_curves.png"):
        figure = cv2.imread(str(folder / name))
        assert figure is not None
        assert figure.std() > 5  # something is drawn
        assert base64.b64encode((folder / name).read_bytes()).decode() in page
    assert "Every core was trained end to end on dataset (3 episodes). Epochs: 1. Seeds: 2." in page
    assert LEARNING_CAPTION in page


def test_the_command_of_the_page_names_the_run_of_the_worst_episode(whole, dataset, tmp_path, in_this_process):
    folder = Path(shutil.copytree(whole[0], tmp_path / "c", symlinks=True))
    best, other = (entry.summary.driver for entry in whole[1].drivers[1:])
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    for row in rows:
        if row["driver"] == best:
            row["episode_return"] = 50.0 if (row["run"], row["seed"]) == (1, TRACKS[1]) else 100.0
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    run(dataset, folder, num_seeds=2, resume=True)
    command = f"nac-drive inspect --compare {folder / best}-1 {folder / other}-0 --track {TRACKS[1]} --out seen"
    assert f"# the worst episode, frame by frame\n{command}" in (folder / "report.html").read_text()


def test_learning_curves_are_those_of_all_finished_runs(whole, dataset, tmp_path, in_this_process):
    folder = Path(shutil.copytree(whole[0], tmp_path / "c", symlinks=True))
    (folder / "cnn-1" / "metrics.jsonl").unlink()  # a finished run stays one
    comparison, _ = run(dataset, folder, num_seeds=2, resume=True)
    for entry in comparison.drivers[1:]:
        files = [folder / f"{entry.summary.driver}-{seed}" / "metrics.jsonl" for seed in (0, 1)]
        lines = [file.read_text().splitlines() if file.exists() else [] for file in files]
        assert [list(rows) for rows in entry.histories] == [[json.loads(line) for line in each] for each in lines]


def test_all_are_paired_with_the_lstm_where_it_takes_part(whole):
    _, comparison, _ = whole
    lstm = next(c for c in comparison.drivers if c.summary.driver == "lstm")
    for entry in comparison.drivers:
        difference = entry.summary.return_difference
        if entry is lstm:
            assert difference is None
            continue
        assert entry.summary.versus == "lstm"
        assert difference is not None
        assert difference.mean == pytest.approx(entry.summary.return_mean - lstm.summary.return_mean)


def test_a_chosen_baseline_and_its_verdicts_open_the_page(whole, dataset, tmp_path, in_this_process):
    folder = Path(shutil.copytree(whole[0], tmp_path / "c", symlinks=True))
    comparison, _ = run(dataset, folder, num_seeds=2, resume=True, baseline="expert")
    assert [(verdict.driver, verdict.baseline) for verdict in comparison.verdicts] == [
        (entry.summary.driver, "expert") for entry in comparison.drivers[1:]
    ]
    assert {(verdict.runs, verdict.trained, verdict.tracks) for verdict in comparison.verdicts} == {
        ((2, 1), (True, False), 2)
    }
    page, table = (folder / "report.html").read_text(), (folder / "table.md").read_text()
    texts = [comparison.headline, *(verdict.sentence for verdict in comparison.verdicts), "Every core was trained"]
    places = [page.find(text.replace("'", "&#39;")) for text in texts]
    assert places == sorted(places)
    assert places[0] > 0
    assert all(markdown(verdict.sentence) in table for verdict in comparison.verdicts)


def test_finished_runs_are_kept_and_others_may_be_added(whole, dataset, tmp_path, in_this_process):
    folder, _, _ = whole
    with pytest.raises(FileExistsError, match="--resume"):
        run(dataset, folder)
    grown = tmp_path / "grown"
    run(dataset, grown, cores=("lstm",), num_seeds=1)
    before = contents(grown / "lstm-0")
    _, events = run(dataset, grown, num_seeds=2, resume=True)
    assert started(events) == ["cnn-0", "cnn-1", "lstm-1"]
    assert contents(grown / "lstm-0") == before
    assert read(grown) == read(folder)
    without_rows(grown, ("cnn", 0))
    _, events = run(dataset, grown, num_seeds=2, resume=True)
    assert started(events) == ["cnn-0"], "killed before its episodes were driven"
    assert read(grown) == read(folder)
    with pytest.raises(ValueError, match=r"config\.epochs: it has 1, got 2"):
        run(dataset, grown, config=replace(SETTINGS, epochs=2), resume=True)
    with pytest.raises(ValueError, match="dataset_sha256: it has"):
        run(demonstrations(tmp_path / "other", tracks=2), grown, resume=True)


def test_under_a_perturbation_drivers_are_trained_and_all_of_them_drive(dataset, tmp_path, in_this_process):
    spec, folder = "frame-rate:3,frame-drop:3:zero", tmp_path / "c"
    settings = replace(SETTINGS, perturb=spec)
    comparison, _ = run(dataset, folder, cores=("cnn",), config=settings)
    assert comparison.failures == {}
    assert {row.perturbation for entry in comparison.drivers for row in entry.evaluation.rows} == {spec}
    env = replace(dataset.meta.env, perturb=spec)
    expert, cnn = comparison.drivers
    for entry, driver in ((expert, "controller"), (cnn, folder / "cnn-0")):
        alone = evaluate(driver, TRACKS, env=env)
        for row, same in zip(entry.evaluation.rows, alone.rows, strict=True):
            for metric in ("episode_return", "length", "completion"):
                assert row.metrics[metric] == same.metrics[metric]
    lengths = [row.metrics["length"] for row in expert.evaluation.rows]
    assert lengths[0] < lengths[1] == FRAMES, "in turn by track"
    assert RunFolder.open(folder / "cnn-0").config["perturb"] == spec
    assert EnvConfig(**load_driver(folder / "cnn-0").env_config) == env
    assert f"Perturbation: {spec}. The expert (controller) drove" in (folder / "report.html").read_text()
    with pytest.raises(ValueError, match=r"config\.perturb: it has 'frame-rate:3\.\.\..*', got None"):
        run(dataset, folder, cores=("cnn",), resume=True)


def test_a_dataset_under_a_perturbation_settles_the_comparison(tmp_path, in_this_process):
    env = EnvConfig(max_steps=20, perturb="weak-tyres:1")
    recorded = collect(tmp_path / "data", "controller", env=env, seeds=[0, 1])
    with pytest.raises(ValueError, match=r"data was recorded under 'weak-tyres:1', which counts; leave out 'gap:1'"):
        run(recorded, tmp_path / "c", config=replace(SETTINGS, perturb="gap:1"))
    assert not (tmp_path / "c").exists()
    comparison, _ = run(recorded, tmp_path / "c", cores=("cnn",))
    assert {row.perturbation for entry in comparison.drivers for row in entry.evaluation.rows} == {"weak-tyres:1"}
    page = (tmp_path / "c" / "report.html").read_text()
    assert "Perturbation: weak-tyres:1. The expert" in page
    assert " --perturb weak-tyres:1 --out seen" in page


def test_every_run_is_announced_when_it_starts_and_when_it_is_timed(whole, dataset, tmp_path, in_this_process):
    folder = tmp_path / "c"
    shutil.copytree(whole[0], folder, symlinks=True)
    without_rows(folder, ("cnn", 1))
    (folder / "latencies.json").unlink()
    _, events = run(dataset, folder, num_seeds=2, resume=True)
    first, ended, *timed = events
    assert first.note == "cnn-1 started"
    assert (ended.job, ended.done, ended.total) == ("runs", 10, 10)
    assert ended.note.startswith("cnn-1: return ")
    assert [(event.job, event.done, event.total, event.note) for event in timed] == [
        ("time of one act", number, 3, name) for number, name in enumerate(("expert", *CORES), 1)
    ]


@pytest.mark.slow
def test_a_run_that_fails_costs_only_itself_and_is_tried_again(dataset, tmp_path, in_this_process, monkeypatch):
    cores = ("nac-exact,window=8", "nac-exact,window=4,num_heads=2")
    real = driving.train

    def fails(config: Any, *arguments: Any, **keywords: Any) -> Path:
        if config.driver.core_args["window"] == 8:
            raise ValueError("no more frames.")
        return real(config, *arguments, **keywords)

    monkeypatch.setattr(driving, "train", fails)
    comparison, reports = run(dataset, tmp_path / "c", cores=cores)
    assert comparison.failures == {"nac-exact,window=8-0": "ValueError: no more frames."}
    page = (tmp_path / "c" / "report.html").read_text()
    assert "Seeds: 1. Runs that failed are left out: nac-exact,window=8-0." in page
    assert [entry.summary.driver for entry in comparison.drivers] == ["expert", cores[1]]
    driver: Any = resolve_driver(str(tmp_path / "c" / f"{cores[1]}-0"), dataset.meta.env)
    assert (driver.config.core, driver.config.core_args) == ("nac-exact", {"window": 4, "num_heads": 2})
    assert [event.note for event in reports if "failed" in event.note] == [
        "nac-exact,window=8-0 failed: ValueError: no more frames."
    ]
    (tmp_path / "c" / "nac-exact,window=8-0" / "failed.txt").write_bytes(b"\xff\x00")
    again, reports = run(dataset, tmp_path / "c", cores=cores, resume=True)
    assert again.failures == comparison.failures
    assert started(reports) == ["nac-exact,window=8-0"]


def test_if_every_run_fails_one_line_says_so(dataset, tmp_path, in_this_process, monkeypatch):
    def fails(*arguments: Any, **keywords: Any) -> Path:
        raise ValueError("no more frames.")

    monkeypatch.setattr(driving, "train", fails)
    message = r"^all 2 run\(s\) failed, cnn-0 with: ValueError: no more frames; .*--resume tries again\.$"
    with pytest.raises(ValueError, match=message):
        run(dataset, tmp_path / "c", cores=("cnn",), num_seeds=2)
    assert (tmp_path / "c" / "cnn-1" / "failed.txt").read_text().startswith("Traceback")


def test_without_an_expert_one_line_says_so_too(dataset, tmp_path):
    too_long = replace(SETTINGS, data=replace(SETTINGS.data, sequence_length=2000))
    with pytest.raises(ValueError, match=r"^all 1 run\(s\) failed, cnn-0 with: "):
        run(dataset, tmp_path / "c", cores=("cnn",), expert=None, config=too_long)


def test_an_own_core_that_was_edited_is_refused(dataset, tmp_path, in_this_process):
    """Runs of two codes were mixed, and episodes of a driver."""
    mine, hashes = tmp_path / "mine.py", []
    for factor, resume in ((1.0, False), (2.0, True)):
        mine.write_text(MINE.format(factor=factor))
        source_hash.cache_clear()
        with forgotten():
            settings: dict[str, Any] = {"cores": (named_object(f"{mine}:Mine"),), "resume": resume}
            if resume:
                with pytest.raises(FileError, match=r"mine\.Mine-0 sha256: it has"):
                    run(dataset, tmp_path / "c", **settings)
            else:
                run(dataset, tmp_path / "c", **settings)
            hashes.append(driver_hash(tmp_path / "c" / "mine.Mine-0", EnvConfig("continuous")))
    assert hashes[0] != hashes[1]


def test_a_driver_named_like_a_run_is_refused(dataset, tmp_path):
    save_driver(tmp_path / "lstm-0", Driver(DriverConfig("lstm", control="continuous")))
    with pytest.raises(ValueError, match="'lstm-0' is the name of a run of this comparison, too; rename the folder"):
        run(dataset, tmp_path / "c", cores=("lstm", tmp_path / "lstm-0"))
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("traceback_fits", [True, False])
def test_a_full_disk_is_named_and_leaves_no_unfinished_checkpoint(
    traceback_fits, dataset, tmp_path, in_this_process, monkeypatch
):
    """The weights of every run find no room, perhaps not even the traceback."""
    folder, write = tmp_path / "c", experiment.write_atomically

    def no_space(path: Path, *content: Any) -> None:
        with writing(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def short(path: Path, content: bytes) -> None:
        if path.name == "failed.txt" and not traceback_fits:
            no_space(path)
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr("nac_drive.training.run_folder.sync_tree", no_space)
        patch.setattr("nac_drive.training.trainer.closed_loop", score_of_weights)
        patch.setattr(experiment, "write_atomically", short)
        message = r"^all 1 run\(s\) failed, cnn-0 with: .*No space left on device; free some"
        with pytest.raises(ValueError, match=message):
            run(dataset, folder, cores=("cnn",))
    assert not list(folder.rglob("*.tmp"))
    assert not list(folder.rglob("model.safetensors"))


def test_what_killed_processes_left_is_removed(whole, dataset, tmp_path, in_this_process):
    folder = Path(shutil.copytree(whole[0], tmp_path / "c", symlinks=True))
    for path in [path for path in folder.iterdir() if path.is_file() and path.name != ".lock"]:
        (folder / f"{path.name}.4194304.tmp").touch()
    run(dataset, folder, num_seeds=2, resume=True)
    assert not list(folder.rglob("*.tmp"))
    assert read(folder) == read(whole[0])


BAD: dict[str, dict[str, Any]] = {
    "workers must lie in 0 to 1,024": {"workers": -1},
    "window: must be at least 1 frame": {"cores": ("cnn", "nac-exact,window=0")},
    "no folder typo": {"expert": "typo"},
    "baseline must be one of the drivers or the expert, cnn, lstm, expert, got 'lstn'. Did you mean": {
        "baseline": "lstn"
    },
    "device must be": {"device": "tpu"},
    "validation_fraction": {"config": replace(SETTINGS, validation_fraction=1.0)},
    "perturbation 'fog' is unknown": {"config": replace(SETTINGS, perturb="gap:1,fog:1")},
    "'weak-tyres' needs the simulator": {"config": replace(SETTINGS, perturb="weak-tyres:1")},
    "evil": {"cores": ("lstm,/../../evil=1",)},
}


@pytest.mark.parametrize("message", BAD)
def test_a_start_that_is_refused_leaves_nothing(message, dataset, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        run(dataset, tmp_path / "c", **BAD[message])
    assert list(tmp_path.iterdir()) == []


def test_trackers_show_every_run_and_may_change_on_resume(dataset, tmp_path):
    experiments = []
    for track in ((), ("tensorboard",)):
        settings = nested(config("cnn"), track=track)
        entrants = Entrants(dataset, settings, {"cnn": settings}, num_seeds=2, expert="controller")
        experiments.append(entrants.driving(tuple(TRACKS), "ignore", "cpu"))
    without, tracked = experiments
    assert without.conditions() == tracked.conditions()
    assert [entry.training.config.track for entry in tracked.entries if entry.training] == [("tensorboard",)] * 2


def test_settings_never_become_a_path():
    cores = ["lstm", "nac-exact,window=8", "a,x=1.5e-3"]
    assert [folder_name(core) for core in cores] == cores  # comparisons of before are found again
    strange = [
        "lstm,/../../evil=1",
        "lstm,\\..=1",
        "lstm,_.._.._evil=1",
        "a" * 300,
        "a" * 301,
        "a\nb",
        "a b",
        "\udcff",
        "ä",
    ]
    names = [folder_name(core) for core in strange]
    assert len(set(names)) == len(strange)
    for name in names:
        assert re.fullmatch(r"[A-Za-z0-9._=,-]{1,120}", name)


def test_one_process_at_a_time(whole, dataset):
    with locked(whole[0]), pytest.raises(FolderInUseError, match="is in use by another process"):
        run(dataset, whole[0], num_seeds=2, resume=True)


def test_damaged_latencies_are_refused_in_one_line(whole, dataset, tmp_path, in_this_process):
    folder = Path(shutil.copytree(whole[0], tmp_path / "c", symlinks=True))
    for content in ("", "[]", "[" * 100_000, '{"cnn": "fast"}', '{"cnn": NaN}', '{"cnn": -1}'):
        (folder / "latencies.json").write_text(content)
        with pytest.raises(FileError, match=r"latencies\.json is not .*; remove it and go on with --resume\.$"):
            run(dataset, folder, num_seeds=2, resume=True)


def test_a_figure_that_cannot_be_drawn_costs_no_result(whole, dataset, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(whole[0], tmp_path / "c", symlinks=True))

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no font")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", broken)
    with pytest.warns(UserWarning, match="could not be drawn: no font; the results are kept."):
        comparison, _ = run(dataset, folder, num_seeds=2, resume=True)
    assert read(folder) == read(whole[0])
    assert comparison.failures == {}
    assert "data:image" not in (folder / "report.html").read_text()
    assert not list(folder.glob("*.png"))


def test_a_shared_encoder_is_trained_once_and_stays(dataset, tmp_path, in_this_process):
    settings = nested(SETTINGS, augment=("colour:3",))  # images for the encoder, which the cores do not see
    with pytest.raises(ValueError, match=r"shared_encoder trains an encoder, .* from 'expert'; choose one"):
        run(dataset, tmp_path / "c", config=nested(SETTINGS, freeze_encoder_from="expert"), shared_encoder=True)
    with pytest.raises(ValueError, match="perturb: 'colour' changes images, which a frozen encoder sees once"):
        run(dataset, tmp_path / "c", config=replace(SETTINGS, perturb="gap:1,colour:1"), shared_encoder=True)
    comparison, reports = run(dataset, tmp_path / "c", cores=("lstm",), config=settings, shared_encoder=True)
    assert [event.job for event in reports[:2]] == ["encoder", "features"]
    assert started(reports[2:]) == ["expert", "lstm-0"]
    assert comparison.failures == {}
    trained, driver = (resolve_driver(str(tmp_path / "c" / name), dataset.meta.env) for name in ("encoder", "lstm-0"))
    assert isinstance(trained, Driver)
    assert isinstance(driver, Driver)
    weights = trained.encoder.state_dict()
    assert all(weight.equal(weights[name]) for name, weight in driver.encoder.state_dict().items())
    alone = nested(settings, core="lstm", freeze_encoder_from=str(tmp_path / "c" / "encoder"), augment=())
    other = load_driver(train(alone, dataset, tmp_path / "alone"))  # it computes its features itself
    assert all(weight.equal(driver.state_dict()[name]) for name, weight in other.state_dict().items())


@pytest.mark.parametrize(
    ("cores", "message"),
    [
        ((), "got none"),
        (("lstm", "crystal-ball"), "got 'crystal-ball'"),
        (("LSTM",), "LSTM"),
        (("chmpion",), "must be names of CORES.* Did you mean .champion."),
        (("gru", "lstm", "gru"), "gru comes twice; name it once"),
        (("nac-exact,window",), "must be KEY=VALUE, got 'window' in 'nac-exact,window'"),
    ],
)
def test_unknown_cores_are_refused_before_anything_is_trained(cores, message, dataset, tmp_path):
    with pytest.raises(ValueError, match=f"drivers.*{message}"):
        run(dataset, tmp_path / "comparison", cores=cores)
    assert not (tmp_path / "comparison").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nosuch/gru", "no folder nosuch/gru"),
        ("nosuch.onnx", "no file nosuch.onnx"),
        ("runs", "runs has no config.json"),
    ],
)
def test_a_path_is_no_core(name, message, dataset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    with pytest.raises(FileNotFoundError, match=message):
        run(dataset, tmp_path / "comparison", cores=("lstm", name))
    assert not (tmp_path / "comparison").exists()


def test_a_setting_without_effect_is_refused_before_anything_is_trained(dataset, tmp_path):
    with pytest.raises(ValueError, match="delta_t has no effect unless output is riemann"):
        run(dataset, tmp_path / "comparison", cores=("nac-exact,delta_t=0.5",))
    assert not (tmp_path / "comparison").exists()


@pytest.mark.parametrize(("device", "workers"), [("cuda", 1), ("cpu", 3)])
def test_runs_take_turns_on_a_gpu(device, workers, dataset, tmp_path, monkeypatch):
    class Begun(Exception):  # noqa: N818
        pass

    def begun(*arguments, **settings):
        assert settings["workers"] == workers
        raise Begun

    module = "nac_drive.experiments.compare"
    monkeypatch.setattr(f"{module}.choose_device", torch.device)
    monkeypatch.setattr(f"{module}.Entrants.require_runnable", lambda *arguments: None)
    monkeypatch.setattr(f"{module}.run", begun)
    with pytest.raises(Begun):
        compare(["lstm"], dataset, "800000", tmp_path / "comparison", device=device, workers=3)
