"""The time constants that benchmarks/papers/interpretability.py prints."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from interpretability import time_constants

import nac_drive as nd

DECISIONS = 60
"""More than the zoom-in has frames."""


def printed(core: str, capsys: pytest.CaptureFixture[str], neurons: int) -> tuple[nd.Driver, list[float]]:
    """Return a fresh driver, and the numbers printed for it."""
    torch.manual_seed(0)
    driver = nd.Driver(nd.DriverConfig(core=core, control="continuous"))
    rng = np.random.default_rng(0)
    episode: Any = SimpleNamespace(
        frames=rng.integers(256, size=(DECISIONS, 96, 96, 3), dtype=np.uint8),
        activity={"v": rng.normal(size=(DECISIONS, neurons)).astype(np.float32)},
    )
    time_constants(driver, [episode])
    return driver, [float(number) for number in re.findall(r"\d+\.?\d*", capsys.readouterr().out)]


def test_a_liquid_core_stays_between_the_bounds_of_lemma_8(capsys: pytest.CaptureFixture[str]) -> None:
    driver, (neurons, lowest, highest, spread, most) = printed("ncp", capsys, 21)
    network: Any = driver.core.network
    slowest = F.softplus(network.capacitance) / F.softplus(network.conductance)  # no synapse conducts
    assert neurons == 21
    assert 0.0 < lowest < highest <= slowest.max()
    assert 1.0 < spread < most


def test_a_ct_rnn_has_the_constants_that_it_learned(capsys: pytest.CaptureFixture[str]) -> None:
    driver, numbers = printed("ct-rnn", capsys, 64)
    core: Any = driver.core
    tau = core.log_tau.exp()
    assert numbers == pytest.approx([64, tau.min().item(), tau.max().item()], abs=5e-4)


def test_a_core_without_such_constants_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed("lstm", capsys, 64)[1] == []
