"""The cross-validated test, piece by piece: streams, stopping, averages, parts and columns have exact answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from nac_drive.experiments import offline
from nac_drive.experiments.offline import Offline, _Fold
from nac_drive.experiments.paper import PaperTask
from nac_drive.policies import Driver
from nac_drive.training.optimizer import adam
from tests.nac_drive.small import demonstrations

SETTINGS: dict[str, Any] = {"folds": 3, "d_model": 8, "encoder": "pooled", "precision": "32-true"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("passive")
    demonstrations(folder / offline.DATASET, tracks=4)
    return folder


def task(core: str = "lstm", split: str = "tracks", length: int = 4, fold: int = 0) -> PaperTask:
    return PaperTask("LSTM", core, {}, (("split", split), ("length", length), ("fold", fold)))


def fold_of(folder: Path, experiment: Offline, **place: Any) -> _Fold:
    return _Fold(experiment, folder, task(**place))


def driver_of(experiment: Offline, core: str = "lstm") -> Driver:
    torch.manual_seed(0)
    return Driver(experiment._driver_config(core, {}))


@pytest.mark.parametrize("core", ["lstm", "cfc"])
def test_a_test_streams_over_whole_episodes_and_begins_each_anew(folder: Path, core: str):
    experiment = Offline(**SETTINGS)
    fold, driver = fold_of(folder, experiment), driver_of(experiment, core).eval()
    frames = offline._load(folder)
    starts = np.concatenate((fold.parts.test, fold.parts.stop))  # several episodes
    prediction, labels = fold.predict(driver, starts)
    expected, truth = [], []
    for episode in np.unique(np.searchsorted(frames.offsets, starts, side="right")):
        mine = [start for start in starts if np.searchsorted(frames.offsets, start, side="right") == episode]
        rows = slice(mine[0], mine[-1] + 4)
        with torch.no_grad():
            whole, _ = driver(torch.from_numpy(frames.frames[rows])[None], torch.from_numpy(frames.dt[rows])[None])
        expected.append((mine[0], whole[0]))
        truth.append((mine[0], frames.labels[rows]))
    order = sorted(range(len(expected)), key=lambda i: list(starts).index(expected[i][0]))
    torch.testing.assert_close(prediction, torch.cat([expected[i][1] for i in order]), atol=1e-5, rtol=1e-5)
    np.testing.assert_array_equal(labels, np.concatenate([truth[i][1] for i in order]))


def test_single_frames_are_seen_without_a_memory(folder: Path):
    experiment = Offline(**SETTINGS)
    fold, driver = fold_of(folder, experiment, split="frames", length=1), driver_of(experiment).eval()
    frames = offline._load(folder)
    prediction, _ = fold.predict(driver, fold.parts.test)
    for row, start in enumerate(fold.parts.test[:5]):
        frame, dt = torch.from_numpy(frames.frames[[start]]), torch.from_numpy(frames.dt[[start]])
        with torch.no_grad():
            alone, _ = driver(frame[None], dt[None])
        torch.testing.assert_close(prediction[row], alone[0, 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("losses", "patience", "epochs", "best"),
    [
        ([5.0, 4.0, 3.0, 2.0], 2, 4, 3),  # it ends with the last epoch
        ([5.0, 3.0, 3.0, 4.0, 1.0, 0.0], 2, 4, 1),  # an equal loss is no progress
        ([5.0, 6.0, 4.0, 6.0, 6.0, 0.0], 2, 5, 2),  # progress begins the count anew
        ([5.0, 6.0, 6.0, 6.0], 1, 2, 0),
    ],
)
def test_a_run_stops_without_progress_and_its_best_average_is_tested(
    folder: Path, monkeypatch: pytest.MonkeyPatch, losses: list[float], patience: int, epochs: int, best: int
):
    experiment = Offline(**SETTINGS, epochs=len(losses), patience=patience, ema_decay=0.9, frames_per_update=4)
    fold, driver = fold_of(folder, experiment), driver_of(experiment)
    averages: list[dict[str, torch.Tensor]] = []
    learners: list[dict[str, torch.Tensor]] = []
    real = _Fold.predict

    def predict(self: _Fold, tested: Driver, starts: np.ndarray) -> Any:
        assert starts is fold.parts.stop
        averages.append({name: tensor.clone() for name, tensor in tested.state_dict().items()})
        learners.append({name: tensor.clone() for name, tensor in driver.state_dict().items()})
        return real(self, tested, starts)

    scripted = iter(losses)
    monkeypatch.setattr(_Fold, "predict", predict)
    monkeypatch.setattr(_Fold, "_loss", lambda *_: next(scripted))
    trained, count = fold.train(driver)
    assert count == len(averages) == epochs
    chosen = trained.state_dict()
    assert all(torch.equal(chosen[name], averages[best][name]) for name in chosen)
    weight = "action_head.out.weight"
    assert not torch.equal(averages[0][weight], learners[0][weight]), "an average of the weights, not the weights"
    assert not torch.equal(averages[0][weight], averages[1][weight])


@pytest.mark.parametrize("encoder_rate", [None, 1e-5])
def test_the_rates_are_those_of_the_settings(folder: Path, monkeypatch: pytest.MonkeyPatch, encoder_rate: float | None):
    seen: list[Any] = []

    def spy(driver: Driver, *rates: Any) -> torch.optim.Adam:
        seen.append(rates)
        return adam(driver, *rates)

    monkeypatch.setattr(offline, "adam", spy)
    experiment = Offline(**SETTINGS, epochs=1, learning_rate=3e-3, encoder_learning_rate=encoder_rate)
    fold_of(folder, experiment).train(driver_of(experiment))
    assert seen == [(3e-3, encoder_rate)]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_the_precision_is_that_of_the_settings(folder: Path, precision: Any):
    with fold_of(folder, Offline(**{**SETTINGS, "precision": precision}))._autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == (
            torch.float32 if precision == "32-true" else torch.bfloat16
        )


@pytest.mark.parametrize("end_to_end", [False, True])
def test_a_row_tests_the_trained_driver_on_the_test_part_and_on_the_training_part(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end_to_end: bool
):
    experiment = Offline(**SETTINGS, end_to_end=end_to_end)
    (tmp_path / offline.DATASET).symlink_to(folder / offline.DATASET)
    (tmp_path / offline.TRAINED_ENCODERS).mkdir()
    other = driver_of(experiment, "cnn").encoder.state_dict()
    shared = {name: (tensor + 1.0).contiguous() for name, tensor in other.items()}
    save_file(shared, tmp_path / offline.TRAINED_ENCODERS / "tracks-2.safetensors")
    begun: list[Driver] = []

    def train(self: _Fold, driver: Driver) -> tuple[Driver, int]:
        begun.append(driver)
        return Driver(driver.config), 7

    def test(self: _Fold, driver: Driver, starts: np.ndarray) -> dict[str, float]:
        assert driver is not begun[0]
        names = [name for name in ("train", "stop", "test") if getattr(self.parts, name) is starts]
        return {"loss": {"train": 1.0, "test": 2.0}[names[0]]}

    monkeypatch.setattr(_Fold, "train", train)
    monkeypatch.setattr(_Fold, "test", test)
    row = experiment.measure(tmp_path, task(fold=2))
    assert row == {"epochs": 7, "loss": 2.0, "training_loss": 1.0}
    torch.manual_seed(2)
    fresh, weights = Driver(experiment._driver_config("lstm", {})).state_dict(), begun[0].state_dict()
    for name, tensor in weights.items():
        encoder = name.removeprefix("encoder.")
        expected = shared[encoder] if name.startswith("encoder.") and not end_to_end else fresh[name]
        assert torch.equal(tensor, expected), name


def test_the_encoder_of_a_fold_learns_with_dropout_and_without_memory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / offline.DATASET).symlink_to(folder / offline.DATASET)
    (tmp_path / offline.TRAINED_ENCODERS).mkdir()
    trained: list[Driver] = []

    def train(self: _Fold, driver: Driver) -> tuple[Driver, int]:
        trained.append(driver)
        return driver, 1

    monkeypatch.setattr(_Fold, "train", train)
    experiment = Offline(**SETTINGS)
    for fold in (0, 1):
        offline._train_encoder(experiment, tmp_path, experiment._encoder_task("tracks", fold))
        torch.manual_seed(fold)
        assert torch.equal(trained[fold].encoder.get_parameter("dense.weight"), Driver(
            trained[fold].config
        ).encoder.get_parameter("dense.weight"))  # fmt: skip
    config = trained[0].config
    assert (config.core, config.encoder, config.d_model, config.dropout) == ("cnn", "pooled", 8, 0.2)
    features = offline._features(experiment, tmp_path, tmp_path / offline.TRAINED_ENCODERS / "tracks-1.safetensors")
    with torch.no_grad():
        expected = trained[1].eval().encoder(torch.from_numpy(offline._load(folder).frames))
    torch.testing.assert_close(features, expected, atol=1e-6, rtol=1e-5)


def test_every_column_shows_its_number():
    discrete, continuous = Offline(cells=[("tracks", 4)]), Offline("continuous", cells=[("tracks", 4)])
    row = {
        "split": "tracks", "length": 4, "accuracy": 0.75, "macro_f1": 0.5, "squared_error": 0.02,
        "training_squared_error": 0.01, "absolute_error": 0.3,
    }  # fmt: skip
    other = {**dict.fromkeys(row, 9.0), "split": "frames", "length": 4}
    shown = {
        column.key: column.values([row, other]).tolist() for each in (discrete, continuous) for column in each.columns()
    }
    assert shown == {
        "accuracy_tracks_4": [75.0], "f1_tracks_4": [50.0], "training_tracks_4": [1.0], "test_tracks_4": [2.0],
        "absolute_tracks_4": [30.0],
    }  # fmt: skip
