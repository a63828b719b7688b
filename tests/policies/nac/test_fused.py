"""The fused kernels of pairwise attention equal the naive layer.

The interpreter of triton runs the kernel with numpy, tile by tile (tests/conftest.py). It shows that the numbers are
right, not how fast they are.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from nac_drive.policies import NAC, Groups, Wiring, build_core, random_wiring
from nac_drive.policies.nac import fused
from nac_drive.policies.nac import layer as nac
from nac_drive.policies.nac.masks import Mask
from nac_drive.policies.nac.naive import naive_nac
from nac_drive.policies.nac.tokens import Tokens
from tests.slow import slow_but

pytest.importorskip("triton", reason="the kernel is written in triton")

T, LONGER, F = 19, 37, 5  # more than one tile of 16, and no multiple of it


class _Everything(set):
    """As if every kernel had been launched once."""

    def __contains__(self, item: object) -> bool:
        return True


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the kernels run. `NAC.attend` takes them for every pairwise call in float32, on the CPU as well."""
    monkeypatch.setattr(fused, "_refused", set())
    monkeypatch.setattr(fused, "_proven", _Everything())
    if torch.cuda.is_available():
        return "cuda"
    monkeypatch.setattr(
        nac, "usable", lambda query: query.dtype == torch.float32 and query.device not in fused._refused
    )
    return "cpu"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes of the kernel's outputs so far."""
    made: list[torch.Size] = []

    def counted(*arguments: Any) -> Tensor:
        y = fused.fused_pairwise(*arguments)
        assert y is not None
        made.append(y.shape)
        return y

    monkeypatch.setattr(nac, "fused_pairwise", counted)
    return made


def make(device: str, **arguments: Any) -> NAC:
    """A layer whose every parameter is away from its initial value."""
    torch.manual_seed(0)
    layer = NAC(**{"d_model": 8, "num_heads": 2, "input_size": F, "selection": "pairwise", **arguments})
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer.to(device)


def inputs(case: str, device: str) -> tuple[Tensor, dict[str, Any]]:
    """x (B, T, F) and the other arguments of a call."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, T, F, generator=generator)
    other = torch.randn(2, LONGER, F, generator=generator)
    times = 2.0 * torch.rand(2, T, LONGER, generator=generator)
    valid = torch.rand(2, LONGER, generator=generator) < 0.7
    valid[0, :2] = False  # a query without keys
    arguments: dict[str, Any] = {
        "plain": {},
        "causal": {"causal": True},
        "window": {"window": 4},
        "valid": {"causal": True, "valid": valid[:, :T]},
        "per sample": {"times": times[:, 0, 0]},
        "per key": {"times": times[:, 0, :T]},
        "context": {"context": other, "times": times, "valid": valid},
        "window over context": {"context": other, "window": 18, "times": times},
        "all": {"window": 4, "times": times[..., :T], "valid": valid[:, :T]},
    }[case]
    moved = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in arguments.items()}
    return x.to(device), moved


def assert_equal_to_naive(layer: NAC, x: Tensor, **arguments: Any) -> None:
    with torch.no_grad():
        y = layer(x, **arguments)
        assert isinstance(y, Tensor)
        torch.testing.assert_close(y, naive_nac(layer, x, **arguments), atol=2e-5, rtol=2e-5)


MASKS = ["plain", "causal", "window", "valid", "per sample", "per key", "context", "window over context", "all"]


@pytest.mark.parametrize("case", slow_but(["window over context", "all"], MASKS))
def test_every_mask_and_time_equals_the_naive_layer(case: str, device: str, calls: list) -> None:
    layer, (x, arguments) = make(device), inputs(case, device)
    assert_equal_to_naive(layer, x, **arguments)
    assert calls == [(2, 2, T, 4)]


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "euler"},
        {"mode": "euler", "euler_steps": 1},
        {"mode": "steady"},
        {"phi_activation": "tanh"},
        {"phi_activation": "linear", "mode": "steady"},
        {"output": "riemann", "delta_t": 0.5},
        {"wiring": "mlp", "sparsity": 0.2},
        {"d_model": 6, "num_heads": 1, "sparsity": 0.9},
        {"d_model": 40, "num_heads": 2},  # neurons and features beyond a power of two
    ],
    ids=str,
)
def test_every_setting_equals_the_naive_layer(settings: dict[str, Any], device: str, calls: list) -> None:
    layer, (x, arguments) = make(device, **settings), inputs("all", device)
    assert_equal_to_naive(layer, x[:1], window=9, times=arguments["times"][:1])
    assert len(calls) == 1


GRADIENTS = [
    ("all", {}),
    ("plain", {"mode": "euler"}),
    ("per key", {"mode": "euler", "euler_steps": 1, "phi_activation": "tanh"}),
    ("causal", {"mode": "steady", "phi_activation": "linear", "output": "riemann", "delta_t": 0.5}),
    ("valid", {"mode": "steady"}),
    ("window", {"d_model": 40, "num_heads": 2}),  # neurons and features beyond a power of two
    ("window over context", {"d_model": 6, "num_heads": 1, "sparsity": 0.9, "output": "riemann"}),
]


@pytest.mark.parametrize(("case", "settings"), slow_but(GRADIENTS[:2], GRADIENTS), ids=str)
def test_gradients_of_every_mask_mode_and_output(case: str, settings: dict[str, Any], device: str, calls: list) -> None:
    """The layer in float64 runs in chunks. The next test ties it to `naive`."""
    layer, (x, arguments) = make(device, **{"num_heads": 1, **settings}), first_sample(inputs(case, device))
    assert_gradients(layer, NAC.__call__, x, arguments)
    assert len(calls) == 1


def test_gradients_are_the_naive_layers(device: str, calls: list) -> None:
    layer, (x, arguments) = make(device, d_model=4, num_heads=1), first_sample(inputs("all", device))
    assert_gradients(layer, naive_nac, x, arguments)
    assert len(calls) == 1


def test_weights_sum_the_gradients_of_all_samples(device: str, calls: list) -> None:
    layer, (x, _) = make(device), inputs("plain", device)
    assert_gradients(layer, NAC.__call__, x[:, :5], {})
    assert len(calls) == 1


def test_tiles_of_a_gpu_give_the_same_numbers(device: str, calls: list, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, (x, arguments) = make(device, num_heads=1), first_sample(inputs("window", device))
    monkeypatch.undo()
    monkeypatch.setattr(nac, "usable", lambda query: query.dtype == torch.float32)
    monkeypatch.setattr(nac, "fused_pairwise", fused.fused_pairwise)
    assert fused.FORWARD != fused.BACKWARD
    assert_gradients(layer, NAC.__call__, x, arguments)


def first_sample(case: tuple[Tensor, dict[str, Any]]) -> tuple[Tensor, dict[str, Any]]:
    x, arguments = case
    return x[:1], {name: value[:1] if isinstance(value, Tensor) else value for name, value in arguments.items()}


def assert_gradients(layer: NAC, oracle: Callable[..., Any], x: Tensor, arguments: dict[str, Any]) -> None:
    """Compare the gradients with the oracle's in float64."""
    direction = torch.randn(
        *x.shape[:2], layer.d_model, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    gradients = []
    for form, dtype in ((oracle, torch.float64), (operator.call, torch.float32)):
        moved = {name: arg.to(dtype) if name in ("times", "context") else arg for name, arg in arguments.items()}
        sources = {"x": x.to(dtype).requires_grad_()}
        if "context" in moved:
            sources["context"] = moved["context"].requires_grad_()
        y = form(layer.to(dtype), sources["x"], **moved)
        sources.update(layer.named_parameters())
        of_sources = torch.autograd.grad(y, [*sources.values()], direction.to(y), allow_unused=True)
        gradients.append(dict(zip(sources, of_sources, strict=True)))
    for name, expected in gradients[0].items():
        if expected is not None:  # the time of a steady logit has none, the kernel gives zeros
            scale = max(1e-3, expected.abs().max().item())
            torch.testing.assert_close(
                gradients[1][name], expected.float(), atol=2e-5 * scale, rtol=2e-4, msg=partial("{}: {}".format, name)
            )


def test_small_and_large_decay_rates_keep_their_digits(device: str, calls: list) -> None:
    """omega t from 1e-6 to 30: the logits are then up to phi / omega, and as good as float32 can."""
    for mode in ("exact", "euler"):
        for shift in (-12.0, 30.0):
            layer, (x, arguments) = make(device, mode=mode), first_sample(inputs("context", device))
            with torch.no_grad():
                layer.backbone.out_shift[:, :, 1] = shift
                double = naive_nac(layer.double(), x.double(), times=arguments["times"][..., :T].double())
                y = layer.float()(x, times=arguments["times"][..., :T])
            torch.testing.assert_close(y, double.float(), atol=1e-5, rtol=1e-5)
    assert len(calls) == 4


def test_a_stream_runs_it_as_well(device: str, calls: list) -> None:
    torch.manual_seed(0)
    core = build_core("nac-pw", F, 8, num_heads=2, window=6).to(device)
    x, dt = torch.randn(2, 9, F, device=device), torch.rand(2, 9, device=device)
    expected, _ = core.double()(x.double(), dt.double(), core.initial_state(2))  # in chunks
    core.float()
    assert not calls
    with torch.no_grad():
        whole, state = core(x, dt, core.initial_state(2))
        first, state = core(x[:, :4], dt[:, :4], core.initial_state(2))
        second, state = core(x[:, 4:], dt[:, 4:], state)
    assert len(calls) == 3
    torch.testing.assert_close(whole, expected.float(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(torch.cat((first, second), dim=1), expected.float(), atol=1e-5, rtol=1e-5)


def test_other_circuits_go_another_way_to_the_same_numbers(device: str, calls: list) -> None:
    groups = Groups(inter=4, command=5, motor=2, input_group="inter")
    drawn = random_wiring(8, groups, sparsity=0.3, seed=0)
    direct = drawn.recurrent_mask.copy()
    direct[groups.slice("inter"), groups.slice("motor")] = True  # past the command neurons
    own = Wiring(groups, drawn.input_mask, direct)
    for settings in ({"settle_steps": 4}, {"backbone": own}, {"d_model": 240, "num_heads": 1}):
        layer, (x, arguments) = make(device, **settings), inputs("all", device)
        assert_equal_to_naive(layer, x, **arguments)
    assert not calls


def test_only_a_gpu_runs_it_and_not_in_double_precision(device: str) -> None:
    query = torch.zeros(1, device=device)
    assert fused.usable(query) == fused.usable(query.bfloat16()) == query.is_cuda
    assert not fused.usable(query.double())


def test_tokens_of_autocast_are_computed_in_float32(device: str, calls: list) -> None:
    layer, (x, _) = make(device), inputs("plain", device)
    with torch.no_grad():
        tokens = layer.project(x[:, :5])
        half = Tokens(tokens.query.half(), tokens.query_logit_inputs.half(), tokens.kv.half())
        wide = Tokens(half.query.float(), half.query_logit_inputs.float(), half.kv.float())
        circuit = fused.layers(layer.backbone.fused())
        assert circuit is not None
        expected = nac.fused_pairwise(layer, wide, circuit, Mask(5, 5), None)
        y = nac.fused_pairwise(layer, half, circuit, Mask(5, 5), None)
    assert y is not None
    assert expected is not None
    assert y.dtype == torch.float16
    assert torch.equal(y, expected.half())


def test_times_with_gradients_go_in_chunks(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, (x, arguments) = make(device), inputs("per key", device)
    times = arguments["times"].requires_grad_()
    monkeypatch.setattr(fused, "_Pairwise", None)
    layer(x, times).sum().backward()
    assert times.grad.abs().sum() > 0


@pytest.mark.parametrize("broken", ["attend", "attend_gradients"])
def test_a_failed_launch_warns_once_and_goes_in_chunks(
    broken: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken backward pass fails in the forward pass."""
    layer, (x, _) = make(device), inputs("plain", device)
    expected = layer.double()(x.double()).float()
    monkeypatch.setattr(fused, "_proven", set())
    monkeypatch.setattr(f"nac_drive.policies.nac.kernel.{broken}", {})  # any launch is a KeyError
    layer.float()
    with pytest.warns(RuntimeWarning, match="kernel cannot run on"):
        y = layer(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(layer(x), y)
    torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-5)
    y.sum().backward()


def test_hooks_of_the_logits_are_called_and_the_kernel_is_not(device: str, calls: list[torch.Size]) -> None:
    layer, x = make(device), inputs("plain", device)[0]
    with torch.no_grad():
        layer.logit_hooks.append(torch.zeros_like)
        y, record = layer(x, return_attention=True)
        hooked = layer(x)
        assert not calls
        torch.testing.assert_close(record.alpha, torch.full_like(record.alpha, 1 / T))
        torch.testing.assert_close(hooked, y)
        layer.logit_hooks.clear()
        assert not torch.allclose(layer(x), hooked)
    assert len(calls) == 1
