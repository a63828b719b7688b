"""The continuous-time GRU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.ct_gru import CTGRU
from tests.contracts import CoreContract


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def reference(core: CTGRU, x: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """The paper's equations for one sequence, unit by unit and in its order: the traces decay at the end of step k,
    over the time gaps[k] until the next event. x (T, F) -> h (T, d), each before that decay."""
    d, taus = core.output_size, 0.02 * 10.0 ** (0.5 * np.arange(core.num_scales))
    w, b = core.input.weight.detach().numpy(), core.input.bias.detach().numpy()
    u, u_q = core.scales.weight.detach().numpy(), core.event.weight.detach().numpy()
    traces, outputs = np.zeros((d, len(taus))), []
    for frame, gap in zip(x, gaps, strict=True):
        h = traces.sum(axis=1)
        wanted = (w @ frame + b)[: 2 * d] + u @ h
        signal = (w @ frame + b)[2 * d :]
        read = np.array([softmax(-((wanted[i] - np.log(taus)) ** 2)) @ traces[i] for i in range(d)])
        q = np.tanh(signal + u_q @ read)
        for i in range(d):
            storage = softmax(-((wanted[d + i] - np.log(taus)) ** 2))
            traces[i] = (1 - storage) * traces[i] + storage * q[i]
        outputs.append(traces.sum(axis=1))
        traces = traces * np.exp(-gap / taus)
    return np.array(outputs)


class TestCTGRU(CoreContract):
    def make_core(self) -> Core:
        return CTGRU(5, 8)

    def test_equals_the_papers_equations_written_unit_by_unit(self) -> None:
        torch.manual_seed(0)
        core = CTGRU(5, 8).double()
        x, dt = torch.randn(1, 12, 5, dtype=torch.float64), torch.rand(1, 12, dtype=torch.float64)
        with torch.no_grad():
            y, _ = core(x, dt, core.initial_state(1))
        gaps = np.append(dt[0, 1:].numpy(), 0.0)
        np.testing.assert_allclose(y[0].numpy(), reference(core, x[0].numpy(), gaps), atol=1e-6)  # float32 scales

    def test_what_is_stored_at_a_scale_decays_with_it(self) -> None:
        torch.manual_seed(0)
        core = CTGRU(5, 8).double()
        with torch.no_grad():
            for parameter in core.parameters():
                parameter.zero_()
            core.input.bias[8:16] = 1e3 + np.log(0.2)  # beyond the longest scale: events go there and nowhere else
            x = torch.zeros(1, 1, 5, dtype=torch.float64)
            traces = torch.ones(1, 7, 8, dtype=torch.float64)
            _, (after,) = core(x, torch.tensor([[0.2]], dtype=torch.float64), (traces,))
        taus = 0.02 * 10.0 ** (0.5 * np.arange(7))
        expected = np.exp(-0.2 / taus)
        expected[-1] = 0.0  # overwritten by q = tanh(0)
        np.testing.assert_allclose(after[0].numpy(), np.repeat(expected[:, None], 8, axis=1), atol=1e-6)

    def test_after_very_long_nothing_is_remembered(self) -> None:
        torch.manual_seed(0)
        core = CTGRU(5, 8)
        x = torch.randn(1, 1, 5)
        fresh, _ = core(x, torch.zeros(1, 1), core.initial_state(1))
        late, _ = core(x, torch.full((1, 1), 1e4), (torch.ones(1, 7, 8),))
        torch.testing.assert_close(late, fresh)

    def test_bad_num_scales_are_named(self) -> None:
        with pytest.raises(ValueError, match="num_scales: must be at least 2 time scales to choose from, got 1"):
            CTGRU(5, 8, num_scales=1)
