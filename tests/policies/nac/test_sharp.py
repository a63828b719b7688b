"""Beyond the paper: sharp logits, a loss per unit of age, whole inputs as values."""

from __future__ import annotations

import math

import pytest
import torch

from nac_drive.policies import CORES, NAC, NACCore
from nac_drive.policies.nac.masks import Mask
from nac_drive.policies.nac.records import AttentionRecord

T, F, HEADS = 12, 6, 2


def layer(**settings) -> NAC:
    torch.manual_seed(0)
    return NAC(8, HEADS, input_size=F, top_k=T, **settings).double().eval()


def attention(made: NAC, times: torch.Tensor | None = None) -> AttentionRecord:
    x = torch.randn(3, T, F, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    _, record = made(x, times, causal=True, return_attention=True)
    assert isinstance(record, AttentionRecord)
    return record


def entropy(alpha: torch.Tensor) -> float:
    """Mean entropy of the last query's weights over the entropy of uniform ones."""
    last = alpha[:, :, -1]
    return (-(last * last.clamp(min=1e-300).log()).sum(dim=2) / math.log(T)).mean().item()


def test_a_gain_multiplies_the_logits_and_makes_the_weights_sharper():
    plain, sharp = attention(layer()), attention(layer(gain=8.0))
    torch.testing.assert_close(sharp.a, 8.0 * plain.a)
    assert entropy(sharp.alpha) < entropy(plain.alpha) < 1.0
    assert entropy(plain.alpha) > 0.99


def test_recency_takes_its_slope_per_unit_of_age_a_quarter_in_each_next_head():
    times = torch.arange(T, 0, -1).double().repeat(3, 1)
    plain, recent = attention(layer(), times), attention(layer(recency=2.0), times)
    difference = plain.a - recent.a
    for head, slope in enumerate((2.0, 0.5)):
        expected = slope * times[0].expand(3, T, T)
        torch.testing.assert_close(difference[:, head], expected)


@pytest.mark.parametrize("top_k", [3, T])
def test_the_score_that_selects_is_added_to_the_logits(top_k):
    torch.manual_seed(0)
    made = NAC(8, HEADS, input_size=F, top_k=top_k).double().eval()
    plain = attention(made)
    made.scored = True
    scored = attention(made)
    x = torch.randn(3, T, F, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    q, k = made.query_gate(x)[:, :, 0], made.context_gate(x)[:, :, 0]  # (B, T, d)
    q, k = (gated.unflatten(2, (HEADS, 4)).transpose(1, 2) for gated in (q, k))
    score = (q.unsqueeze(3) * k.unsqueeze(2)).sum(dim=4) / 2.0  # sqrt(D) = 2
    assert torch.equal(scored.index, plain.index)
    torch.testing.assert_close(scored.a - plain.a, score.gather(3, plain.index))


def test_whole_inputs_are_the_values():
    """Uniform weights of all keys give the mean input, which `out` maps."""
    made = layer(value="input", output="riemann", mode="steady")
    with torch.no_grad():
        for name in ("out_scale", "out_shift"):
            getattr(made.backbone, name).zero_()  # phi and omega of all pairs are equal
    x = torch.randn(2, T, F, dtype=torch.float64)
    mean = x.mean(dim=1, keepdim=True).repeat(1, T, HEADS)
    torch.testing.assert_close(made(x), mean @ made.out.weight.T + made.out.bias)
    assert made.out.in_features == HEADS * F


@pytest.mark.parametrize("top_k", [3, T])
def test_gathered_and_dense_inputs_agree(top_k):
    torch.manual_seed(0)
    made = NAC(8, HEADS, input_size=F, top_k=top_k, value="input", gain=4.0).double().eval()
    x = torch.randn(2, T, F, dtype=torch.float64)
    y, record = made(x, causal=True, return_attention=True)
    weight = record.alpha * record.t
    by_hand = torch.zeros(2, HEADS, T, F, dtype=torch.float64)
    for slot in range(record.index.shape[3]):
        at = record.index[..., slot]  # (B, H, T)
        by_hand += weight[..., slot, None] * x[torch.arange(2)[:, None, None], at]
    torch.testing.assert_close(y, made.out(by_hand.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("settings", [{"gain": 0.0}, {"gain": math.nan}, {"recency": -1.0}, {"recency": math.inf}])
def test_gain_and_recency_are_positive(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=f"{name}: must be positive and finite, or None"):
        layer(**settings)


def test_an_unknown_value_is_named():
    with pytest.raises(ValueError, match=r"value: must be one of \['gated', 'input'\], got 'whole'"):
        layer(value="whole")


def test_the_core_attends_to_recent_frames_more_than_the_papers():
    """Normalised entropy over a full window at the start of training."""
    found = {}
    for name in ("nac-exact", "nac-sharp"):
        torch.manual_seed(0)
        core = CORES[name](16, 16, num_heads=4, window=8)
        assert isinstance(core, NACCore)
        x, dt = torch.randn(2, 20, 16), torch.full((2, 20), 0.02)
        tokens = core.nac.project(x)
        ages = (torch.arange(20)[:, None] - torch.arange(20)).clamp(min=0).float()[None, None]
        _, record = core.nac.attend(tokens, Mask(20, 20, window=8), ages, AttentionRecord)
        alpha = record["alpha"][:, :, 8:]
        found[name] = (-(alpha * alpha.clamp(min=1e-30).log()).sum(3) / math.log(8)).mean(dim=(0, 2))
        assert core(x, dt, core.initial_state(2))[0].shape == (2, 20, 16)
    assert found["nac-exact"].min() > 0.98
    assert found["nac-sharp"][0] < 0.6
    assert bool((found["nac-sharp"].diff() > 0).all())  # each next head looks further back
