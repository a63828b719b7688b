"""Tuning: every core has the same budget of trials.

They drive validation tracks, and the runs have the best settings.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import yaml

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.envs import track_seeds
from nac_drive.evaluation.intervals import bootstrap, clearly_positive
from nac_drive.events import Event
from nac_drive.experiments import driving, experiment
from nac_drive.experiments.compare import Comparison, compare
from nac_drive.experiments.entrants import with_core
from nac_drive.experiments.tuning import RATES, first_trials, later_trials, tuning_table
from nac_drive.plugins import named_object
from nac_drive.policies import CORES
from nac_drive.policies.cores.rates import RECOMMENDED, USUAL_RATE, recommended_rate
from nac_drive.training.config import TrainConfig
from nac_drive.training.dagger_config import DaggerConfig
from nac_drive.training.finite import DivergedError
from nac_drive.training.trainer import Trainer
from nac_drive.training.validation import validation_score
from tests.documented import ROOT
from tests.nac_drive.small import config, each_here, nested

CORE = "nac-exact,num_heads=4"
"""Its number of heads is chosen: the window and the sparsity are tried."""
SETTINGS = nested(config(epochs=4, validation_fraction=0.0), learning_rate=None)
BEST = RATES[2]
pytestmark = pytest.mark.usefixtures("one_thread")


def validated(trainer: Trainer) -> dict[str, Any]:
    """Replacement of the closed loop.

    The score falls with the distance from the best rate. A long window helps. Without it, the last score is lucky.
    """
    settings = trainer.plan.config
    long = settings.driver.core_args.get("window") == 16
    luck = 15 * (settings.epochs == 4 and not long)
    score = 900 - 100 * abs(math.log(settings.rate_of_core / BEST)) + 10 * long + luck
    tracks = track_seeds(settings.validation.tracks)
    return {"score": score, "returns": [score] * len(tracks), "return_mean": score}


def run(dataset: Demonstrations, folder: Path, **keywords: Any) -> tuple[Comparison, list[str]]:
    """The comparison, and the trials and runs that were started."""
    events: list[Event] = []
    arguments = {"config": SETTINGS, "device": "cpu", "expert": "controller", "tune": True, **keywords}
    arguments = {"cores": (CORE,), "tracks": [900_000], "progress": events.append, **arguments}
    comparison = compare(arguments.pop("cores"), dataset, arguments.pop("tracks"), folder, **arguments)
    return comparison, [event.note.removesuffix(" started") for event in events if event.note.endswith(" started")]


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of the trials, without times."""
    lines = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    return [{**row, "seconds": 0} for row in lines if row.get("trial")]


@pytest.fixture
def _quick(monkeypatch) -> None:
    monkeypatch.setattr(experiment, "each_in_a_process", each_here)
    monkeypatch.setattr(Trainer, "validate", validated)


@pytest.fixture(scope="module")
def tuned(dataset, tmp_path_factory) -> tuple[Path, Comparison, list[str]]:
    """A comparison without interruption; read only."""
    folder = tmp_path_factory.mktemp("tuning") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "each_in_a_process", each_here)
        patch.setattr(Trainer, "validate", validated)
        return folder, *run(dataset, folder)


def test_the_best_trials_go_on_and_the_best_of_them_has_the_settings_of_the_runs(tuned):
    folder, comparison, started = tuned
    names = [f"learning_rate={rate:g}" for rate in RATES]
    best = f"learning_rate={BEST:g}"
    (core,) = comparison.tuned
    assert [(row["trial"], row["epochs"]) for row in core.rows] == [
        (best, 1), (names[3], 1), (names[1], 1), (names[0], 1),
        (f"{best},window=16", 2), (best, 2), (f"{best},sparsity=0.25", 2), (names[3], 2),
        (best, 4), (f"{best},window=16", 4),
    ]  # fmt: skip
    assert len(started) == 10 + 2  # and the expert and the run
    assert core.chosen is not None
    assert core.chosen.name == f"{best},window=16"
    saved = yaml.safe_load((folder / f"{CORE}-0" / "config.yaml").read_text())
    assert (saved["optim"]["learning_rate"], saved["driver"]["core_args"]) == (BEST, {"num_heads": 4, "window": 16})
    assert saved["epochs"] == 4


def test_trials_are_reported_and_see_validation_tracks_alone(tuned):
    folder, comparison, _ = tuned
    for row in rows(folder):
        assert (row["driver"], row["run"], row["seed"]) == (CORE, None, None)
        assert len(row["returns"]) == len(track_seeds(SETTINGS.validation.tracks))
    conditions = json.loads((folder / "conditions.json").read_text())
    assert conditions["tuning"] == {"rates": list(RATES), "epochs": [1, 2, 4], "tracks": [800_000]}
    page, table = (folder / "report.html").read_text(), tuning_table(comparison.tuned)
    assert "validation tracks 800000; none of them saw a track of the results" in page
    assert [line[-1] for line in table.rows].count("yes") == 1
    assert all(f'<td class="name">{line[1]}</td><td>{line[2]}</td><td>{line[3]}</td>' in page for line in table.rows)
    (trained,) = (driver for driver in json.loads((folder / "results.json").read_text()) if driver["runs"])
    assert trained["learning_rate"] == BEST


@pytest.mark.slow
@pytest.mark.usefixtures("_quick")
def test_a_killed_tuning_goes_on_with_the_missing_trials(tuned, dataset, tmp_path):
    folder = Path(shutil.copytree(tuned[0], tmp_path / "c", symlinks=True))
    lines = (folder / "rows.jsonl").read_text().splitlines(keepends=True)
    gone = [line for line in lines if '"epochs": 4' in line or '"episode_return"' in line]
    (folder / "rows.jsonl").write_text("".join(line for line in lines if line not in gone))
    shutil.rmtree(folder / f"{CORE}-0")
    comparison, started = run(dataset, folder, resume=True)
    assert {name.rpartition(",")[2] for name in started[:2]} == {"window=16", f"learning_rate={BEST:g}"}
    assert started[2:] == ["expert", f"{CORE}-0"]
    assert rows(folder) == rows(tuned[0])
    assert comparison.drivers[1].evaluation.rows[0].episode_return == pytest.approx(
        tuned[1].drivers[1].evaluation.rows[0].episode_return
    )
    with pytest.raises(ValueError, match=r"tuning\.epochs: it has \[1, 2, 4\], got None|tuning"):
        run(dataset, folder, resume=True, tune=False)


@pytest.mark.slow
@pytest.mark.usefixtures("_quick")
def test_a_trial_that_diverges_is_a_result_and_one_that_fails_is_tried_again(dataset, tmp_path, monkeypatch):
    real = driving.train

    def fails(settings: Any, *arguments: Any, **keywords: Any) -> Path:
        if settings.optim.learning_rate == RATES[3]:
            raise DivergedError("the training has diverged.")
        if settings.optim.learning_rate == RATES[2]:
            raise ValueError("no more frames.")
        return real(settings, *arguments, **keywords)

    monkeypatch.setattr(driving, "train", fails)
    comparison, _ = run(dataset, tmp_path / "c")
    (core,) = comparison.tuned
    assert core.chosen is not None
    assert core.chosen.rate == RATES[1]
    (diverged,) = (row for row in core.rows if row["score"] is None)
    assert (diverged["trial"], diverged["returns"]) == (f"learning_rate={RATES[3]:g}", [])
    assert all("no more frames" not in str(row) for row in core.rows)
    assert (tmp_path / "c" / "tuning" / f"{CORE},learning_rate={BEST:g}" / "failed.txt").exists()
    _, started = run(dataset, tmp_path / "c", resume=True)
    assert started == [f"tuning/{CORE},learning_rate={BEST:g}"]


@pytest.mark.parametrize(
    ("message", "bad"),
    [
        ("tune chooses the learning rate, got learning_rate 0.5", {"config": nested(SETTINGS, learning_rate=0.5)}),
        ("tune .* schedule = 'cosine' does not allow", {"config": nested(SETTINGS, schedule="cosine")}),
        ("track 900000 is a validation track", {"config": nested(SETTINGS, validation_tracks="test-1")}),
        ("tune needs a core to train", {"cores": ("controller",), "expert": None}),
    ],
)
def test_a_tuning_that_is_refused_leaves_nothing(message, bad, dataset, tmp_path):
    with pytest.raises(ValueError, match=message):
        run(dataset, tmp_path / "c", **bad)
    assert not (tmp_path / "c").exists()


def test_every_core_has_as_many_trials_and_each_changes_something():
    for name in CORES:
        settings = with_core(TrainConfig(), name)
        trials = [*first_trials(name), *later_trials(name, settings, RATES[1])]
        assert len({trial.name for trial in trials}) == 6, name
        for trial in trials:
            changed = trial.of(settings).driver
            ordinary = CORES.require(name).ordinary
            assert all(ordinary[key] != value for key, value in changed.core_args.items()), trial.name


def test_a_module_of_the_user_is_tuned_by_what_it_takes():
    """A module that keeps a state refuses a window."""
    for module, settings in (("GRU", [{}, {}]), ("TransformerEncoderLayer", [{"window": 16}, {"window": 4}])):
        name = named_object(f"torch.nn:{module}")
        assert [trial.settings for trial in later_trials(name, with_core(TrainConfig(), name), RATES[1])] == settings


def test_a_core_has_its_own_rate_in_cloning_and_the_encoder_the_usual_one():
    assert (recommended_rate("ncp"), recommended_rate("mine:Core")) == (1e-2, USUAL_RATE)
    ncp = nested(TrainConfig(), core="ncp")
    optim = ncp.with_rates().optim
    assert (optim.learning_rate, optim.encoder_learning_rate) == (1e-2, USUAL_RATE)
    frozen = nested(ncp, freeze_encoder_from="expert").with_rates().optim
    assert (frozen.learning_rate, frozen.encoder_learning_rate) == (1e-2, None)
    chosen = nested(ncp, learning_rate=0.5)
    assert chosen.with_rates() == chosen
    learner = nested(DaggerConfig(), core="ncp")
    assert (learner.rate_of_core, learner.rate(0)) == (USUAL_RATE, USUAL_RATE)


def test_the_rates_of_the_cores_are_the_published_choices():
    published = json.loads((ROOT / "docs/runs/tuning.json").read_text())
    assert {
        core: float(name.removeprefix("learning_rate=").split(",")[0]) for core, name in published["chosen"].items()
    } == {core: RECOMMENDED[core] for core in published["chosen"]}
    assert set(RECOMMENDED) <= set(CORES)
    for core, name in published["chosen"].items():
        scores: dict[str, list[float]] = {}
        for trial in published["trials"]:
            assert trial["score"] == pytest.approx(validation_score(trial["returns"]), abs=0.1)
            if trial["driver"] == core:
                scores.setdefault(trial["trial"], []).append(trial["score"])
        tried_again = {trial: found for trial, found in scores.items() if len(found) > 1}
        assert max(tried_again or scores, key=lambda trial: fmean(scores[trial])) == name


def test_a_core_that_drives_at_the_high_rate_alone_has_that_rate():
    tried = json.loads((ROOT / "docs/runs/two-rates.json").read_text())
    assert all(len(driven["0.002"]) == len(driven["0.01"]) == 20 for driven in tried.values())
    returns = {core: [np.array(driven[rate]) for rate in ("0.01", "0.002")] for core, driven in tried.items()}
    better = {
        core
        for core, (high, low) in returns.items()
        if bootstrap(high[None], low[None]).low > 0 and clearly_positive(high)
    }
    assert better == {core for core, rate in RECOMMENDED.items() if rate == 1e-2}
