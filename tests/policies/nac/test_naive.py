"""The naive NAC layer: equal to the fast one, outputs and gradients, to Algorithm 1, and to numbers worked by hand."""

from __future__ import annotations

import math
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nac_drive.policies import (
    NAC,
    NAC_VARIANTS,
    Groups,
    Wiring,
    backbone_wiring,
    fully_connected_wiring,
    random_wiring,
    sensory_gate_wiring,
)
from nac_drive.policies.nac import layer as nac
from nac_drive.policies.nac import naive
from nac_drive.policies.nac.naive import backbone, naive_nac, sensory_gate
from tests.slow import slow_but

B, T, LONGER, F, D_MODEL, HEADS = 2, 7, 9, 5, 8, 2
VARIANTS = sorted(name for name, chosen in NAC_VARIANTS.items() if chosen.get("selection") != "block")
DRAWN = sorted({(chosen.get("wiring", "ncp"), chosen.get("sparsity", 0.5)) for chosen in NAC_VARIANTS.values()})
CASES = ["plain", "causal", "window", "valid", "per sample", "per key", "per pair", "context", "causal context", "all"]


def make(seed: int = 0, **arguments: Any) -> NAC:
    """A float64 layer whose every parameter, scales and shifts included, is away from its initial value."""
    torch.manual_seed(seed)
    sizes = {"d_model": D_MODEL, "num_heads": HEADS, "input_size": F, "top_k": 3}
    layer = NAC(**{**sizes, **arguments}).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def inputs(case: str, features: int = F) -> tuple[Tensor, dict[str, Any]]:
    """x (B, T, F) and the other arguments of a call."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(B, T, F, dtype=torch.float64, generator=generator)
    other = torch.randn(B, LONGER, features, dtype=torch.float64, generator=generator)
    times = 2.0 * torch.rand(B, T, LONGER, dtype=torch.float64, generator=generator)
    valid = torch.rand(B, LONGER, generator=generator) < 0.7
    valid[0, :2] = False  # a query without keys
    return x, {
        "plain": {},
        "causal": {"causal": True},
        "window": {"window": 4},
        "valid": {"causal": True, "valid": valid[:, :T]},
        "per sample": {"times": times[:, 0, 0]},
        "per key": {"times": times[:, 0, :T]},
        "per pair": {"times": times[..., :T]},
        "context": {"context": other, "times": times, "valid": valid},
        "causal context": {"context": other, "causal": True},
        "all": {"window": 4, "times": times[..., :T], "valid": valid[:, :T]},
    }[case]


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)


# --- the fast layer ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "case"),
    slow_but(
        [*product(["nac-exact"], CASES), *product(set(VARIANTS) - {"nac-exact"}, ["all"])], [*product(VARIANTS, CASES)]
    ),
)
def test_every_variant_equals_the_fast_layer(name: str, case: str) -> None:
    layer, (x, arguments) = make(**NAC_VARIANTS[name]), inputs(case)
    with torch.no_grad():
        assert_close(layer(x, **arguments), naive_nac(layer, x, **arguments))


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_equal_those_of_the_fast_layer(name: str) -> None:
    """Gradients of inputs, times and every parameter. For "learned" the straight-through gradient of M besides."""
    layer, (x, arguments) = make(**NAC_VARIANTS[name]), inputs("all")
    direction = torch.randn(B, T, D_MODEL, dtype=torch.float64)
    sources = {"x": x, "times": arguments["times"]}
    wanted = [*(tensor.requires_grad_() for tensor in sources.values()), *layer.parameters()]
    names = [*sources, *dict(layer.named_parameters())]
    forms = (layer(x, **arguments), naive_nac(layer, x, **arguments))
    fast, naive = (torch.autograd.grad((y * direction).sum(), wanted, materialize_grads=True) for y in forms)
    for which, one, other in zip(names, fast, naive, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10, msg=lambda text, which=which: f"{which}: {text}")


@pytest.mark.parametrize("steps", [3, 5])
@pytest.mark.parametrize("circuit", ["random", "full", "ncp"])
@pytest.mark.parametrize("output", ["quadrature", "riemann"])
def test_any_circuit_equals_the_fast_layer(circuit: str, steps: int, output: str) -> None:
    layer = make(backbone=CIRCUITS[circuit], settle_steps=steps, output=output, delta_t=0.7)
    x, arguments = inputs("all")
    assert_close(layer(x, **arguments), naive_nac(layer, x, **arguments))


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    heads=st.integers(1, 3),
    queries=st.integers(1, 5),
    keys=st.integers(1, 6),
    top_k=st.integers(1, 7),
    mode=st.sampled_from(["exact", "euler", "steady"]),
    selection=st.sampled_from(["topk", "learned", "pairwise"]),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 7),
)
def test_any_setting_equals_the_fast_layer(
    seed: int, heads: int, queries: int, keys: int, causal: bool, window: int | None, **arguments: Any
) -> None:
    """Fewer, as many and more queries than keys. Contexts of another width than x."""
    layer = make(seed, d_model=2 * heads, num_heads=heads, context_size=4, **arguments)
    x, context = torch.randn(2, queries, F).double(), torch.randn(2, keys, 4).double()
    call: dict[str, Any] = {"context": context, "causal": causal, "window": window, "valid": torch.rand(2, keys) < 0.8}
    assert_close(layer(x, **call), naive_nac(layer, x, **call))


def test_queries_in_chunks_equal_the_naive_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nac, "PAIRS_PER_CHUNK", B * HEADS * 3 * 2)  # two queries at a time
    layer, (x, arguments) = make(), inputs("all")
    assert_close(layer(x, **arguments), naive_nac(layer, x, **arguments))
    with torch.no_grad():
        assert_close(layer(x, **arguments), naive_nac(layer, x, **arguments))


def test_euler_steps_beyond_the_least_number_equal_the_fast_layer() -> None:
    layer, (x, arguments) = make(mode="euler"), inputs("all")
    with torch.no_grad():
        layer.backbone.out_shift[..., 1] += 40.0
        _, attention = layer(x, **arguments, return_attention=True)
        assert (attention.omega * attention.t).max() > 2 * layer.euler_steps
        assert_close(layer(x, **arguments), naive_nac(layer, x, **arguments))


@pytest.mark.parametrize("case", ["valid", "context"])
def test_padding_has_no_influence_whatever_it_holds(case: str) -> None:
    layer, (x, arguments) = make(), inputs(case)
    expected = naive_nac(layer, x, **arguments)
    padded = arguments["context"] if case == "context" else x
    padded[~arguments["valid"]] = math.nan
    assert torch.equal(naive_nac(layer, x, **arguments), expected)
    assert_close(layer(x, **arguments), expected)


def test_blocks_that_hold_every_key_equal_the_naive_pairwise_layer() -> None:
    layer, pairwise, (x, arguments) = make(selection="block", top_k=T), make(selection="pairwise"), inputs("all")
    assert_close(layer(x, **arguments), naive_nac(pairwise, x, **arguments))


def test_selection_by_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="layer: selection 'block' has no naive form"):
        naive_nac(make(selection="block"), torch.zeros(1, T, F).double())


# --- Algorithm 1, on whole matrices -----------------------------------------------------------------------------------

CIRCUITS = {
    "ncp": backbone_wiring(2 * D_MODEL // HEADS, D_MODEL, 0.5, 0),
    "random": random_wiring(8, Groups(2, 3, 4, 2, input_group="inter"), sparsity=0.4, seed=1),
    "full": fully_connected_wiring(8, Groups(inter=2, command=3, motor=2, input_group="inter")),
}


def algorithm_1(wiring: Wiring, steps: list[np.ndarray], weights: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Algorithm 1 line by line, with every neuron, disabled ones too; the masks are the wiring's, not the layer's.

    u (inputs,) of each step -> y of each step. W_in (inputs, neurons), W_rec (neurons, neurons), b (neurons,).
    """
    M_in, M_rec = np.abs(wiring.input_mask.astype(float)), np.abs(wiring.recurrent_mask.astype(float))
    I_out = wiring.group(wiring.groups.output_group)
    mask_act = np.zeros(wiring.units)
    for name in wiring.active_groups:
        mask_act[wiring.group(name)] = 1.0
    x, outputs = np.zeros(wiring.units), []
    for u in steps:
        u = u * weights["w_in"] + weights["b_in"]
        r = x @ (weights["W_rec"] * M_rec)
        s = u @ (weights["W_in"] * M_in)
        x = np.tanh(r + s + weights["b"]) * mask_act
        outputs.append(x[I_out] * weights["w_out"] + weights["b_out"])
    return outputs


def anything(*shape: int) -> np.ndarray:
    """Random weights. They stay where no synapse or only a disabled neuron is, and must not matter there."""
    return np.random.default_rng(2).normal(size=shape)


@pytest.mark.parametrize("which", ["q", "k", "v"])
@pytest.mark.parametrize(("graph", "sparsity"), DRAWN)
def test_a_sensory_gate_is_algorithm_1_scanned_over_time(graph: str, sparsity: float, which: str) -> None:
    layer, number = make(wiring=graph, sparsity=sparsity), "qkv".index(which)
    wiring = sensory_gate_wiring(F, D_MODEL, sparsity, number, graph)
    gate, p = (layer.query_gate, 0) if which == "q" else (layer.context_gate, number - 1)
    w = {name: parameter.detach().numpy() for name, parameter in gate.named_parameters()}
    weights = {"w_in": w["in_scale"][:, p, 0], "b_in": w["in_shift"][:, p, 0]}
    weights |= {"W_in": anything(F, wiring.units), "W_rec": anything(wiring.units, wiring.units)}
    weights |= {"b": anything(wiring.units), "w_out": w["out_scale"][p], "b_out": w["out_shift"][p]}
    weights["W_in"][:, wiring.group("sensory")] = w["weight"][:, p]
    weights["b"][wiring.group("sensory")] = w["bias"][p]
    x, _ = inputs("plain")
    expected = np.array(algorithm_1(wiring, list(x[0].numpy()), weights))
    np.testing.assert_allclose(sensory_gate(gate, p, x[0]).detach().numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("steps", [3, 5])
@pytest.mark.parametrize("circuit", CIRCUITS)
def test_a_given_backbone_is_algorithm_1_with_its_input_held(circuit: str, steps: int) -> None:
    assert_algorithm_1(make(backbone=CIRCUITS[circuit], settle_steps=steps), CIRCUITS[circuit])


@pytest.mark.parametrize(("graph", "sparsity"), DRAWN)
def test_a_drawn_backbone_is_algorithm_1_with_its_input_held(graph: str, sparsity: float) -> None:
    wiring = backbone_wiring(2 * D_MODEL // HEADS, D_MODEL, sparsity, 0, graph)
    assert_algorithm_1(make(wiring=graph, sparsity=sparsity), wiring)


def assert_algorithm_1(layer: NAC, wiring: Wiring) -> None:
    """The naive backbone of every head equals Algorithm 1 on `wiring`."""
    u, cell = torch.randn(4, 8, dtype=torch.float64), layer.backbone
    for head in range(HEADS):
        w = {name: value.detach().numpy()[head] for name, value in cell.named_parameters()}
        weights = {"w_in": w["in_scale"][:, 0], "b_in": w["in_shift"][:, 0]}
        weights |= {"W_in": anything(8, wiring.units), "W_rec": anything(wiring.units, wiring.units)}
        weights |= {"b": anything(wiring.units), "w_out": w["out_scale"][0], "b_out": w["out_shift"][0]}
        weights["W_in"][:, wiring.group("inter")] = w["in_weight"]
        for target in wiring.active_groups:
            weights["b"][wiring.group(target)] = w[f"bias.{target}"][0]
            for source in wiring.active_groups:
                if f"weight.{source}_{target}" in w:
                    weights["W_rec"][wiring.group(source), wiring.group(target)] = w[f"weight.{source}_{target}"]
        expected = [algorithm_1(wiring, [row] * cell.steps, weights)[-1] for row in u.numpy()]
        np.testing.assert_allclose(backbone(cell, head, u).detach().numpy(), expected, atol=1e-13)


# --- by hand ----------------------------------------------------------------------------------------------------------


def by_hand(**arguments: Any) -> NAC:
    """One head of two features: q = k = v = tanh(x), motor neurons at (0.4, -1.2), t = sigmoid(-3 age + 0.5)."""
    gate = Wiring(Groups(2, output_group="sensory"), np.ones((2, 2), bool), np.zeros((2, 2), bool))
    circuit = fully_connected_wiring(4, Groups(inter=1, command=1, motor=2, input_group="inter"))
    layer = NAC(2, 1, gate_wirings=[gate] * 3, backbone=circuit, top_k=2, **arguments).double()
    with torch.no_grad():
        for part in (layer.query_gate, layer.context_gate):
            part.weight.copy_(torch.eye(2)[:, None].expand_as(part.weight))
        layer.backbone.out_scale.zero_()
        layer.backbone.out_shift.copy_(torch.tensor([0.4, -1.2], dtype=torch.float64))
        layer.time_weight.zero_()
        layer.time_bias.copy_(torch.tensor([-3.0, 0.5], dtype=torch.float64))
        layer.out.weight.copy_(torch.eye(2))
        layer.out.bias.zero_()
    return layer


@pytest.mark.parametrize("phi_activation", ["sigmoid", "tanh", "linear"])
@pytest.mark.parametrize("mode", ["exact", "euler", "steady"])
@pytest.mark.parametrize("output", ["quadrature", "riemann"])
def test_two_keys_of_three_worked_by_hand(phi_activation: str, mode: str, output: str) -> None:
    layer = by_hand(phi_activation=phi_activation, mode=mode, output=output, delta_t=0.7, euler_steps=2)
    values = torch.tensor([[0.5, -0.2], [-0.6, 0.1], [0.3, 0.4]], dtype=torch.float64)
    ages = torch.tensor([0.9, 0.5, 0.0], dtype=torch.float64)
    y = naive_nac(layer, torch.atanh(values)[None, 2:], ages[None], context=torch.atanh(values)[None])

    # q = (0.3, 0.4): q.k = 0.07, -0.14 and 0.25, so the second key goes
    phi = {"sigmoid": 1.0 / (1.0 + math.exp(-0.4)), "tanh": math.tanh(0.4), "linear": 0.4}[phi_activation]
    omega = math.log(1.0 + math.exp(-1.2)) + 0.001
    t = [1.0 / (1.0 + math.exp(3.0 * age - 0.5)) for age in (0.9, 0.0)]
    a = {
        "exact": [phi / omega * (1.0 - math.exp(-omega * s)) for s in t],
        "euler": [s / 2 * phi + s / 2 * (phi - omega * s / 2 * phi) for s in t],
        "steady": [phi / omega] * 2,
    }[mode]
    alpha = [math.exp(one) / (math.exp(a[0]) + math.exp(a[1])) for one in a]
    weight = [one * s for one, s in zip(alpha, t, strict=True)] if output == "quadrature" else [0.7 * o for o in alpha]
    expected = [weight[0] * 0.5 + weight[1] * 0.3, weight[0] * -0.2 + weight[1] * 0.4]
    assert y[0, 0].tolist() == pytest.approx(expected, abs=1e-14)


def test_causal_window_and_padding_by_hand() -> None:
    """With every logit equal and t = sigmoid(0.5), a query gives t times the mean of the values that it may see."""
    layer = by_hand(selection="pairwise", mode="steady")
    values = torch.tensor([0.1, 0.2, 0.4, 0.8], dtype=torch.float64)
    x, zeros = torch.atanh(values)[None, :, None].expand(1, 4, 2), torch.zeros(1, dtype=torch.float64)
    t = 1.0 / (1.0 + math.exp(-0.5))

    def means(**arguments: Any) -> list[float]:
        return (naive_nac(layer, x, zeros, **arguments)[0, :, 0] / t).tolist()

    valid = torch.tensor([[False, True, False, True]])
    assert means() == pytest.approx([0.375, 0.375, 0.375, 0.375])
    assert means(causal=True) == pytest.approx([0.1, 0.15, 0.7 / 3, 0.375])
    assert means(window=2) == pytest.approx([0.1, 0.15, 0.3, 0.6])
    assert means(window=2, valid=valid) == pytest.approx([0.0, 0.2, 0.2, 0.8])


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_shows_the_code_of_the_naive_layer() -> None:
    page = (Path(__file__).parents[3] / "docs" / "nac.md").read_text(encoding="utf-8")
    (excerpt,) = re.findall(r"```py\n(.*?)```", page, flags=re.DOTALL)
    assert excerpt.strip() in Path(naive.__file__).read_text(encoding="utf-8")
