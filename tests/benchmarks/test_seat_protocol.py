"""The trainings from the driver's seat, and their tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_plans import Run
from seat import Rows, Seat, protocol, ranking, recovery_table
from tails import kind_of

from nac_drive.envs.perturbations.mishaps import KINDS
from nac_drive.evaluation.results import EpisodeResult
from nac_drive.policies import CORES


def cells(table: str) -> dict[str, list[str]]:
    """Return the cells of a table by core."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {core: values for core, *values in rows}


def episode(run: Run, track: int, value: float, recovered: bool = True) -> EpisodeResult:
    metrics = {"episode_return": value, "recovered": float(recovered)}
    return EpisodeResult(run.core, track, "ignore", None, run.seed, metrics)


def test_all_cores_learn_alike_on_the_encoder_of_the_lstm_with_their_seed():
    settings = Seat(Path("out"))
    assert all(core in CORES for core in settings.cores)
    for seed in settings.seeds:
        configs = {core: protocol(settings, core, seed) for core in settings.cores}
        frozen = {core: plan.training.optim.freeze_encoder_from for core, plan in configs.items()}
        folder = f"out/{protocol(settings, 'lstm', seed).plan()[0].name}"
        assert frozen.pop("lstm") is frozen.pop("cnn") is None
        assert set(frozen.values()) == {folder}
        tracks = set()
        for core, plan in configs.items():
            (run,) = plan.plan()
            config = plan.dagger_config(run)
            config.check()
            assert (config.driver.core, config.seed, config.env.view, config.env.mask_bar) == (
                core,
                seed,
                "seat",
                False,
            )
            tracks.add(tuple(track for number in range(config.rounds + 1) for _, track in config.tasks(number)))
        assert [len(of_core) for of_core in tracks] == [40 + 3 * 12]


def test_a_core_may_have_settings():
    plan = protocol(Seat(Path("out")), "nac-sharp,window=32", 1)
    (run,) = plan.plan()
    driver = plan.dagger_config(run).driver
    assert (run.name, driver.core, driver.core_args) == ("nac-sharp,window=32-dagger-1", "nac-sharp", {"window": 32})


def test_the_best_core_comes_first_and_differences_are_of_the_same_seeds():
    lstm, ncp = (Run(core, "dagger", 0) for core in ("lstm", "ncp"))
    rows: Rows = {
        run: [episode(run, track, start + track, track > 0) for track in range(4)]
        for run, start in ((ncp, 847), (lstm, 900))
    }
    table = cells(ranking(rows, rows))
    assert list(table) == ["lstm", "ncp"]
    assert table["lstm"][1:6] == ["902", "900", *["0.0 [0.0, 49.0]"] * 2, ""]
    assert table["ncp"][2:4] == ["847", "75.0 [30.1, 95.4]"]
    assert table["ncp"][5] == "-53.0 [-53.0, -53.0]"
    assert table["ncp"][6] == "75.0 [30.1, 95.4]"  # all but track 0 recovered
    rows |= {Run("ncp", "dagger", 1): [episode(ncp, track, 949 + track) for track in range(4)]}
    table = cells(ranking(rows, rows))
    assert list(table) == ["lstm", "ncp"]
    assert table["ncp"][1:3] == ["848, 950", "847"]
    assert table["ncp"][5] == ""  # no lstm of that seed


def test_a_percentage_of_runs_that_differ_has_an_interval_of_runs_too():
    """Two runs of 200 tracks are no 400 independent episodes."""
    runs = [Run("mha", "dagger", seed) for seed in (0, 1)]
    rows: Rows = {
        run: [episode(run, track, 500.0, track % 200 < hits) for track in range(920_000, 920_200)]
        for run, hits in zip(runs, (80, 20), strict=True)
    }
    share, low, high = (float(text.strip("[],")) for text in cells(ranking(rows, rows))["mha"][6].split())
    assert share == 25.0
    assert low < 12
    assert high > 38


@pytest.mark.parametrize("recovers", KINDS)
def test_recoveries_of_each_kind(recovers):
    runs = [Run("ncp", "dagger", seed) for seed in (0, 1)]
    rows: Rows = {run: [episode(run, track, 500.0) for track in range(920_000, 920_040)] for run in runs}
    rows = {run: [episode(run, row.seed, 500.0, kind_of(row) == recovers) for row in rows[run]] for run in runs}
    (values,) = cells(recovery_table(rows)).values()
    assert [float(value.split()[0]) for value in values] == [100.0 * (kind == recovers) for kind in KINDS]
