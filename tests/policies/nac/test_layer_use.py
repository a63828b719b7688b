"""The layer in the hands of a user: dtypes, autocast, compilation, memory, time stamps, bad input."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from inspect import signature

import numpy as np
import pytest
import torch

from nac_drive.policies import NAC, NAC_VARIANTS, ages, backbone_wiring, sensory_gate_wiring
from nac_drive.policies.nac import layer as nac
from nac_drive.policies.nac.layer import OUTPUTS
from nac_drive.policies.nac.logits import MODES, PHI_ACTIVATIONS
from nac_drive.policies.nac.selection import SELECTIONS
from nac_drive.policies.wiring.graphs import WIRINGS, mlp_wiring
from nac_drive.policies.wiring.wiring import Groups


def make(**settings: object) -> tuple[NAC, torch.Tensor]:
    torch.manual_seed(0)
    return NAC(16, 2, **settings), torch.randn(2, 20, 16)  # type: ignore[arg-type]


# --- precision and compilation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(NAC_VARIANTS))
def test_half_and_double_precision_agree_with_single(name: str) -> None:
    layer, x = make(**{**NAC_VARIANTS[name], "top_k": 40})  # every key: a choice between near equals would jump
    single = layer(x, causal=True)
    double = copy.deepcopy(layer).double()(x.double(), causal=True)
    assert double.dtype == torch.float64
    torch.testing.assert_close(single, double.float(), atol=1e-5, rtol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = layer(x, causal=True)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), single, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("selection", ["topk", "block", "pairwise", "learned"])
def test_training_under_autocast_gives_finite_gradients(selection: str) -> None:
    layer, x = make(selection=selection, top_k=3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = layer(x, torch.rand(2, 20), window=7, valid=torch.rand(2, 20) < 0.8).float().square().sum()
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


COMPILED = [
    {},
    {"selection": "block", "mode": "steady", "phi_activation": "linear", "wiring": "mlp"},
    {"selection": "learned", "mode": "euler", "phi_activation": "tanh"},
    {"selection": "pairwise", "output": "riemann"},
]
"""Every option of every setting that changes the operations, once: a compilation takes seconds."""
BACKENDS = ["aot_eager", "eager", "eager", "eager"]
"""`fullgraph` demands one graph from either; aot_eager traces the backward pass too, and costs four times as much."""


def test_the_compiled_settings_hold_every_option() -> None:
    defaults = {name: parameter.default for name, parameter in signature(NAC).parameters.items()}
    options = {"mode": MODES, "selection": [*SELECTIONS, "learned"], "phi_activation": PHI_ACTIVATIONS}
    for name, known in {**options, "output": OUTPUTS, "wiring": WIRINGS}.items():
        assert {settings.get(name, defaults[name]) for settings in COMPILED} == set(known), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "backend"), [*zip(COMPILED, BACKENDS, strict=True)], ids=["defaults", "block", "learned", "pairwise"]
)
def test_the_whole_layer_compiles_as_one_graph(settings: dict[str, str], backend: str) -> None:
    torch.compiler.reset()
    layer, x = make(**settings)
    times, valid = torch.rand(2, 20), torch.rand(2, 20) < 0.8
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    for module in (layer, compiled):
        layer.zero_grad()
        y = module(x, times, window=9, valid=valid)
        y.square().sum().backward()
        gradients = [p.grad.clone() for p in layer.parameters() if p.grad is not None]
        if module is layer:
            expected, expected_gradients = y, gradients
    torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-5)
    for gradient, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, other, atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x), atol=1e-5, rtol=1e-5)


def test_what_is_computed_again_in_the_backward_pass_gives_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = []
    for kept in (2**30, 0):
        monkeypatch.setattr(nac, "PAIRS_KEPT", kept)
        monkeypatch.setattr(nac, "PAIRS_PER_CHUNK", 2 * 2 * 20 * 6)
        layer, x = make(selection="pairwise")
        layer(x, causal=True).square().sum().backward()
        gradients.append([p.grad for p in layer.parameters()])
    for kept_gradient, again in zip(*gradients, strict=True):
        torch.testing.assert_close(again, kept_gradient)


# --- time ------------------------------------------------------------------------------------------------------------


def test_ages_are_seconds_from_key_to_query() -> None:
    stamps = torch.tensor([[0.0, 0.5, 2.0]])
    assert ages(stamps).tolist() == [[[0.0, -0.5, -2.0], [0.5, 0.0, -1.5], [2.0, 1.5, 0.0]]]
    assert ages(stamps[:, 2:], stamps).tolist() == [[[2.0, 1.5, 0.0]]]


def test_shifting_the_clock_changes_nothing_and_stretching_it_does() -> None:
    layer, x = make(top_k=40)
    stamps = torch.rand(2, 20, generator=torch.Generator().manual_seed(3)).cumsum(dim=1)
    y = layer(x, ages(stamps), causal=True)
    torch.testing.assert_close(layer(x, ages(stamps + 8.0), causal=True), y, atol=1e-5, rtol=0.0)
    assert (layer(x, ages(2.0 * stamps), causal=True) - y).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([[0.0, 0.2, 0.1]], r"times: must not decrease along the sequence, got a step of -0\.1 s; sort them"),
        ([[0.0, float("nan"), 0.1]], "times: must be finite, got NaN"),
        ([0.0, 0.1], r"times: shape must be \(B, T\).*got \(2,\)"),
    ],
)
def test_time_stamps_that_cannot_be_ages_are_refused(times: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ages(torch.tensor(times))


def test_the_keys_time_stamps_are_checked_too() -> None:
    with pytest.raises(ValueError, match=r"context_times: must not decrease"):
        ages(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]))
    with pytest.raises(ValueError, match=r"context_times: shape must be"):
        ages(torch.zeros(1, 2), torch.zeros(2, 2))


# --- what may not go wrong in silence --------------------------------------------------------------------------------


@pytest.mark.parametrize("selection", ["topk", "block", "pairwise"])
def test_a_nan_reaches_every_query_that_may_see_it(selection: str) -> None:
    layer, x = make(selection=selection, top_k=3)
    x[0, 11, 5] = torch.nan
    assert layer(x)[0].isnan().all()
    assert layer(x)[1].isfinite().all()
    assert layer(x, causal=True)[0, 11:].isnan().all()


@pytest.mark.parametrize("selection", ["topk", "block", "pairwise"])
def test_padding_has_no_influence_whatever_it_holds(selection: str) -> None:
    layer, x = make(selection=selection, top_k=3)
    valid = torch.rand(2, 20, generator=torch.Generator().manual_seed(4)) < 0.7
    expected = layer(x, valid=valid)
    for rubbish in (1e6, torch.nan, torch.inf):
        context = x.masked_fill(~valid.unsqueeze(2), rubbish)
        crossed, y = layer(x, context=context, valid=valid), layer(context, valid=valid)
        assert torch.equal(crossed[valid], expected[valid])
        assert torch.equal(y[valid], expected[valid])
        (crossed[valid].sum() + y[valid].sum()).backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


BAD_CALLS = [
    ({"x": torch.zeros(20, 16)}, r"x: shape must be \(B >= 1, T >= 1, 16\), got \(20, 16\)"),
    ({"x": torch.zeros(2, 20, 15)}, r"x: shape must be .*got \(2, 20, 15\); the last axis is input_size"),
    ({"x": torch.zeros(2, 0, 16)}, r"x: shape must be .*got \(2, 0, 16\)"),
    ({"context": torch.zeros(2, 5, 3)}, r"context: shape must be .*16\), got \(2, 5, 3\); .* context_size"),
    ({"context": torch.zeros(1, 5, 16)}, "context: batch must be x's, 2, got 1"),
    ({"times": torch.zeros(2, 19)}, r"times: shape must be \(2,\), \(2, 20\) or \(2, 20, 20\), got \(2, 19\)"),
    ({"window": 0}, "window: must be at least 1 step, got 0"),
    ({"valid": torch.ones(2, 19, dtype=torch.bool)}, r"valid: must be bool \(2, 20\), got torch.bool \(2, 19\)"),
    ({"valid": torch.ones(2, 20)}, r"valid: must be bool \(2, 20\), got torch.float32"),
    (
        {"x": torch.zeros(2, 20, 16).double()},
        "x: dtype must be the weights', torch.float32, got .*float64",
    ),
    ({"x": torch.zeros(2, 20, 16).long()}, r"x: dtype must be .*got torch.int64; convert one of them by \.to"),
    ({"context": torch.zeros(2, 5, 16).bfloat16()}, "context: dtype must be .*got torch.bfloat16"),
    ({"times": torch.ones(2, 20).double()}, "times: dtype must be .*torch.float32, got torch.float64"),
    ({"x": np.zeros((2, 20, 16))}, "x: must be a tensor, got ndarray; torch.as_tensor makes one"),
    ({"x": None}, "x: must be a tensor, got NoneType"),
    ({"times": np.ones((2, 20))}, "times: must be a tensor, got ndarray"),
    ({"context": [[0.0]]}, "context: must be a tensor, got list"),
    ({"valid": np.ones((2, 20), bool)}, "valid: must be a tensor, got ndarray"),
    ({"window": 2.5}, "window: must be a whole number of steps, or None, got 2.5"),
    ({"window": True}, "window: must be a whole number of steps, or None, got True"),
    ({"window": "3"}, "window: must be a whole number of steps, or None, got '3'"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_CALLS)
def test_a_call_that_does_not_fit_says_why(arguments: dict, message: str) -> None:
    layer, x = make()
    with pytest.raises(ValueError, match=message):
        layer(arguments.pop("x", x), **arguments)


def fails(error: type[Exception], call: Callable[[], object]) -> bool:
    try:
        call()
    except error:
        return True
    return False


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_dtypes_are_refused_where_torch_would_fail_and_nowhere_else(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = make(top_k=3)
    layer, x = layer.to(dtype), x[:, :3]
    others = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool)
    calls = [(x.to(other), None, None) for other in others]
    calls += [(x.to(dtype), torch.ones(2, 3, dtype=other), None) for other in others]
    calls += [(x.to(dtype), None, x.to(other)) for other in others]
    for autocast in (False, True)[: 1 if dtype == torch.float16 else 2]:  # torch.autocast("cpu") takes no float16
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            for inputs, times, context in calls:
                call = partial(layer, inputs, times, context=context)
                refused = fails(ValueError, call)
                with monkeypatch.context() as patch:
                    patch.setattr(nac, "require_call", lambda *arguments: None)
                    assert refused == fails(RuntimeError, call), (autocast, inputs.dtype, times, context)


def test_a_missing_context_is_missed() -> None:
    layer, x = make(context_size=3)
    with pytest.raises(ValueError, match="context: needed where context_size=3 is set, got None"):
        layer(x)


UNREACHED = Groups(inter=2, command=2, motor=1, input_group="inter")
BAD_SETTINGS = [
    ({"num_heads": 3}, "d_model: must be a positive multiple of num_heads=3, got 16"),
    ({"sparsity": 1.0}, r"sparsity: must be in \[0, 1\), got 1.0"),
    ({"sparsity": -0.1}, r"sparsity: must be in \[0, 1\), got -0.1"),
    ({"top_k": 0}, "top_k: must be at least 1, got 0"),
    ({"num_heads": 0}, "num_heads: must be at least 1, got 0"),
    ({"euler_steps": 0}, "euler_steps: must be at least 1, got 0"),
    ({"context_size": 0}, "context_size: must be at least 1, got 0"),
    ({"mode": "implicit"}, "mode: must be one of .*'exact'.*got 'implicit'"),
    ({"selection": "random"}, "selection: must be one of .*'block'.*'learned'.*got 'random'"),
    ({"phi_activation": "relu"}, "phi_activation: must be one of"),
    ({"output": "mean"}, "output: must be one of"),
    ({"wiring": "torus"}, "wiring: must be one of .*'ncp'.*got 'torus'"),
    ({"delta_t": 0.0}, "delta_t: must be positive and finite, got 0.0"),
    ({"delta_t": float("inf")}, "delta_t: must be positive and finite, got inf"),
    ({"delta_t": None}, "delta_t: must be a number, got None"),
    ({"gain": "a"}, "gain: must be a number, got 'a'"),
    ({"recency": True}, "recency: must be a number, got True"),
    ({"sparsity": "0.5"}, "sparsity: must be a number, got '0.5'"),
    ({"seed": None}, "seed: must be a whole number, got None"),
    ({"seed": -1}, "seed: must be at least 0, got -1"),
    ({"d_model": 16.0}, "d_model: must be a whole number, got 16.0"),
    ({"num_heads": 2.0}, "num_heads: must be a whole number, got 2.0"),
    ({"input_size": 16.0}, "input_size: must be a whole number, got 16.0"),
    ({"top_k": 2.5}, "top_k: must be a whole number, got 2.5"),
    ({"mode": "euler", "euler_steps": 2.5}, "euler_steps: must be a whole number, got 2.5"),
    ({"settle_steps": "3"}, "settle_steps: must be a whole number, got '3'"),
    ({"mode": ["exact"]}, r"mode: must be one of .*got \['exact'\]"),
    ({"backbone": 1}, "backbone: must be a Wiring, got 1; backbone_wiring draws one"),
    ({"gate_wirings": 1}, "gate_wirings: must be the wirings of q, k, v, got 1"),
    ({"gate_wirings": [1]}, "gate_wirings: must be a Wiring, got 1; sensory_gate_wiring draws one"),
    ({"settle_steps": 2}, "steps: .*got 2, so the outputs would be constants; use at least 3"),
    ({"backbone": backbone_wiring(6, 16, 0.5, 0)}, r"backbone: .* = 16 inputs .*got 6 inputs"),
    ({"backbone": mlp_wiring(16, UNREACHED, sparsity=0.0, seed=0)}, "backbone: .*two output neurons .*1 outputs"),
    ({"gate_wirings": [sensory_gate_wiring(16, 16, 0.5, 0)] * 2}, r"gate_wirings: the wirings of q, k, v must have"),
    ({"gate_wirings": [sensory_gate_wiring(9, 16, 0.5, 0)] * 3}, r"gate_wirings: .*\(16, 16\).*got \[\(9, 16\)"),
]


@pytest.mark.parametrize(("settings", "message"), BAD_SETTINGS)
def test_a_setting_out_of_range_says_why(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NAC(**{"d_model": 16, "num_heads": 2, **settings})


def test_numbers_of_numpy_are_settings_too() -> None:
    plain, x = make(top_k=3, seed=1, gain=2.0, sparsity=0.25)
    torch.manual_seed(0)
    numbers = {"top_k": np.int64(3), "seed": np.uint8(1), "gain": np.float32(2.0), "sparsity": np.float32(0.25)}
    layer = NAC(np.int64(16), np.int32(2), **numbers)  # type: ignore[arg-type]
    assert torch.equal(layer(x, window=np.int64(5)), plain(x, window=5))  # type: ignore[arg-type]
