"""Graphed loops give the numbers of eager ones."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from nac_drive.policies import build_core
from nac_drive.policies.ops import graphed as loops
from nac_drive.policies.ops.graphed import MOST, SHORTEST, cuda_graph, graphed
from tests.recorded_loops import forget_loops, recorded_loops

B, T, F, D = 2, 9, 3, 4


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    forget_loops()


def trained(name: str, device: str = "cpu") -> list[Tensor]:
    """Return outputs, states, gradients and weights of a few updates."""
    torch.manual_seed(0)
    core = build_core(name, F, D).to(device)
    generator = torch.Generator().manual_seed(1)
    kept: list[Tensor] = []
    for _ in range(4):
        x = torch.randn(B, T, F, generator=generator).to(device).requires_grad_()
        dt = (0.1 * torch.rand(B, T, generator=generator)).to(device).requires_grad_()
        y, state = core(x, dt, core.initial_state(B))
        core.zero_grad()
        y.square().sum().backward()
        assert x.grad is not None
        assert dt.grad is not None
        kept += [y, *state, x.grad, dt.grad, *(p.grad for p in core.parameters())]
        with torch.no_grad():
            for parameter in core.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.1 * parameter.grad)
        with torch.inference_mode():
            y, state = core(x, dt, core.initial_state(B))
            kept += [y, *state]
    return [tensor.detach().cpu().clone() for tensor in [*kept, *core.parameters()]]


@pytest.mark.parametrize("name", ["cfc", "cfc-pure", "cfc-no-gate", "cfc-ncp", "ltc", "ncp"])
def test_a_recorded_training_is_the_same(name: str) -> None:
    expected = trained(name)
    with recorded_loops() as repeated:
        actual = trained(name)
    # forward, backward and without gradients, from the second call on; a copied b of the LTC has another layout
    assert len(repeated) == {"cfc-ncp": 27, "ltc": 8, "ncp": 8}.get(name, 9)
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["cfc", "cfc-ncp", "ltc"])
def test_a_cuda_graph_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as eager:
        eager.delitem(loops.CAPTURES, "cuda")
        expected = trained(name, "cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = trained(name, "cuda")
    assert any(loops._loops.values())
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one, other)


def doubled(x: Tensor) -> tuple[Tensor, ...]:
    return (2.0 * x,)


def test_only_what_may_pay_is_recorded() -> None:
    many = torch.ones(1).expand(loops.LARGEST + 1)
    with recorded_loops() as repeated:
        for _ in range(3):
            graphed(SHORTEST - 1, doubled, torch.ones(2))
            graphed(SHORTEST, lambda x: (x[:1],), many)
        assert not repeated
        assert not loops._loops
        for _ in range(3):
            graphed(SHORTEST, doubled, torch.ones(2))
        assert len(repeated) == 2


def test_the_loops_that_were_not_used_for_longest_are_forgotten() -> None:
    with recorded_loops() as repeated:
        for size in [1, 1, *range(2, MOST + 2), 1]:
            assert torch.equal(graphed(SHORTEST, doubled, torch.ones(size))[0], torch.full((size,), 2.0))
        assert len(loops._loops) == MOST
        assert len(repeated) == 1  # the last call found its loop forgotten


def test_outputs_are_not_overwritten_by_the_next_call() -> None:
    with recorded_loops():
        results = [graphed(SHORTEST, doubled, torch.full((2,), float(n)))[0] for n in range(4)]
    assert [float(result[0]) for result in results] == [0.0, 2.0, 4.0, 6.0]


def test_a_loop_that_reads_a_value_runs_step_by_step_after_one_warning() -> None:
    def reads(x: Tensor) -> tuple[Tensor, ...]:
        return (x * float(x.sum()),)

    with recorded_loops() as repeated, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(4):
            x = torch.full((2,), float(n))
            assert torch.equal(graphed(SHORTEST, reads, x)[0], reads(x)[0])
        assert not repeated
    assert [str(w.message).split(". ")[0] for w in caught] == [
        "a loop over time cannot be recorded on cpu (RuntimeError: aten::_local_scalar_dense is not permitted while a "
        "loop is recorded)"
    ]


def test_a_loop_with_other_outputs_runs_step_by_step_after_one_warning() -> None:
    calls: list[int] = []

    def differs(x: Tensor) -> tuple[Tensor, ...]:
        calls.append(1)
        return (x + len(calls),)

    with recorded_loops(), pytest.warns(RuntimeWarning, match="its outputs differ") as caught:
        results = [float(graphed(SHORTEST, differs, torch.zeros(1))[0]) for _ in range(3)]
    assert results == [1.0, 2.0, 4.0]
    assert len(caught) == 1


def test_numbers_that_are_not_finite_are_no_difference() -> None:
    with recorded_loops() as repeated:
        for _ in range(3):
            assert graphed(SHORTEST, doubled, torch.tensor([float("nan"), float("inf")]))[0].isnan()[0]
        assert len(repeated) == 2


def test_only_cuda_records() -> None:
    assert list(loops.CAPTURES.items()) == [("cuda", cuda_graph)]
