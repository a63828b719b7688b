"""A stress test: the rows of single evaluations, killed anywhere and resumed the same, and a page."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nac_drive.envs import EnvConfig
from nac_drive.evaluation.evaluate import evaluate
from nac_drive.evaluation.results import EpisodeResult, read_results
from nac_drive.events import Event
from nac_drive.experiments import driving
from nac_drive.experiments.stress import StressResult, stress
from nac_drive.experiments.stress_page import save_stress_page, stress_table, terminal_stress, video_of
from nac_drive.policies import Driver, DriverConfig, save_driver
from nac_drive.storage.names import markdown
from nac_drive.storage.read import FileError
from tests.data_collection.recordings import contents
from tests.killing import Fuse, Killed
from tests.nac_drive.evaluation.rows import row
from tests.nac_drive.experiments.test_page import ReadPage
from tests.nac_drive.forged import require_the_same_or_a_refusal

TRACKS, WORDS = [900001, 5], ["frame-drop:zero", "gap:3"]
SPECS = [None, "frame-drop:1:zero", "frame-drop:2:zero", "frame-drop:3:zero", "gap:3"]
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
    real = driving.drive
    monkeypatch.setattr(driving, "drive", lambda *a, **k: (row.with_metrics(latency_ms=1.5) for row in real(*a, **k)))


def known_returns(monkeypatch: pytest.MonkeyPatch, value: Callable[[str, str | None, int], float]) -> None:
    """Let episodes cost nothing and have known returns."""

    def drive(
        driver: Any, expert: Any, config: EnvConfig, seeds: Sequence[int], *, name: str, crash: str, **others: Any
    ) -> Iterator[EpisodeResult]:
        for seed in seeds:
            conditions = {"driver": name, "crash_mode": crash, "perturbation": config.perturb}
            yield row(seed, **conditions, episode_return=value(name, config.perturb, seed))

    monkeypatch.setattr(driving, "drive", drive)


def run(drivers: list[Path], folder: Path | None = None, **changed: Any) -> StressResult:
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
    saved = read_results(tmp_path / "stress" / "rows.jsonl")
    assert saved == [row for rows in result.rows.values() for row in rows]
    summary = json.loads((tmp_path / "stress" / "summary.json").read_text())
    assert len(summary["cells"]) == 10
    assert summary["areas"]["two"]["gap:3"] == pytest.approx(result.area("two", result.families[1]))


def test_what_a_driver_keeps_is_a_fraction_of_its_own_return(drivers, monkeypatch):
    """Not of the first driver's, which differences are taken against."""

    known_returns(monkeypatch, lambda name, spec, seed: {"one": 800.0, "two": 400.0}[name] * (0.5 if spec else 1.0))
    cells = run(drivers, words=["gap:3"]).cells
    for name, lost in (("one", 400.0), ("two", 200.0)):
        found = cells[name, "gap:3"]
        assert found.fraction_kept is not None
        assert (found.fraction_kept.mean, found.degradation.mean) == (0.5, lost)


@pytest.mark.slow
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
    folder = tmp_path / "stress"
    run(drivers[:1], folder, words=["gap:3"], tracks=TRACKS[:1])
    events: list[Event] = []
    run(drivers, folder, resume=True, progress=events.append)
    assert [event.done for event in events] == list(range(2, 21)), "2 of 20 episodes were there"
    run(drivers, tmp_path / "whole")
    assert contents(folder) == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"words": ["gap:3"]},
            "perturbations: 'frame-drop:1:zero' of it is missing here",
        ),
        ({"tracks": [5]}, "tracks: 900001 of it is missing here"),
        ({"crash": "terminate"}, "crash: it has 'ignore', got 'terminate'"),
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
    with pytest.raises(FileError, match=r"\(one sha256: it has"):
        run([other, drivers[1]], tmp_path / "stress", resume=True)
    rows = tmp_path / "stress" / "rows.jsonl"
    rows.write_text(rows.read_text() + rows.read_text().splitlines()[0] + "\n")
    with pytest.raises(FileError, match="holds a result that another line holds already"):
        run(drivers, tmp_path / "stress", resume=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(FileError, match="is not the folder of a stress test"):
        run(drivers, tmp_path / "mine", resume=True)
    with pytest.raises(FileNotFoundError, match="nothing to resume"):
        run(drivers, tmp_path / "nothing", resume=True)


OTHERS: list[dict[str, Any]] = [
    {"driver": "other"}, {"driver": "one"}, {"seed": 6}, {"seed": 5}, {"seed": -1}, {"perturbation": "gap:2"},
    {"perturbation": None}, {"crash_mode": "terminate"}, {"renderer": 1}, {"completion": -7}, {"crashes": None},
]  # fmt: skip


def test_damaged_rows_give_the_same_files_or_are_refused_in_one_line(drivers, tmp_path, monkeypatch):
    known_returns(monkeypatch, lambda name, spec, seed: seed / 7)
    monkeypatch.setattr("nac_drive.evaluation.intervals._RESAMPLES", 10)
    run(drivers, tmp_path / "whole", words=["gap:3"])
    require_the_same_or_a_refusal(
        tmp_path / "whole", tmp_path, OTHERS, lambda folder: run(drivers, folder, words=["gap:3"], resume=True),
        seeds=30, least=5,
    )  # fmt: skip


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
    folder = tmp_path / "stress"
    result = run(drivers, folder, crash="intervene")
    page = save_stress_page(folder, result, TRACKS, "intervene", drivers).read_text()
    table = stress_table(result)
    assert len(table.rows) == 10
    assert ReadPage(page).rows == [table.headings, *map(list, table.rows)]
    texts = [table.markdown(), *map(markdown, result.verdicts)]
    assert (folder / "table.md").read_text() == "\n\n".join(texts) + "\n"
    assert all(sentence.replace("'", "&#39;") in page for sentence in result.verdicts)
    assert {"vs first [95 %]", "wins %"} <= set(table.headings)
    for name in ("heatmap.png", "curves.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
        assert base64.b64encode((folder / name).read_bytes()).decode() in page
    assert "one, two drove once on every track (900001, 5), undisturbed" in page
    assert f"nac-drive inspect --driver {drivers[0]}" in page or f"nac-drive inspect --driver {drivers[1]}" in page
    assert next(terminal_stress(result).within(200)).row_count == 5
    video = video_of(folder / "video.mp4", [*drivers, drivers[0]], TRACKS, "gap:3")
    assert video.stat().st_size > 1000
