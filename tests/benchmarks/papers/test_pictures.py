"""Figures of networks, and their numbers computed again."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from drawings import Seen, draw_maps
from learning_curves import LearningCurves
from matplotlib.figure import Figure
from pictures import EPISODES, PICTURES, Pictures

from nac_drive.analysis.cells import COUPLING, SIGNALS
from nac_drive.experiments.cloning import DATASET
from nac_drive.experiments.offline import DATASET as RECORDED
from nac_drive.experiments.paper import PaperTask, Row, require_numbers
from nac_drive.policies import load_driver
from tests.nac_drive.small import FRAMES, ZOOM, demonstrations, short_zoom
from tests.readers_shell import cut_episodes

pytestmark = pytest.mark.slow
ENTRIES = {"NAC-Steady": ("nac-steady", {"num_heads": 2}), "NCP": ("ncp", {})}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Pictures, dict[str, Row]]:
    """A folder of two networks, and their rows."""
    folder = tmp_path_factory.mktemp("pictures")
    with pytest.MonkeyPatch.context() as patch, short_zoom():
        cut_episodes(patch)(FRAMES, FRAMES)
        patch.setattr("drawings.MAPS", 4)
        demonstrations(folder / DATASET, "continuous")
        small = {"episodes": 3, "epochs": 1, "tracks": "test-1", "validation_tracks": "val-1", "seen_tracks": "val-1"}
        experiment = Pictures(**small, pictures=list(PICTURES), sequence_length=16)
        rows = {}
        for name, (core, args) in ENTRIES.items():
            task = PaperTask(name, core, args, (("run", 0),))
            row = experiment.measure(folder, task)
            require_numbers(json.loads(json.dumps(row, allow_nan=False)), experiment, task)
            rows[name] = {"entry": name, "run": 0, **row}
        page = experiment.conclude(folder, list(rows.values()))
    files = [line.split("(")[1].rstrip(")") for line in page.splitlines() if line]
    assert files == [
        "cells-NAC-Steady.png", "saliency.png", "noise.png", "steepness.png", "components.png", "maps-NAC-Steady.png",
        "maps-NCP.png",
    ]  # fmt: skip
    assert all((folder / file).stat().st_size > 1000 for file in files)
    return folder, experiment, rows


@pytest.mark.slow
def test_numbers_are_those_of_the_drawn_episode(drawn: tuple[Path, Pictures, dict[str, Row]]):
    folder, _, rows = drawn
    for name, row in rows.items():
        with np.load(folder / EPISODES / f"{name}.npz", allow_pickle=False) as arrays:
            group = "v" if name == "NCP" else "output"
            activity = arrays[f"activity/{group}"][ZOOM:].astype(float)
            eigenvalues = np.linalg.eigvalsh(np.cov(activity.T))[::-1]
            assert row["first_component"] == pytest.approx(eigenvalues[0] / eigenvalues.sum(), rel=1e-4)
            assert row["components"][:3] == pytest.approx((eigenvalues / eigenvalues.sum())[:3].tolist(), rel=1e-3)
            assert row["steepest_of_all"] == pytest.approx(np.abs(np.diff(activity, axis=0)).max(), rel=1e-5)
            assert row["Grad-CAM_far road"] == pytest.approx(arrays["series/Grad-CAM on far road"][ZOOM:].mean())
            assert ("tau_low" in row) == (f"activity/{COUPLING}" in arrays.files) == (name == "NCP")
            assert ("omega_left_or_right" in row) <= all(f"signals/{signal}" in arrays.files for signal in SIGNALS)
    ncp = rows["NCP"]
    assert 0 < ncp["tau_low"] < ncp["tau_high"]


def test_more_noise_leaves_less_of_the_saliency(drawn: tuple[Path, Pictures, dict[str, Row]]):
    for row in drawn[2].values():
        assert 1 > row["similarity_1"] > row["similarity_3"] > 0


def test_an_episode_is_drawn_without_its_zoom(drawn: tuple[Path, Pictures, dict[str, Row]]):
    folder, experiment, rows = drawn
    with short_zoom():
        seen = Seen.read(folder / EPISODES / "NCP.npz", rows["NCP"])
    assert len(seen.arrays["frames"]) == len(seen.arrays["position"]) == FRAMES - ZOOM
    best = load_driver(experiment.run_folder(folder, PaperTask("NCP", "ncp", {}, (("run", 0),))))
    assert seen.arrays["activity/v"].shape[1] == best.core.neurons
    assert not seen.has("phi")


@pytest.mark.slow
def test_no_title_of_a_neuron_hides_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    figures: list[Figure] = []
    monkeypatch.setattr("drawings.write_figure", lambda path, figure: figures.append(figure))
    generator = np.random.default_rng(0)
    activity = {f"activity/{group}": generator.random((50, 21)) for group in ("v", COUPLING)}
    draw_maps(tmp_path / "maps.png", {"NCP": Seen({"position": generator.random((50, 2)), **activity}, {})})
    (figure,) = figures
    figure.draw_without_rendering()
    titles = [axis.title.get_window_extent() for axis in figure.axes if axis.get_title()]
    assert len(titles) == 2 * 21
    assert not any(one.overlaps(other) for one, other in combinations(titles, 2))
    assert all(title.x0 >= 0 and title.x1 <= figure.bbox.x1 for title in titles)


def test_training_stops_where_the_validation_loss_is_least(tmp_path: Path):
    experiment = LearningCurves(
        control="continuous", episodes=4, folds=4, tested_folds=1, cells=[("tracks", 16)], end_to_end=True,
        encoder="pooled", learning_rate=3e-3, epochs=4, patience=4, ema_decay=0.0, precision="32-true",
    )  # fmt: skip
    torch.set_num_threads(1)
    task = PaperTask("LSTM", "lstm", {}, experiment.places()[0])
    with short_zoom():
        demonstrations(tmp_path / RECORDED, "continuous", tracks=4)
        row = experiment.measure(tmp_path, task)
    require_numbers(json.loads(json.dumps(row, allow_nan=False)), experiment, task)
    assert len(row["training_curve"]) == len(row["stopping_curve"]) == row["epochs"] == 4
    assert row["loss_at_stop"] == min(row["stopping_curve"]) == row["stopping_curve"][row["stopping_epoch"] - 1]
    assert row["training_curve"][-1] < row["training_curve"][0]
    page = experiment.conclude(tmp_path, [{"entry": "LSTM", **row}])
    assert page.startswith("![learning curves](thesis-6.3.png)")
    assert (tmp_path / "thesis-6.3.png").stat().st_size > 1000
