"""Decay, schedule and clipping as torch has them, and patience."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from nac_drive.policies import Driver, DriverConfig
from nac_drive.training import train as module
from nac_drive.training import trainer
from nac_drive.training.offline import Accuracy
from nac_drive.training.optimizer import adam
from tests.nac_drive.small import Stop, config, dagger_config, results, rows, score_of_weights, stop_at, train

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(("kind", "decay"), [(torch.optim.Adam, 0.0), (torch.optim.AdamW, 0.1)])
def test_updates_are_those_of_torch_bit_for_bit(kind: Any, decay: float):
    torch.manual_seed(0)
    driver = Driver(DriverConfig("rnn", encoder="pooled", d_model=8, dense=8))
    twin = Driver(driver.config)
    twin.load_state_dict(driver.state_dict())
    optimizer = adam(driver, 0.01, weight_decay=decay)
    other = kind(twin.parameters(), 0.01, weight_decay=decay)
    before = torch.cat([weights.detach().flatten() for weights in driver.parameters()])
    for _ in range(3):
        for weights, same in zip(driver.parameters(), twin.parameters(), strict=True):
            weights.grad = torch.randn(weights.shape)
            same.grad = weights.grad.clone()
        optimizer.step()
        other.step()
    for weights, same in zip(driver.parameters(), twin.parameters(), strict=True):
        assert torch.equal(weights, same)
    assert not torch.equal(before, torch.cat([weights.detach().flatten() for weights in driver.parameters()]))


def test_the_encoder_with_a_rate_of_its_own_decays_too():
    torch.manual_seed(0)
    driver = Driver(DriverConfig("rnn", d_model=8, dense=8, frame_shape=(32, 36, 3)))
    optimizer = adam(driver, 0.01, 0.001, weight_decay=0.1)
    before = {name: weights.detach().clone() for name, weights in driver.named_parameters()}
    for weights in driver.parameters():
        weights.grad = torch.zeros_like(weights)
    optimizer.step()
    for name, weights in driver.named_parameters():  # without a gradient, Adam's own part is nothing
        rate = 0.001 if name.startswith("encoder.") else 0.01
        torch.testing.assert_close(weights.detach(), before[name] * (1 - rate * 0.1))


@pytest.mark.parametrize(("schedule", "warmup"), [("cosine", 3), ("cosine", 0), ("constant", 3), ("constant", 0)])
def test_the_rate_is_that_of_torchs_schedulers_composed(schedule: str, warmup: int):
    epochs, updates = 8, 5
    settings = config(schedule=schedule, warmup_epochs=warmup, epochs=epochs, learning_rate=0.02)
    settings.check()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.02)
    steps, total = warmup * updates, epochs * updates
    after = CosineAnnealingLR(optimizer, total - steps) if schedule == "cosine" else LinearLR(optimizer, 1.0, 1.0)
    parts: list[Any] = [after]
    if warmup:
        parts = [LinearLR(optimizer, 1e-15, 1.0, total_iters=steps), after]
    composed = SequentialLR(optimizer, parts, [steps] * (len(parts) - 1))
    for update in range(total):
        assert settings.rate(update / updates) == pytest.approx(composed.get_last_lr()[0], rel=1e-9, abs=1e-15)
        optimizer.step()
        composed.step()
    assert settings.rate(epochs) == pytest.approx(0.0 if schedule == "cosine" else 0.02, abs=1e-15)


def seen_by_adam(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, list[torch.Tensor]]]:
    """Rate and gradients of every update from now on."""
    noted: list[tuple[float, list[torch.Tensor]]] = []
    step = torch.optim.AdamW.step

    def note(self: Any, *arguments: Any, **keywords: Any) -> Any:
        group = self.param_groups[0]
        gradients = [weights.grad.clone() for weights in group["params"] if weights.grad is not None]
        noted.append((group["lr"], gradients))
        return step(self, *arguments, **keywords)

    monkeypatch.setattr(torch.optim.AdamW, "step", note)
    return noted


def test_every_update_has_its_rate(dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trainer, "closed_loop", score_of_weights)
    settings = config("cnn", schedule="cosine", warmup_epochs=1, epochs=3)
    updates = seen_by_adam(monkeypatch)
    train(settings, dataset, tmp_path / "run")
    counts = [-(-row["frames"] // 16 // 2) for row in rows(tmp_path / "run")]  # pairs of sequences of 16 frames
    assert len(updates) == sum(counts) > 6
    expected = [settings.rate(epoch + done / count) for epoch, count in enumerate(counts) for done in range(count)]
    assert [rate for rate, _ in updates] == expected
    assert (expected[0], max(expected)) == (0.0, expected[counts[0]]) == (0.0, 1e-3)


def test_gradients_are_clipped_as_torch_clips_them(dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trainer, "closed_loop", score_of_weights)
    updates = seen_by_adam(monkeypatch)
    firsts = []
    for name, norm in (("free", None), ("clipped", 1e-3), ("loose", 1e6)):
        updates.clear()
        train(config("cnn", max_grad_norm=norm, epochs=1), dataset, tmp_path / name)
        firsts.append([*updates[0][1]])
        norms = [torch.cat([gradient.flatten() for gradient in gradients]).norm() for _, gradients in updates]
        if name == "clipped":
            assert max(norms) <= 1e-3 * (1 + 1e-5)
    free, clipped, loose = firsts
    weights = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in free]
    for weight, gradient in zip(weights, free, strict=True):
        weight.grad = gradient.clone()
    assert torch.nn.utils.clip_grad_norm_(weights, 1e-3) > 1e-2
    for weight, gradient, same, untouched in zip(weights, clipped, loose, free, strict=True):
        assert torch.equal(weight.grad, gradient)  # type: ignore[arg-type]
        assert torch.equal(same, untouched)


def measured(run: Path, values: list[float], error: bool = False) -> Any:
    """Replace `offline_accuracy`: epoch e measures `values[e - 1]`."""

    def measure(*_: Any) -> Accuracy:
        value = values[len(rows(run)) if (run / "metrics.jsonl").exists() else 0]
        return Accuracy(0.5, None, None, steering_mse=value) if error else Accuracy(value, 0.5, 0.5)

    return measure


@pytest.mark.parametrize(
    ("patience", "values", "last", "best"),
    [
        pytest.param(
            2, [0.5, 0.6, 0.6, 0.5, 0.9, 1.0], 4, 2, marks=pytest.mark.slow
        ),  # an equal accuracy is no progress
        (2, [0.5, 0.4, 0.6, 0.5, 0.7, 0.8], 6, 6),  # progress begins the count anew
        (1, [0.5, 0.5, 0.9, 0.9, 0.9, 0.9], 2, 1),
        pytest.param(9, [0.5, 0.4, 0.3, 0.2, 0.1, 0.0], 6, 1, marks=pytest.mark.slow),
    ],
)
def test_a_run_stops_after_epochs_without_progress(
    patience: int, values: list[float], last: int, best: int, dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings = config("cnn", patience=patience, epochs=6, validate_every=6)
    driven = []

    def closed_loop(driver: Any, *_: Any) -> dict[str, Any]:
        driven.append(driver)
        return score_of_weights(driver)

    monkeypatch.setattr(trainer, "closed_loop", closed_loop)
    run, events = tmp_path / "run", []
    monkeypatch.setattr(module, "offline_accuracy", measured(run, values))
    train(settings, dataset, run, progress=events.append)
    written = rows(run)
    assert [row["step"] for row in written] == [*range(1, last + 1)]
    assert [row["score"] for row in written] == values[:last]
    assert results(run)["best"] == best
    assert ["returns" in row for row in written] == [*[False] * (last - 1), True]  # the last epoch alone is driven
    assert len(driven) == 1
    stopped = [event.note for event in events if "no progress" in event.note]
    assert stopped == ([f"no progress for {patience} epochs: the run stops"] if last < 6 else [])

    resumed = tmp_path / "resumed"
    monkeypatch.setattr(module, "offline_accuracy", measured(resumed, values))
    with pytest.raises(Stop):  # in the middle of the last epoch
        train(settings, dataset, resumed, progress=stop_at(1, "train (cnn)", after=last - 1))
    assert len(rows(resumed)) == last - 1
    train(settings, dataset, resumed, resume=True)
    assert results(resumed) == results(run)
    train(settings, dataset, resumed, resume=True)  # nothing is left to do
    if last < 6:
        train(replace(settings, epochs=9), dataset, resumed, resume=True)  # nor with more epochs
    assert results(resumed) == results(run)


def test_with_continuous_actions_the_error_of_the_steering_counts(
    continuous, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(trainer, "closed_loop", score_of_weights)
    errors = [0.3, 0.1, 0.2, 0.2, 0.0]
    monkeypatch.setattr(module, "offline_accuracy", measured(tmp_path / "run", errors, error=True))
    train(config("cnn", control="continuous", patience=2, epochs=5), continuous, tmp_path / "run")
    assert [row["score"] for row in rows(tmp_path / "run")] == [-0.3, -0.1, -0.2, -0.2]
    assert results(tmp_path / "run")["best"] == 2


def test_patience_needs_labels(dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "counted", lambda frames: SimpleNamespace(any=lambda: False))
    with pytest.raises(ValueError, match="patience: no frame of the validation tracks has a label"):
        train(config("cnn", patience=1), dataset, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"weight_decay": -0.1}, r"weight_decay must lie in \[0, 1\], got -0.1"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be positive and finite, got 0"),
        ({"schedule": "linear"}, "schedule must be one of constant, cosine, got 'linear'"),
        ({"warmup_epochs": -1}, "warmup_epochs must be at least 0, got -1"),
        ({"warmup_epochs": 3}, "warmup_epochs must be less than the 3 epochs, got 3"),
        ({"patience": 0}, "patience must be at least 1, got 0"),
        ({"patience": 2, "validation_fraction": 0.0}, "validation_fraction must be above 0 with patience"),
    ],
)
def test_bad_settings_are_named(changed: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        config(**changed).check()


@pytest.mark.parametrize("changed", [{"schedule": "cosine"}, {"warmup_epochs": 1}, {"patience": 2}])
def test_dagger_has_rates_and_epochs_of_its_own(changed: dict[str, Any]):
    with pytest.raises(ValueError, match=f"{next(iter(changed))} must be left out in dagger"):
        dagger_config(**changed).check()
    dagger_config(weight_decay=0.01, max_grad_norm=1.0).check()
