"""The NAC layer: its theorems, gradients, masks and symmetries. test_naive.py compares it with its equations."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nac_drive.policies import NAC, backbone_wiring
from nac_drive.policies.nac import layer as nac
from nac_drive.policies.nac.masks import Mask
from nac_drive.policies.nac.tokens import Tokens

T, D_MODEL, HEADS, F = 7, 8, 2, 5


def make(**arguments: object) -> NAC:
    """A float64 layer whose every parameter, scales and shifts included, is away from its initial value."""
    torch.manual_seed(0)
    layer = NAC(D_MODEL, HEADS, input_size=F, **{"top_k": 3, **arguments}).double()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def inputs(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, T, F, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def attend(layer: NAC, tokens: Tokens, times: torch.Tensor) -> tuple[torch.Tensor, nac.AttentionRecord]:
    """Every query over every key of `tokens`, without a mask."""
    y, record = layer.attend(tokens, Mask(tokens.query.shape[2], tokens.kv.shape[2]), times, nac.AttentionRecord)
    return y, nac.AttentionRecord(**record)


def dense(attention: nac.AttentionRecord, keys: int = T) -> torch.Tensor:
    """alpha over all keys (B, H, Tq, Tk)."""
    blank = torch.zeros(*attention.alpha.shape[:3], keys, dtype=attention.alpha.dtype)
    return blank.scatter(3, attention.index, attention.alpha)


# --- theorem 1 and gradients, in the layer ----------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**31),
    st.floats(0.1, 10.0),
    st.sampled_from(["sigmoid", "tanh", "linear"]),
    st.sampled_from(["exact", "euler"]),
)
def test_theorem_1_holds_in_the_layer_for_any_weights(seed: int, scale: float, phi_activation: str, mode: str) -> None:
    layer = make(phi_activation=phi_activation, mode=mode)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    x = scale * torch.randn(2, T, F, generator=generator, dtype=torch.float64)
    _, attention = layer(x, return_attention=True)
    target = attention.phi / attention.omega
    slack = 1e-12 * target.abs()
    assert (attention.omega > 0).all()
    assert (attention.t >= 0).all()
    assert (attention.t <= 1).all()
    assert (attention.a >= target.clamp(max=0.0) - slack).all()
    assert (attention.a <= target.clamp(min=0.0) + slack).all()


def test_gradcheck_of_the_layer() -> None:
    layer, x = make(top_k=3), inputs(1)[:, :4].requires_grad_()
    assert torch.autograd.gradcheck(lambda x: layer(x, causal=True), (x,))


# --- nothing is constant ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settle_steps", [3, 4])
def test_a_fresh_layer_attends(settle_steps: int) -> None:
    """The published code takes one step: phi and omega do not depend on the pair, and attention is uniform."""
    torch.manual_seed(0)
    layer = NAC(64, 16, settle_steps=settle_steps)
    _, attention = layer(torch.randn(4, 32, 64), return_attention=True)
    for name in ("phi", "omega"):
        spread = getattr(attention, name).flatten(2).std(dim=2)  # over pairs, per sample and head
        assert spread.min() > 0.02, name
    assert attention.a.std() > 0.02
    assert (attention.alpha.amax(-1) / attention.alpha.amin(-1)).mean() > 1.1


def test_perturbing_query_key_or_time_moves_what_it_should() -> None:
    layer = make(top_k=T)
    tokens, ones = layer.project(inputs()), torch.ones(1, 1, 1, 1, dtype=torch.float64)
    y, base = attend(layer, tokens, ones)

    def moved(other: Tokens, times: torch.Tensor) -> dict[str, torch.Tensor]:
        z, detail = attend(layer, other, times)
        names = ("phi", "omega", "t", "alpha")
        return {"y": (z - y).abs()} | {n: (getattr(detail, n) - getattr(base, n)).abs() for n in names}

    x = inputs()
    x[:, 2] += 0.5
    changed = layer.project(x)
    by_query = moved(Tokens(changed.query, changed.query_logit_inputs, tokens.kv), ones)
    by_key = moved(Tokens(tokens.query, tokens.query_logit_inputs, changed.kv), ones)
    for name in ("phi", "omega", "t", "alpha"):
        assert by_query[name][:, :, 2].min(dim=-1).values.max() > 1e-6, name  # the pairs of query 2, and only they
        assert by_query[name][:, :, [0, 1, 3, 4, 5, 6]].max() == 0.0, name
        assert by_key[name][..., 2].max() > 1e-6, name
    assert by_query["y"][:, 2].min() > 1e-9
    assert by_key["y"].max() > 1e-6
    by_time = moved(tokens, 2.0 * ones)
    assert by_time["t"].max() > 1e-3
    assert by_time["alpha"].max() > 1e-6
    assert by_time["y"].max() > 1e-6
    assert by_time["phi"].max() == by_time["omega"].max() == 0.0


def test_each_head_has_its_own_dynamics() -> None:
    layer = make()
    u = torch.randn(1, 1, 20, 8, dtype=torch.float64).expand(1, HEADS, 20, 8)
    weight, bias = layer.backbone.input_map()
    y = layer.backbone(u @ weight + bias)  # (1, H, 2, 20)
    assert (y[:, 0] - y[:, 1]).abs().mean() > 0.05


# --- selection, masks, symmetry --------------------------------------------------------------------------------------


def test_all_keys_kept_is_pairwise() -> None:
    everything, pairwise = make(top_k=T), make(selection="pairwise")
    gathered = make(top_k=T - 1)
    x = inputs()
    assert torch.equal(everything(x, causal=True), pairwise(x, causal=True))
    # with six of seven keys the gathering code runs; under a window of six it must drop nothing
    torch.testing.assert_close(gathered(x, window=6), pairwise(x, window=6), atol=1e-14, rtol=0.0)


@pytest.mark.parametrize("top_k", [3, T])
def test_chunks_of_queries_do_not_show(top_k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x, times = make(top_k=top_k), inputs(), torch.rand(2, T, T, dtype=torch.float64)
    whole, attention = layer(x, times, window=4, return_attention=True)
    monkeypatch.setattr(nac, "PAIRS_PER_CHUNK", 2 * HEADS * top_k * 2)  # two queries at a time
    parts, detail = layer(x, times, window=4, return_attention=True)
    torch.testing.assert_close(parts, whole, atol=1e-14, rtol=0.0)
    torch.testing.assert_close(detail.a, attention.a, atol=1e-14, rtol=0.0)


@pytest.mark.parametrize("top_k", [3, T])
def test_permuting_keys_permutes_attention(top_k: int) -> None:
    layer, tokens = make(top_k=top_k), make(top_k=top_k).project(inputs())
    order = torch.tensor([3, 1, 6, 0, 2, 5, 4])
    times = torch.rand(2, 1, T, T, dtype=torch.float64)
    y, base = attend(layer, tokens, times)
    shuffled = Tokens(tokens.query, tokens.query_logit_inputs, tokens.kv[:, :, order])
    z, other = attend(layer, shuffled, times[..., order])
    torch.testing.assert_close(dense(other), dense(base)[..., order], atol=1e-14, rtol=0.0)
    torch.testing.assert_close(z, y, atol=1e-14, rtol=0.0)


@pytest.mark.parametrize("top_k", [3, T])
def test_masked_keys_have_no_weight_and_no_gradient(top_k: int) -> None:
    layer, x = make(top_k=top_k), inputs().requires_grad_()
    valid = torch.tensor([[True, False, True, True, False, True, True], [True] * 7])
    y, attention = layer(x, valid=valid, return_attention=True)
    assert dense(attention)[0, :, :, [1, 4]].eq(0.0).all()
    torch.testing.assert_close(attention.alpha.sum(-1), torch.ones_like(attention.alpha[..., 0]))
    y[0, [0, 2, 3, 5, 6]].sum().backward()  # every query but the masked steps' own
    assert x.grad is not None
    assert x.grad[0, [1, 4]].eq(0.0).all()
    assert x.grad[0, [0, 2, 3, 5, 6]].ne(0.0).all()


@pytest.mark.parametrize("top_k", [3, T])
def test_a_query_without_keys_yields_zeros_and_finite_gradients(top_k: int) -> None:
    layer, x = make(top_k=top_k), inputs().requires_grad_()
    valid = torch.tensor([[False] * 3 + [True] * 4, [False] * 7])
    y, attention = layer(x, causal=True, valid=valid, return_attention=True)
    assert attention.alpha[0, :, :3].eq(0.0).all()
    assert attention.alpha[1].eq(0.0).all()
    torch.testing.assert_close(y[0, :3], layer.out.bias.expand(3, -1))
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_times_shapes_agree() -> None:
    layer, x = make(), inputs()
    per_sample = torch.tensor([0.5, 2.0], dtype=torch.float64)
    expected = layer(x, per_sample[:, None, None].expand(2, T, T).contiguous())
    torch.testing.assert_close(layer(x, per_sample), expected, atol=1e-14, rtol=0.0)
    torch.testing.assert_close(layer(x, per_sample[:, None].expand(2, T)), expected, atol=1e-14, rtol=0.0)
    assert torch.equal(layer(x, torch.ones(2, dtype=torch.float64)), layer(x))


@pytest.mark.parametrize("shape", [(3,), (2, T + 1), (2, 1, T), (1, 2, T, T)])
def test_times_of_a_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="times: shape must be"):
        make()(inputs(), torch.ones(shape, dtype=torch.float64))


@pytest.mark.parametrize("mask", ["in_weight", "weight", "gate"])
def test_synapses_that_do_not_exist_get_no_gradient(mask: str) -> None:
    layer = make()
    layer(inputs()).square().sum().backward()
    if mask == "in_weight":
        pairs = [(layer.backbone.in_weight, layer.backbone.in_mask)]
    elif mask == "gate":
        pairs = [(gate.weight, gate.mask) for gate in (layer.query_gate, layer.context_gate)]
    else:
        pairs = [(w, getattr(layer.backbone, f"mask_{name}")) for name, w in layer.backbone.weight.items()]
    for weight, existing in pairs:
        assert weight.grad is not None
        assert weight.grad[~existing.expand_as(weight)].eq(0.0).all()
        assert weight.grad.ne(0.0).any()


def test_a_backbone_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"backbone: the wiring must take .* = 8 inputs .*got 6 inputs"):
        make(backbone=backbone_wiring(6, D_MODEL, 0.5, 0))
