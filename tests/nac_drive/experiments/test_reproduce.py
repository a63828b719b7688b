"""Reproductions: protocols that can be run, exact answers of their parts, and runs that go on where they ended."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import reproduce as papers
import torch
from scipy import stats

from nac_drive.events import Event
from nac_drive.experiments import cost, offline
from nac_drive.experiments import reproduce as run
from nac_drive.experiments.cost import Cost, exponent
from nac_drive.experiments.learning import Learning
from nac_drive.experiments.offline import Offline, parts
from nac_drive.experiments.paper import PaperExperiment, PaperTask, ResultColumn
from nac_drive.experiments.paper_page import _cell, verdict
from nac_drive.experiments.protocol import PROTOCOLS, PaperEntry, Protocol, load, names_in
from nac_drive.experiments.reproduce import EXPERIMENTS, reproduce
from nac_drive.experiments.size import Sizes
from nac_drive.policies import CORES, Driver, build_core
from nac_drive.policies.action_heads import ContinuousActionHead
from tests.nac_drive.small import demonstrations, synthetic

PAGES = Path(__file__).parents[3] / "docs" / "papers"
TINY = Protocol(
    "Title", "A paper, Table 0", "cost", "All.",
    [PaperEntry(name, name, printed={"seconds": 1.0}) for name in ("lstm", "gru")],
    settings={"lengths": [12], "d_model": 8, "passes": 2},
)  # fmt: skip


class Tables(NamedTuple):
    """Protocols with the kinds of experiments and the command that measure them."""

    protocols: Path
    experiments: Mapping[str, type[PaperExperiment]]
    command: str


TABLES = [
    (name, tables)
    for tables in (
        Tables(PROTOCOLS, EXPERIMENTS, "nac-drive reproduce"),
        Tables(papers.PROTOCOLS, papers.EXPERIMENTS, papers.COMMAND),
    )
    for name in names_in(tables.protocols)
]


@pytest.mark.parametrize(("name", "tables"), TABLES)
def test_every_protocol_can_be_run_and_printed(name: str, tables: Tables):
    reproduction = load(name, tables.protocols)
    for protocol in (reproduction, reproduction.at_full_size()):
        experiment = msgspec.convert(protocol.settings, tables.experiments[protocol.experiment])
        keys = {column.key for column in experiment.columns()}
        assert experiment.places()
        assert experiment.describe()
    assert len({entry.name for entry in reproduction.entries}) == len(reproduction.entries)
    for entry in protocol.entries:
        assert entry.printed.keys() <= keys
        args = protocol.core_args(entry)
        assert set(args) <= set(CORES[entry.core].accepted)
        core = build_core(entry.core, 64, 64, **args)
        assert core(torch.zeros(1, 2, 64), torch.full((1, 2), 0.02), core.initial_state(1))[0].shape == (1, 2, 64)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def test_run_times_are_measured_again_where_they_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run, "load", lambda *_: TINY)
    events: list[Event] = []
    page = reproduce("tiny", tmp_path / "out", only=["gru"], progress=events.append)
    with pytest.raises(FileExistsError, match="go on with --resume"):
        reproduce("tiny", tmp_path / "out")
    with (tmp_path / "out" / "rows.jsonl").open("a") as file:
        file.write('{"entry": "lstm", "cor')  # a kill in the middle of a line
    page = reproduce("tiny", tmp_path / "out", resume=True, progress=events.append)
    assert [(event.done, event.total, event.note) for event in events] == [
        (0, 1, ""), (1, 1, "gru"), (1, 2, ""), (2, 2, "lstm"),
    ]  # fmt: skip
    rows = rows_of(tmp_path / "out")
    assert [row["entry"] for row in rows] == ["lstm", "gru"]  # in the order of the table
    for row in rows:
        assert row["seconds"] > 0
        assert row["throughput"] == 1 / row["seconds"]
        assert row["parameters"] == sum(p.numel() for p in build_core(row["core"], 8, 8).parameters())
    text = page.read_text()
    assert "nac-drive reproduce tiny --out out" in text
    assert f"| lstm | `lstm` | 1.0000 | {rows[0]['seconds']:.4f} |" in text
    monkeypatch.setattr(run, "load", lambda *_: replace(TINY, settings=TINY.settings | {"passes": 3}))
    with pytest.raises(ValueError, match=r"under other conditions \(settings.passes: it has 2, got 3\)"):
        reproduce("tiny", tmp_path / "out", resume=True)


@pytest.mark.parametrize(("device", "workers", "options"), [("cuda", 1, "--device cuda "), ("cpu", 2, "")])
def test_networks_learn_on_the_device_one_after_the_other_on_a_gpu(
    device: str, workers: int, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    used: list[int] = []
    monkeypatch.setattr(run, "load", lambda *_: replace(TINY, experiment="size", settings={}))
    monkeypatch.setattr(run, "choose_device", torch.device)
    monkeypatch.setattr(run, "worker_pool", lambda workers: used.append(workers) or nullcontext())
    monkeypatch.setattr(Sizes, "describe", lambda experiment: f"It learned on {experiment.device}.")
    page = reproduce("tiny", tmp_path / "out", device=device, workers=2)
    assert f"It learned on {device}." in page.read_text()
    assert f"nac-drive reproduce tiny {options}--out out" in page.read_text()
    assert used == [workers]
    settings = json.loads((tmp_path / "out" / "conditions.json").read_text())["settings"]
    assert settings == ({"device": "cuda"} if device == "cuda" else {})


def test_settings_may_follow_the_name_of_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run, "load", lambda name, *_: {"tiny": TINY}[name])
    page = reproduce("tiny,d_model=12,passes=1", tmp_path / "out", only=["gru"])
    assert page.name == "tiny.md"
    assert "    nac-drive reproduce tiny,d_model=12,passes=1 --out out\n" in page.read_text()
    (row,) = rows_of(tmp_path / "out")
    assert row["parameters"] == sum(weight.numel() for weight in build_core("gru", 12, 12).parameters())
    settings = json.loads((tmp_path / "out" / "conditions.json").read_text())["settings"]
    assert settings == TINY.settings | {"d_model": 12, "passes": 1}
    with pytest.raises(ValueError, match=r"settings\.d_model: it has 12, got"):
        reproduce("tiny", tmp_path / "out", resume=True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tiny,passs=1", "KEY=VALUE with KEY among .*, got 'passs=1'. Did you mean 'passes'"),
        ("tiny,passes", "must be KEY=VALUE .* got 'passes'"),
        ("tiny,device=cuda", "got 'device=cuda'"),
        ("tiny,passes=many", "must fit their types, got 'tiny,passes=many': Expected `int`, got `str`"),
        ("tiny,passes=0", r"Expected `int` >= 1 - at `\$.passes`"),
        ("tiny,lengths=[8,16", r"lengths must be YAML, such as .*, got '\[8,16': "),
    ],
)
def test_bad_settings_of_a_table_are_named(name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run, "load", lambda *_: TINY)
    with pytest.raises(ValueError, match=message) as caught:
        reproduce(name, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_setting_may_be_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run, "load", lambda *_: TINY)
    reproduce("tiny,lengths=[8,16],passes=1", tmp_path / "out", only=["gru"])
    assert json.loads((tmp_path / "out" / "conditions.json").read_text())["settings"]["lengths"] == [8, 16]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nac-table1,tested_folds=9", "tested_folds must lie in 1 to folds = 5, got 9"),
        ("nac-table1,episodes=4", "folds of tracks must be at most episodes = 4, got 5"),
        ("nac-table1,learning_rate=-1", r"Expected `float` > 0.* at `\$.learning_rate`"),
        ("nac-table1,epochs=0", "Expected `int` >= 1"),
        ("nac-table1,cells=[[tracks,0]]", "Expected `int` >= 1"),
        ("thesis-6.4a,tracks=foo", "tracks.*'foo'"),
        ("thesis-6.4a,perturbations=[fog:1]", "perturbation 'fog' is unknown"),
        ("thesis-6.4a,learning_rate=-1", "learning_rate must be positive"),
        ("thesis-6.4a,encoder=foo", "encoder .foo. is unknown"),
        ("pdna-tables,runs=0", "Expected `int` >= 1"),
        ("circuitnet-rl,validation_tracks=foo", "'foo'"),
    ],
)
def test_a_setting_out_of_its_range_is_named_before_anything_is_made(name: str, message: str, tmp_path: Path):
    with pytest.raises(ValueError, match=message) as caught:
        reproduce(name, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "folds"), [("nac-table1", 5), ("thesis-6.1", 10)])
def test_all_folds_of_a_paper_can_be_asked_for(name: str, folds: int):
    """With the short measurement, or at the paper's size."""
    table = load(name)
    for settings in (table.settings | {"tested_folds": folds}, table.at_full_size().settings):
        experiment = msgspec.convert(settings, EXPERIMENTS[table.experiment])
        assert {dict(place)["fold"] for place in experiment.places()} == {*range(folds)}
        assert f"{folds} of {folds} folds were tested" in experiment.describe()


def test_the_table_of_pdna_has_the_recipe_of_the_paper():
    """Section 5.2. The authors' source adds rate and weight decay."""
    experiment: Any = msgspec.convert(load("pdna-tables").at_full_size().settings, EXPERIMENTS["cloning"])
    config = experiment.training("pdna-e", {}, 3)
    config.check()
    optim = config.optim
    assert (optim.learning_rate, optim.weight_decay, optim.max_grad_norm) == (5e-4, 0.01, 1.0)
    assert (optim.schedule, optim.warmup_epochs, optim.patience, optim.ema_decay) == ("cosine", 3, 8, 0.0)
    assert (config.epochs, config.data.horizontal_flip, config.data.augment) == (40, False, ())
    assert (experiment.runs, config.driver.d_model) == (5, 128)
    assert {column.key for column in experiment.columns()} >= {"accuracy_", "accuracy_scattered-gaps:2"}


def test_a_line_may_have_settings_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    wide = PaperEntry("wide", "gru", settings={"d_model": 12})
    monkeypatch.setattr(run, "load", lambda *_: replace(TINY, entries=[*TINY.entries, wide]))
    page = reproduce("tiny", tmp_path / "x; touch y #", only=["gru"])
    assert "    nac-drive reproduce tiny --out 'x; touch y #'\n" in page.read_text()
    sizes = {row["entry"]: row["parameters"] for row in rows_of(tmp_path / "x; touch y #")}
    for name, units in (("gru", 8), ("wide", 12)):
        assert sizes[name] == sum(p.numel() for p in build_core("gru", units, units).parameters())


def test_unknown_names_are_refused_before_anything_is_written(tmp_path: Path):
    with pytest.raises(ValueError, match=r"name must be one of .*, got 'nac-tabel5'.*nac-table5"):
        reproduce("nac-tabel5", tmp_path / "out")
    with pytest.raises(
        ValueError, match=r"got 'thesis-7'; in a clone .* `python benchmarks/papers/reproduce.py thesis-7 "
    ):
        reproduce("thesis-7", tmp_path / "out")
    with pytest.raises(ValueError, match="there is no 'LTSM' in this table"):
        reproduce("nac-table5", tmp_path / "out", only=["LTSM"])
    assert not list(tmp_path.iterdir())


def test_the_exponent_of_a_power_is_its_exponent_on_each_device():
    rows = [
        {"length": length, "device": device, "seconds": 3e-5 * length**power}
        for device, power in (("cpu", 1.5), ("cuda", 0.5))
        for length in (64, 256, 1024)
    ]
    assert exponent(rows[:3]) == pytest.approx(1.5)
    columns = {column.key: column for column in Cost(lengths=[64, 256, 1024], device="cuda").columns()}
    assert columns["exponent"].values(rows).tolist() == [pytest.approx(1.5)]
    assert columns["exponent_cuda"].values(rows).tolist() == [pytest.approx(0.5)]
    assert columns["ms_256_cuda"].values(rows).tolist() == [pytest.approx(3e-2 * 256**0.5)]
    assert [dict(place) for place in Cost(lengths=[8], device="cuda").places()] == [
        {"length": 8, "device": "cpu"}, {"length": 8, "device": "cuda"}
    ]  # fmt: skip


@pytest.mark.parametrize(("whole", "window"), [(True, 12), (False, 5)])
def test_a_cost_is_that_of_the_passes_after_the_first(monkeypatch: pytest.MonkeyPatch, whole: bool, window: int):
    seconds, peaks = iter((0.1, 0.2, 0.6)), iter((100.0, 130.0))
    monkeypatch.setattr(cost, "_timed", lambda call, device: next(seconds))
    monkeypatch.setattr(cost, "_peak", lambda device, reset: next(peaks))
    task = PaperTask("x", "mha", {"num_heads": 2, "window": 5}, (("length", 12), ("device", "cpu")))
    row = cost._measure(Cost(lengths=[12], d_model=4, passes=3, whole_sequence=whole), task)
    assert row == pytest.approx({
        "seconds": 0.3, "seconds_sd": 0.07**0.5, "throughput": 1 / 0.3, "megabytes": 30.0, "window": window,
        "parameters": sum(p.numel() for p in build_core("mha", 4, 4, num_heads=2).parameters()),
    })  # fmt: skip


def test_a_cell_is_the_mean_and_the_sample_deviation():
    column = ResultColumn("x", "X", "value", {"run": 1}, digits=2, scale=100.0)
    rows = [{"value": value, "run": run} for value, run in ((0.01, 1), (0.02, 1), (0.06, 1), (9.0, 2))]
    assert _cell(column, rows, "runs") == "3.00 ± 2.65"
    assert _cell(column, rows[:1], "runs") == "1.00"
    assert _cell(column, rows[3:], "runs") == ""


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ([10, 20, 30, 40, 50, 60, 70, 80], "is found again: rank correlation 1.00 [1.00, 1.00] over 8 lines"),
        ([8, 7, 6, 5, 4, 3, 2, 1], "is turned round: rank correlation -1.00"),
        ([1, 5, 2, 8, 3, 4, 7, 0], "is neither found again nor refuted"),
    ],
)
def test_the_verdict_compares_orders(measured: list[float], expected: str):
    entries = [PaperEntry(str(i), "lstm", printed={"x": float(i)}) for i in range(len(measured))]
    rows = {str(i): [{"value": value - 0.1}, {"value": value + 0.1}] for i, value in enumerate(measured)}
    column = ResultColumn("x", "X", "value", {})
    assert expected in verdict(replace(TINY, entries=entries), column, rows)
    assert verdict(replace(TINY, entries=entries[:4]), column, rows) == ""


def test_the_interval_of_a_verdict_is_that_of_95_percent():
    """The same as of SciPy's bootstrap over lines, but for chance."""
    measured = [1.0, 5.0, 2.0, 8.0, 3.0, 4.0, 7.0, 6.0, 9.0, 12.0, 10.0, 11.0]
    entries = [PaperEntry(str(i), "lstm", printed={"x": float(i)}) for i in range(len(measured))]
    rows = {str(i): [{"value": value}] for i, value in enumerate(measured)}
    sentence = verdict(replace(TINY, entries=entries), ResultColumn("x", "X", "value", {}), rows)
    found = [float(number) for number in re.findall(r"-?[0-9]\.[0-9]{2}", sentence)]

    def rho(one: Any, other: Any) -> float:
        correlation: Any = stats.spearmanr(one, other)
        return correlation.statistic

    expected = stats.bootstrap(
        (np.arange(len(measured)), np.array(measured)), rho, paired=True,
        vectorized=False, n_resamples=2000, method="percentile", rng=np.random.default_rng(1),
    ).confidence_interval  # fmt: skip
    assert found[0] == round(rho(range(len(measured)), measured), 2)
    assert found[1:] == pytest.approx([expected.low, expected.high], abs=0.03)


@pytest.mark.parametrize(("split", "length"), [("tracks", 16), ("tracks", 1), ("frames", 1)])
def test_folds_test_everything_once_and_train_on_none_of_it(split: Any, length: int):
    frames = synthetic([64, 80, 48, 64, 96, 64])
    zooming = np.zeros(len(frames), bool)
    for first in frames.offsets[:-1]:
        zooming[first : first + 8] = True
    frames = replace(frames, zooming=zooming)
    tested = []
    for fold in range(3):
        split_rows = parts(frames, split, length, fold, 3)
        rows = [
            {row + i for row in part for i in range(length)}
            for part in (split_rows.train, split_rows.stop, split_rows.test)
        ]
        assert all(rows)
        assert not (rows[0] & rows[1])
        assert not (rows[0] & rows[2])
        assert not (rows[1] & rows[2])
        assert not any(zooming[list(part)].any() for part in rows)
        if split == "tracks":
            episodes = [set(np.searchsorted(frames.offsets, sorted(part), side="right")) for part in rows]
            assert not (episodes[0] & episodes[2])
            assert not (episodes[1] & episodes[2])
        tested += split_rows.test.tolist()
    assert len(set(tested)) == len(tested)
    assert len(tested) * length >= (~zooming).sum() - 6 * (length - 1)


def test_sizes_are_those_counted_by_hand():
    measured = {}
    for entry in load("thesis-6.6").entries:
        task = PaperTask(entry.name, entry.core, entry.args, ())
        measured[entry.name] = msgspec.convert(entry.settings, Sizes).measure(Path(), task)
    assert measured["CNN"]["total_parameters"] == 5_068_900 + 1
    assert {measured[name]["encoder_parameters"] for name in ("CT-RNN", "LSTM", "NCP")} == {79_420}
    assert (measured["CT-RNN"]["neurons"], measured["CT-RNN"]["synapses"]) == (64, 64 * 64 + 32 * 64)
    assert (measured["LSTM"]["neurons"], measured["LSTM"]["synapses"]) == (64, 4 * (64 * 64 + 32 * 64))
    assert (measured["NCP"]["neurons"], measured["NCP"]["synapses"]) == (19, 252)
    assert measured["NCP"]["parameters"] == 1065 + 2  # as printed, and the output's weight and bias


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_a_passive_test_of_a_small_dataset(control: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def collect(path: Path, *arguments: Any, **settings: Any) -> None:
        if not path.exists():
            demonstrations(path, control, tracks=6)

    monkeypatch.setattr(offline, "collect", collect)
    settings = {
        "control": control, "cells": [["tracks", 5]] if control == "continuous" else [["frames", 1], ["tracks", 5]],
        "folds": 3, "tested_folds": 1, "d_model": 8, "epochs": 2, "encoder": "pooled",
    }  # fmt: skip
    encoders = len(settings["cells"])
    if control == "continuous":
        settings |= {"end_to_end": True, "encoder": "thesis", "features": 16, "encoder_learning_rate": 1e-4}
        settings |= {"curve_weight": 0.1}
        encoders = 0
    tiny = replace(TINY, experiment="offline", settings=settings)
    monkeypatch.setattr(run, "load", lambda *_: tiny)
    events: list[Event] = []
    page = reproduce("tiny", tmp_path / "out", workers=1, progress=events.append)
    cells = len(Offline(**settings).cells)
    assert [event.note for event in events if not event.total] == [
        "20 episodes ready", *(f"encoder {i + 1} of {encoders} ready" for i in range(encoders))
    ]  # fmt: skip
    rows = rows_of(tmp_path / "out")
    assert len(rows) == 2 * cells
    for row in rows:
        assert 1 <= row["epochs"] <= 2
        if control == "discrete":
            assert 0 <= row["accuracy"] <= 1
            assert f"{100 * row['accuracy']:.1f}" in page.read_text()
        else:
            assert row["absolute_error"] ** 2 <= row["squared_error"] + 1e-9
            assert row["training_squared_error"] > 0


def test_steering_alone_is_learned_and_tested(tmp_path: Path):
    """Nothing teaches gas and brake. Losses are the steering's."""
    demonstrations(tmp_path / offline.DATASET, "continuous", tracks=4)
    experiment = Offline("continuous", folds=3, d_model=8, encoder="pooled", epochs=1, steering_alone=True)
    task = PaperTask("LSTM", "lstm", {}, (("split", "tracks"), ("length", 5), ("fold", 0)))
    fold = offline._Fold(experiment, tmp_path, task)
    driver = Driver(experiment._driver_config("lstm", {}))
    before = driver.action_head.out.weight.detach().clone()
    driver, _ = fold.train(driver)
    changed = (driver.action_head.out.weight != before).any(dim=1)
    assert changed.tolist() == [True, False, False]
    prediction, labels = fold.predict(driver, fold.parts.test)
    assert prediction.shape == labels.shape == (len(fold.parts.test) * 5, 1)
    tested = fold.test(driver, fold.parts.test)
    assert tested["loss"] == pytest.approx(tested["squared_error"], rel=1e-6)
    with pytest.raises(ValueError, match="steering_alone needs continuous actions"):
        replace(experiment, control="discrete").check()


@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_curves_weigh_more_in_training_alone(alpha: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A frame weighs exp(alpha |steering|) in the loss that is minimised; the losses that are reported are plain."""
    demonstrations(tmp_path / offline.DATASET, "continuous", tracks=4)
    seen: list[tuple[torch.Tensor, torch.Tensor | None]] = []
    real = ContinuousActionHead.loss

    def spy(prediction: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
        seen.append((target, weight))
        return real(prediction, target, weight)

    monkeypatch.setattr(ContinuousActionHead, "loss", staticmethod(spy))
    experiment = Offline("continuous", folds=3, d_model=8, encoder="pooled", epochs=1, curve_weight=alpha)
    task = PaperTask("LSTM", "lstm", {}, (("split", "tracks"), ("length", 5), ("fold", 0)))
    fold = offline._Fold(experiment, tmp_path, task)
    driver, _ = fold.train(Driver(experiment._driver_config("lstm", {})))
    assert sum(target.shape[0] for target, _ in seen) == len(fold.parts.train)
    for target, weight in seen:
        assert (weight is None) == (alpha == 0)
        if weight is not None:
            np.testing.assert_allclose(weight, np.exp(alpha * np.abs(target[..., 0].numpy())), rtol=1e-6)
    assert any(target[..., 0].abs().max() > 0.05 for target, _ in seen)
    prediction, labels = (tensor.numpy() for tensor in fold.predict(driver, fold.parts.test))
    tested = fold.test(driver, fold.parts.test)
    assert tested == pytest.approx({
        "loss": ((prediction - labels) ** 2).mean(), "squared_error": ((prediction - labels) ** 2)[:, 0].mean(),
        "absolute_error": np.abs(prediction - labels)[:, 0].mean(),
    }, rel=1e-5)  # fmt: skip


def test_a_figure_that_cannot_be_drawn_costs_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = [{"entry": name, "curve": [[1000, [1.0, 2.0]]]} for name in ("lstm", "gru")]
    text = Learning().conclude(tmp_path, rows)
    assert "learning_curves.png" in text

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no font")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", broken)
    with pytest.warns(UserWarning, match="could not be drawn: no font"):
        without = Learning().conclude(tmp_path, rows)
    assert "learning_curves.png" not in without
    assert text.endswith(without)


@pytest.mark.parametrize(
    ("name", "tables"), [(name, tables) for name, tables in TABLES if (PAGES / f"{name}.md").exists()]
)
def test_the_page_of_a_table_is_of_its_protocol(name: str, tables: Tables):
    """The page has the title, source, differences, lines and printed figures of today's protocol."""
    table = load(name, tables.protocols)
    experiment = msgspec.convert(table.settings, tables.experiments[table.experiment])
    headings, *lines = cells((PAGES / f"{name}.md").read_text())
    start = f"# {table.title}\n\n{table.source}.\n\n    {tables.command} {name} --out {name}\n\n"
    page = (PAGES / f"{name}.md").read_text()
    assert page.startswith(start)
    assert f"**What differs from the paper.** {table.differs.strip()}\n\n|" in page
    assert [line[:2] for line in lines] == [[entry.name, f"`{entry.core}`"] for entry in table.entries]
    for entry, line in zip(table.entries, lines, strict=True):
        printed = {heading: text for heading, text in zip(headings, line, strict=True) if heading.endswith(", printed")}
        expected = {
            f"{column.heading}, printed": f"{entry.printed[column.key]:,.{column.digits}f}"
            for column in experiment.columns()
            if column.key in entry.printed
        }
        assert {heading: text for heading, text in printed.items() if text} == expected


def cells(page: str) -> list[list[str]]:
    """The headings and lines of the first table of a page."""
    table = page[page.index("\n| ") + 1 :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in table if not line.startswith("|---")]
