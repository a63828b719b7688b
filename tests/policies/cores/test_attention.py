"""Attention over the last frames, against torch's own, prefix sums, exact softmax and formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nac_drive.policies.cores.attention import (
    KernelAttention,
    LinearAttention,
    Performer,
    ReLUAttention,
    SoftmaxAttention,
    orthogonal_gaussians,
)
from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.registry import build_core
from nac_drive.policies.cores.window import split_heads
from tests.contracts import CoreContract


class TestAttention(CoreContract):
    def make_core(self) -> Core:
        return SoftmaxAttention(5, 8, num_heads=1, window=6)


class TestMHA(CoreContract):
    def make_core(self) -> Core:
        return SoftmaxAttention(5, 8, num_heads=2, window=6)


class TestReLUAttention(CoreContract):
    def make_core(self) -> Core:
        return ReLUAttention(5, 8, num_heads=2, window=6)


class TestReLUAttentionOfOneHead(CoreContract):
    def make_core(self) -> Core:
        return ReLUAttention(5, 8, num_heads=1, window=6)


class TestLinearAttention(CoreContract):
    def make_core(self) -> Core:
        return LinearAttention(5, 8, num_heads=2, window=6)


class TestPerformer(CoreContract):
    def make_core(self) -> Core:
        return Performer(5, 8, num_heads=2, window=6, num_features=16)


def run(core: Core, x: Tensor) -> Tensor:
    y, _ = core(x, torch.full(x.shape[:2], 0.02, dtype=x.dtype), core.initial_state(len(x)))
    return y


def position_mask(core: KernelAttention, length: int) -> Tensor:
    """The terms that window and slopes add to the scores of a sequence from its start: (H, T, T)."""
    behind = torch.arange(length)[:, None] - torch.arange(length)
    bias = -core.slope.detach()[:, None, None] * behind
    return bias.masked_fill((behind < 0) | (behind >= core.window), -torch.inf)


@pytest.mark.parametrize("num_heads", [1, 2])
def test_softmax_attention_equals_torch_on_copied_weights(num_heads: int) -> None:
    torch.manual_seed(0)
    ours = SoftmaxAttention(8, 8, num_heads=num_heads, window=4)
    theirs = torch.nn.MultiheadAttention(8, num_heads, batch_first=True)
    with torch.no_grad():
        ours.slope.uniform_(-1.0, 1.0)
        theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.kv.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.kv.bias]))
        theirs.out_proj.load_state_dict(ours.output.state_dict())
    x = torch.randn(3, 11, 8)
    expected, _ = theirs(x, x, x, attn_mask=position_mask(ours, 11).repeat(3, 1, 1))
    torch.testing.assert_close(run(ours, x), expected, atol=1e-6, rtol=1e-5)


def test_linear_attention_equals_differences_of_prefix_sums() -> None:
    torch.manual_seed(0)
    core = LinearAttention(5, 8, num_heads=2, window=4).double()
    x = torch.randn(3, 11, 5, dtype=torch.float64)
    q, k, v = (split_heads(side, 2) for side in (core.query(x), *core.kv(x).chunk(2, dim=2)))
    f_q, f_k = F.elu(q) + 1.0, F.elu(k) + 1.0
    decay = core.slope[:, None, None] * torch.arange(11)[:, None]  # (H, T, 1)
    f_q, f_k = f_q * torch.exp(-decay), f_k * torch.exp(decay)

    def in_window(terms: Tensor) -> Tensor:
        """The sum over the last `window` steps (axis 2) as the difference of two sums from the start."""
        total = terms.cumsum(dim=2)
        return total - F.pad(total, (0, 0) * (total.dim() - 3) + (core.window, 0))[:, :, : total.shape[2]]

    outer = in_window(f_k.unsqueeze(4) * v.unsqueeze(3))  # (B, H, T, D, D)
    mixed = (f_q.unsqueeze(3) @ outer).squeeze(3) / (f_q * in_window(f_k)).sum(dim=3, keepdim=True)
    expected = core.output(mixed.transpose(1, 2).flatten(2))
    torch.testing.assert_close(run(core, x), expected, atol=1e-12, rtol=1e-10)


def test_the_linear_kernel_keeps_its_precision_far_below_zero() -> None:
    core = LinearAttention(5, 8, num_heads=2)
    q = torch.full((1, 1, 1, 4), -30.0)
    torch.testing.assert_close(core.log_kernel(q, q).exp(), 4.0 * torch.tensor(-60.0).exp().view(1, 1, 1, 1))


def test_performer_approaches_softmax_attention_as_features_grow() -> None:
    torch.manual_seed(0)
    exact = SoftmaxAttention(5, 8, num_heads=2, window=6)
    x = 0.5 * torch.randn(3, 11, 5)  # the variance of the estimate grows exponentially with |q + k|^2
    errors = []
    for num_features in (16, 256, 4096):
        squares = []
        for seed in range(5):
            performer = Performer(5, 8, num_heads=2, window=6, num_features=num_features, seed=seed)
            performer.load_state_dict({**exact.state_dict(), "features": performer.features})
            squares.append((run(performer, x) - run(exact, x)).square().mean())
        errors.append(torch.stack(squares).mean().sqrt().item())
    assert errors[1] < 0.5 * errors[0]  # a quarter is expected
    assert errors[2] < 0.5 * errors[1]
    assert errors[2] < 0.003


def test_random_features_estimate_the_softmax_kernel_without_bias() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(1, 1, 7, 4), torch.randn(1, 1, 9, 4)
    estimates = []
    for seed in range(400):
        core = Performer(5, 8, num_heads=2, num_features=8, seed=seed)
        core.features = core.features.double()
        f_q, scale_q = core._project(q.double())
        f_k, scale_k = core._project(k.double())
        estimates.append((f_q @ f_k.transpose(2, 3)) * torch.exp(scale_q + scale_k.transpose(2, 3)) / 8)
    estimate = torch.stack(estimates)
    expected = torch.exp(q @ k.transpose(2, 3) / 2.0).double()
    off = (estimate.mean(dim=0) - expected) / (estimate.std(dim=0) / 20.0)  # in standard errors
    assert off.abs().max() < 5.0


def test_random_directions_are_orthogonal_in_blocks_with_the_lengths_of_gaussians() -> None:
    directions = orthogonal_gaussians(4000, 8, seed=3)
    gram = directions[:8] @ directions[:8].t()
    torch.testing.assert_close(gram, torch.diag(gram.diagonal()), atol=1e-5, rtol=0.0)
    assert directions.square().sum(dim=1).mean().item() == pytest.approx(8.0, rel=0.05)
    assert directions.mean(dim=0).abs().max() < 0.08  # five standard errors
    assert torch.equal(directions, orthogonal_gaussians(4000, 8, seed=3))
    assert not torch.equal(directions, orthogonal_gaussians(4000, 8, seed=4))


@pytest.fixture(params=[SoftmaxAttention, LinearAttention, Performer])
def core(request: pytest.FixtureRequest) -> KernelAttention:
    torch.manual_seed(0)
    return request.param(5, 8, num_heads=2, window=4)


def test_the_order_of_the_past_counts_through_the_slopes_alone(core: KernelAttention) -> None:
    x = torch.randn(1, 4, 5)
    swapped = x[:, [1, 0, 2, 3]]
    assert (run(core, x) - run(core, swapped))[:, 3].abs().max() > 1e-4
    with torch.no_grad():
        core.slope.zero_()
    torch.testing.assert_close(run(core, x)[:, 3], run(core, swapped)[:, 3], atol=1e-6, rtol=1e-5)


def test_what_leaves_the_window_is_forgotten_and_nothing_sooner(core: KernelAttention) -> None:
    x = torch.randn(1, 9, 5)
    changed = x.clone()
    changed[:, 2] += 1.0
    moved = (run(core, changed) - run(core, x)).abs().amax(dim=(0, 2)) > 1e-6
    assert moved.tolist() == [False, False, True, True, True, True, False, False, False]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SoftmaxAttention(5, 8, num_heads=3), "num_heads: .*divide output_size=8, got 3"),
        (lambda: LinearAttention(5, 8, num_heads=0), "num_heads: .*got 0"),
        (lambda: SoftmaxAttention(5, 8, window=0), "window: must be at least 1 frame, got 0"),
        (lambda: Performer(5, 8, num_features=0), "num_features: must be at least 1, got 0"),
    ],
)
def test_bad_settings_are_named(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


# --- ReLU attention --------------------------------------------------------------------------------------------------


def by_formula(core: ReLUAttention, x: np.ndarray) -> np.ndarray:
    """One sequence x (T, F) -> y (T, d), weight by weight; nothing shared with the class but its parameters."""
    p = {name: value.detach().double().numpy() for name, value in core.named_parameters()}
    q = x @ p["query.weight"].T + p["query.bias"]
    k, v = np.split(x @ p["kv.weight"].T + p["kv.bias"], 2, axis=1)
    size = q.shape[1] // core.num_heads
    rows = []
    for t in range(len(x)):
        mixed = np.zeros(q.shape[1])
        for head in range(core.num_heads):
            part = slice(head * size, (head + 1) * size)
            for s in range(max(0, t - core.window + 1), t + 1):
                score = q[t, part] @ k[s, part] / np.sqrt(size) - p["slope"][head] * (t - s)
                mixed[part] += max(score, 0.0) * v[s, part]
        normalized = p["norm.weight"] * mixed / np.sqrt(np.mean(mixed**2) + 1e-5)
        rows.append(p["output.weight"] @ normalized + p["output.bias"])
    return np.array(rows)


@pytest.mark.parametrize("num_heads", [1, 2, 4])
def test_relu_attention_equals_its_formula(num_heads: int) -> None:
    torch.manual_seed(0)
    core = ReLUAttention(5, 8, num_heads=num_heads, window=4).double()
    with torch.no_grad():
        core.slope.uniform_(-0.2, 0.2)
        core.norm.weight.uniform_(0.5, 2.0)
    x = torch.randn(3, 11, 5, dtype=torch.float64)
    expected = np.stack([by_formula(core, row) for row in x.numpy()])
    torch.testing.assert_close(run(core, x), torch.from_numpy(expected), atol=1e-12, rtol=1e-10)


def with_scores(value: float, num_heads: int) -> ReLUAttention:
    """A core whose every score is `value`, less the slope, in all heads."""
    torch.manual_seed(0)
    core = ReLUAttention(5, 8, num_heads=num_heads, window=4)
    size = 8 // num_heads
    with torch.no_grad():
        for linear in (core.query, core.kv):
            linear.weight[:8].zero_()
            linear.bias[:8].fill_(1.0)
        core.query.bias.fill_(value / size**0.5)
    return core


def test_a_head_of_negative_scores_is_off() -> None:
    core = with_scores(1.0, num_heads=2)
    with torch.no_grad():
        core.query.bias[4:] *= -1.0  # the second head
    x = torch.randn(1, 6, 5)
    before = run(core, x)
    with torch.no_grad():
        core.kv.weight[12:] += 1.0  # its values
    assert torch.equal(run(core, x), before)
    with torch.no_grad():
        core.kv.weight[8:12] += 1.0
    assert (run(core, x) - before).abs().max() > 1e-3


def test_where_every_head_is_off_the_output_is_the_bias_and_gradients_are_finite() -> None:
    core = with_scores(-1.0, num_heads=2)
    x = torch.randn(2, 6, 5, requires_grad=True)
    y = run(core, x)
    assert torch.equal(y, core.output.bias.expand_as(y))
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in core.parameters())
    assert x.grad is not None
    assert not x.grad.any()


def test_a_slope_cuts_old_frames_off() -> None:
    core = with_scores(1.0, num_heads=1)
    with torch.no_grad():
        core.slope.fill_(0.5)  # scores by distance: 1, 0.5, 0, -0.5
    x = torch.randn(1, 9, 5)
    changed = x.clone()
    changed[:, 2] += 1.0
    moved = (run(core, changed) - run(core, x)).abs().amax(dim=(0, 2)) > 1e-6
    assert moved.tolist() == [False, False, True, True, False, False, False, False, False]


def test_the_scale_of_the_queries_has_no_effect_without_slopes() -> None:
    torch.manual_seed(0)
    core = ReLUAttention(5, 8, num_heads=2, window=6).double()
    x = 10.0 * torch.randn(2, 11, 5, dtype=torch.float64)  # large, so that epsilon plays no part
    with torch.no_grad():
        core.slope.zero_()
        before = run(core, x)
        core.query.weight.mul_(3.0)
        core.query.bias.mul_(3.0)
        torch.testing.assert_close(run(core, x), before, atol=1e-3, rtol=1e-3)


def test_the_registry_builds_it() -> None:
    core = build_core("relu-attention", 64, 64, num_heads=2, window=8)
    assert isinstance(core, ReLUAttention)
    assert (core.num_heads, core.window) == (2, 8)
    with pytest.raises(ValueError, match=r"num_heads: .*divide output_size=64, got 3"):
        build_core("relu-attention", 64, 64, num_heads=3)
