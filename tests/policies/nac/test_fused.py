"""The fused kernel of pairwise attention equals the naive layer: interpreted on the CPU, or on the GPU if there is one.

The interpreter of triton runs the kernel with numpy, tile by tile (tests/conftest.py). It shows that the numbers are
right, not how fast they are.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from nac_drive.policies import NAC, Groups, Wiring, build_core, random_wiring
from nac_drive.policies.nac import fused
from nac_drive.policies.nac import layer as nac
from nac_drive.policies.nac.naive import naive_nac

pytest.importorskip("triton", reason="the kernel is written in triton")

T, LONGER, F = 19, 37, 5  # more than one tile of 16, and no multiple of it


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the kernel runs. `NAC.attend` takes it for every pairwise call without gradients, on the CPU as well."""
    if torch.cuda.is_available():
        return "cuda"
    monkeypatch.setattr(nac, "usable", lambda query: not torch.is_grad_enabled())
    return "cpu"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes of the kernel's outputs so far."""
    made: list[torch.Size] = []

    def counted(*arguments: Any) -> Tensor:
        y = fused.fused_pairwise(*arguments)
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


@pytest.mark.parametrize(
    "case", ["plain", "causal", "window", "valid", "per sample", "per key", "context", "window over context", "all"]
)
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


def test_small_and_large_decay_rates_keep_their_digits(device: str, calls: list) -> None:
    """omega t from 1e-6 to 30: the logits are then up to phi / omega, and as good as float32 can."""
    for mode in ("exact", "euler"):
        for shift in (-12.0, 30.0):
            layer, (x, arguments) = make(device, mode=mode), inputs("context", device)
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
    expected, _ = core(x, dt, core.initial_state(2))  # with gradients: in chunks
    assert not calls
    with torch.no_grad():
        whole, state = core(x, dt, core.initial_state(2))
        first, state = core(x[:, :4], dt[:, :4], core.initial_state(2))
        second, state = core(x[:, 4:], dt[:, 4:], state)
    assert len(calls) == 3
    torch.testing.assert_close(whole, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(torch.cat((first, second), dim=1), expected, atol=1e-5, rtol=1e-5)


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


def test_only_a_gpu_in_float32_without_gradients_runs_it(device: str) -> None:
    query = torch.zeros(1, device=device)
    with torch.no_grad():
        assert fused.usable(query) == query.is_cuda
        assert not fused.usable(query.double())
    assert not fused.usable(query)


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
