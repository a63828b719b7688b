"""A stress test: the rows of single evaluations, killed anywhere and resumed the same, and a page."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nac_drive.envs import EnvConfig
from nac_drive.evaluation.evaluate import evaluate
from nac_drive.evaluation.results import EpisodeResult, read_results
from nac_drive.policies import Driver, DriverConfig, save_driver
from nac_drive.robustness import stress as module
from nac_drive.robustness.page import save_page, stress_table, terminal_stress, video_of
from nac_drive.robustness.stress import Stress, stress
from nac_drive.storage.read import FileError
from tests.data_collection.recordings import contents
from tests.killing import Fuse, Killed
from tests.nac_drive.evaluation.rows import row
from tests.nac_drive.forged import forged

TRACKS, WORDS = [900001, 5], ["frame-drop:zero", "gap:3"]
SPECS = ["", "frame-drop:1:zero", "frame-drop:2:zero", "frame-drop:3:zero", "gap:3"]
ENV = {"control": "discrete", "mask_bar": False, "max_steps": 6, "perturb": "frame-rate:3"}


@pytest.fixture(scope="module")
def drivers(tmp_path_factory) -> list[Path]:
    """Two drivers of six frames, trained under a perturbation that does not count here."""
    path = tmp_path_factory.mktemp("drivers")
    return [save_driver(path / name, Driver(DriverConfig(core="cnn")), env=ENV) for name in ("one", "two")]


@pytest.fixture(scope="module")
def finished(drivers, tmp_path_factory) -> Path:
    """The folder of a finished test; read only."""
    folder = tmp_path_factory.mktemp("finished") / "stress"
    run(drivers, folder)
    return folder


@pytest.fixture
def copy(finished, tmp_path) -> Path:
    """A copy of that folder."""
    return Path(shutil.copytree(finished, tmp_path / "stress"))


@pytest.fixture
def constant_latency(monkeypatch) -> None:
    """Latencies are measured; everything else is the same in every run."""

    def constant(*arguments: Any, on_episode: Any, **others: Any) -> Any:
        found = evaluate(*arguments, on_episode=lambda row: on_episode(row.with_metrics(latency_ms=1.5)), **others)
        rows = [row.with_metrics(latency_ms=1.5) for row in found.rows]
        return type(found)(rows, found.summary)

    monkeypatch.setattr(module, "evaluate", constant)


def run(drivers: list[Path], folder: Path | None = None, **changed: Any) -> Stress:
    return stress(drivers, changed.pop("words", WORDS), changed.pop("tracks", TRACKS), folder=folder,
                  **changed)  # fmt: skip


def test_rows_are_those_of_single_evaluations(drivers, tmp_path, constant_latency):
    result = run(drivers, tmp_path / "stress")
    assert list(result.rows) == [(name, spec) for name in ("one", "two") for spec in SPECS]
    for (name, spec), rows in result.rows.items():
        alone = evaluate(drivers[name == "two"], TRACKS, name=name, perturbation=spec).rows
        assert [row.with_metrics(latency_ms=1.5) for row in alone] == rows
    assert result.cells["one", "gap:3"].versus is None
    assert result.cells["two", "gap:3"].versus is not None
    saved, cut_off = read_results(tmp_path / "stress" / "rows.jsonl")
    assert not cut_off
    assert saved == [row for rows in result.rows.values() for row in rows]
    summary = json.loads((tmp_path / "stress" / "summary.json").read_text())
    assert len(summary["cells"]) == 10
    assert summary["areas"]["two"]["gap:3"] == pytest.approx(result.area("two", result.families[1]))


def test_what_a_driver_keeps_is_a_fraction_of_its_own_return(drivers, monkeypatch):
    """Not of the first driver's, which differences are taken against."""

    def known(*arguments: Any, name: str, env: EnvConfig, done: Any, **others: Any) -> Any:
        value = {"one": 800.0, "two": 400.0}[name] * (0.5 if env.perturb else 1.0)
        return SimpleNamespace(rows=[row(seed, driver=name, episode_return=value) for seed in TRACKS])

    monkeypatch.setattr(module, "evaluate", known)
    cells = run(drivers, words=["gap:3"]).cells
    for name, lost in (("one", 400.0), ("two", 200.0)):
        found = cells[name, "gap:3"]
        assert found.fraction_kept is not None
        assert (found.fraction_kept.mean, found.degradation.mean) == (0.5, lost)


def test_killed_at_any_episode_it_resumes_to_the_same_files(drivers, tmp_path, monkeypatch, constant_latency):
    run(drivers, tmp_path / "whole", words=["gap:3"])
    whole = contents(tmp_path / "whole")
    for after in (0, 2, 5, 11, 17, 26):
        folder = tmp_path / str(after)
        with monkeypatch.context() as patch:
            fuse = Fuse(after)
            for name in ("fsync", "replace"):
                patch.setattr(os, name, fuse.deadly(getattr(os, name)))
            with suppress(Killed):
                run(drivers, folder, words=["gap:3"])
        run(drivers, folder, words=["gap:3"], resume=folder.exists())
        assert contents(folder) == whole


def test_drivers_perturbations_and_tracks_may_grow(drivers, tmp_path, constant_latency):
    folder, driven = tmp_path / "stress", []
    run(drivers[:1], folder, words=["gap:3"], tracks=TRACKS[:1])
    run(
        drivers,
        folder,
        resume=True,
        report=lambda driver, spec, row: driven.append((driver, spec, row["episode"].seed)),
    )
    assert ("one", "gap:3", TRACKS[0]) not in driven
    assert len(driven) == len(set(driven)) == 18
    run(drivers, tmp_path / "whole")
    assert contents(folder) == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"words": ["gap:3"]},
            "perturbations must hold all that it was begun with, and 'frame-drop:1:zero' is missing",
        ),
        ({"tracks": [5]}, "tracks must hold all that it was begun with, and '900001' is missing"),
        ({"crash": "terminate"}, "it was begun with crash=ignore"),
    ],
)
def test_other_conditions_are_refused(drivers, copy, changed, message):
    before = contents(copy)
    with pytest.raises(FileError, match=message):
        run(drivers, copy, resume=True, **changed)
    with pytest.raises(FileExistsError, match="already exists"):
        run(drivers, copy)
    assert contents(copy) == before


def test_another_driver_of_the_name_foreign_rows_and_foreign_folders_are_refused(drivers, copy, tmp_path):
    other = save_driver(tmp_path / "one", Driver(DriverConfig(core="cnn")), env=ENV)
    with pytest.raises(FileError, match="driver 'one' of it is missing here or has changed"):
        run([other, drivers[1]], tmp_path / "stress", resume=True)
    rows = tmp_path / "stress" / "rows.jsonl"
    rows.write_text(rows.read_text() + rows.read_text().splitlines()[0] + "\n")
    with pytest.raises(FileError, match="holds an episode twice"):
        run(drivers, tmp_path / "stress", resume=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(FileError, match="is not the folder of a stress test"):
        run(drivers, tmp_path / "mine", resume=True)
    with pytest.raises(FileNotFoundError, match="nothing to resume"):
        run(drivers, tmp_path / "nothing", resume=True)


OTHERS: list[dict[str, Any]] = [
    {"driver": "other"}, {"driver": "one"}, {"seed": 6}, {"seed": 5}, {"seed": -1}, {"perturbation": "gap:2"},
    {"perturbation": ""}, {"crash_mode": "terminate"}, {"renderer": 1}, {"completion": -7}, {"crashes": None},
]  # fmt: skip


def test_damaged_rows_give_the_same_files_or_are_refused_in_one_line(drivers, tmp_path, monkeypatch):
    def drive(
        _: bytes, name: str, config: EnvConfig, crash: str, batch_size: int, seeds: Sequence[int]
    ) -> Iterator[EpisodeResult]:
        for seed in seeds:
            conditions = {"driver": name, "crash_mode": crash, "perturbation": config.perturb or ""}
            yield row(seed, **conditions, episode_return=seed / 7)

    monkeypatch.setattr("nac_drive.evaluation.evaluate._drive", drive)
    monkeypatch.setattr("nac_drive.robustness.statistics.RESAMPLES", 10)
    run(drivers, tmp_path / "whole", words=["gap:3"])
    whole, outcomes = contents(tmp_path / "whole"), {True: 0, False: 0}
    lines = whole["rows.jsonl"].decode().splitlines(keepends=True)
    for seed in range(30):
        folder = Path(shutil.copytree(tmp_path / "whole", tmp_path / str(seed)))
        (folder / "rows.jsonl").write_text("".join(forged(seed, lines, OTHERS)))
        before = contents(folder)
        try:
            run(drivers, folder, words=["gap:3"], resume=True)
        except FileError as error:
            message = str(error)
            assert message.startswith(f"{folder / 'rows.jsonl'}, line ")
            assert message.isprintable(), message
            assert contents(folder) == before
            outcomes[False] += 1
        else:
            assert contents(folder) == whole, seed
            outcomes[True] += 1
    assert min(outcomes.values()) > 5


@pytest.mark.parametrize(
    ("twice", "changed", "message"),
    [
        (True, {}, "each with a name of its own"),
        (False, {"words": ["fog"]}, "NAME:LEVEL"),
        (False, {"tracks": "moon-3"}, "moon"),
    ],
)
def test_bad_arguments_leave_no_folder(drivers, tmp_path, twice, changed, message):
    with pytest.raises(ValueError, match=message):
        run([drivers[0], drivers[0]] if twice else drivers, tmp_path / "stress", **changed)
    assert not (tmp_path / "stress").exists()


def test_the_page_shows_every_driver_under_every_perturbation(drivers, tmp_path):
    result = run(drivers, tmp_path / "stress", crash="intervene")
    page = save_page(tmp_path / "stress", result).read_text()
    assert stress_table(result) in page
    assert len([line for line in page.splitlines() if line.startswith("| ")]) == 1 + 10
    for name in ("heatmap.png", "curves.png"):
        assert (tmp_path / "stress" / name).read_bytes().startswith(b"\x89PNG")
    assert terminal_stress(result).row_count == 5
    video = video_of(tmp_path / "stress" / "video.mp4", [*drivers, drivers[0]], TRACKS, "gap:3")
    assert video.stat().st_size > 1000
