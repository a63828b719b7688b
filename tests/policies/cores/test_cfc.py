"""The closed-form continuous-time networks: modes, the NCP wiring, and their written-out gradient."""

from __future__ import annotations

from typing import Any

import ncps.wirings
import pytest
import torch
from ncps.torch import CfCCell, WiredCfCCell
from torch import Tensor
from torch.func import functional_call

from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.cfc import CfC, WiredCfC
from nac_drive.policies.ops.cfc_steps import FORMS
from tests.contracts import CoreContract, unmoved_by_autocast


class TestCfC(CoreContract):
    def make_core(self) -> Core:
        return CfC(5, 8, backbone_units=16)


class TestPureCfC(CoreContract):
    def make_core(self) -> Core:
        return CfC(5, 8, backbone_units=16, mode="pure")


class TestNoGateCfC(CoreContract):
    def make_core(self) -> Core:
        return CfC(5, 8, backbone_units=16, mode="no-gate")


class TestWiredCfC(CoreContract):
    def make_core(self) -> Core:
        return WiredCfC(5, 8, units=20)


@pytest.mark.parametrize(("mode", "name"), [("gated", "default"), ("pure", "pure"), ("no-gate", "no_gate")])
def test_modes_equal_ncps_on_copied_weights(mode: str, name: str) -> None:
    torch.manual_seed(0)
    ours, theirs = CfC(5, 8, backbone_units=16, mode=mode, time_unit=1.0), CfCCell(5, 8, mode=name, backbone_units=16)
    heads = [theirs.ff1] if mode == "pure" else [theirs.ff1, theirs.ff2, theirs.time_a, theirs.time_b]
    with torch.no_grad():
        layer = theirs.backbone[0]  # pyright: ignore[reportOptionalSubscript]
        assert isinstance(layer, torch.nn.Linear)
        ours.input.weight.copy_(layer.weight[:, :5])
        ours.input.bias.copy_(layer.bias)
        ours.recurrent.weight.copy_(layer.weight[:, 5:])
        ours.heads.weight.copy_(torch.cat([head.weight for head in heads]))
        ours.heads.bias.copy_(torch.cat([head.bias for head in heads]))
        if ours.w_tau is not None and ours.limit is not None:
            ours.w_tau.copy_(theirs.w_tau[0])  # some of them negative: only their size counts
            ours.limit.copy_(theirs.A[0])
    x, dt, start = torch.randn(3, 9, 5), torch.rand(3, 9) * 3.0, torch.randn(3, 8)
    y, _ = ours(x, dt, (start,))
    for row in range(3):  # ncps takes one dt for all rows
        h = start[row : row + 1]
        for step in range(9):
            h, _ = theirs(x[row : row + 1, step], h, dt[row, step])
            torch.testing.assert_close(y[row : row + 1, step], h, atol=2e-6, rtol=2e-6)


class CopiedWiring(ncps.wirings.Wiring):
    """Three layers with the synapses of a WiredCfC."""

    def __init__(self, core: WiredCfC) -> None:
        super().__init__(core.wiring.units)
        self.core = core
        self.set_input_dim(core.input_size)
        self.set_output_dim(core.output_size)
        self.adjacency_matrix = core.wiring.recurrent_mask.astype(int)
        self.sensory_adjacency_matrix = core.wiring.input_mask.astype(int)

    @property
    def num_layers(self) -> int:
        return 3

    def get_neurons_of_layer(self, layer_id: int) -> list[int]:
        group = self.core.wiring.group(("inter", "command", "motor")[layer_id])
        return list(range(group.start, group.stop))


def test_the_wired_form_equals_ncps_on_copied_weights_and_wiring() -> None:
    torch.manual_seed(0)
    ours = WiredCfC(5, 6, units=16, time_unit=1.0)
    theirs = WiredCfCCell(5, CopiedWiring(ours))
    layers: Any = zip(ours.layers, theirs._layers, strict=True)
    with torch.no_grad():
        for layer, cell in layers:
            heads = cell.ff1, cell.ff2, cell.time_a, cell.time_b
            joint = torch.cat([head.weight for head in heads])
            layer.weight.copy_(joint[:, : layer.mask.shape[1]])  # unmasked: both mask at use
            layer.recurrent.copy_(joint[:, layer.mask.shape[1] :])
            layer.bias.copy_(torch.cat([head.bias for head in heads]))
    x, dt, start = torch.randn(3, 9, 5), torch.rand(3, 9) * 3.0, torch.randn(3, 16)
    y, (last,) = ours(x, dt, (start,))
    for row in range(3):
        h = start[row : row + 1]
        for step in range(9):
            motor, h = theirs(x[row : row + 1, step], h, dt[row, step])
            torch.testing.assert_close(y[row : row + 1, step], motor, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(last[row : row + 1], h, atol=1e-6, rtol=1e-6)


def test_the_wired_form_has_the_neurons_of_auto_ncp() -> None:
    ours, theirs = WiredCfC(64, 64), ncps.wirings.AutoNCP(128, 64)
    assert ours.sizes == [len(theirs._inter_neurons), len(theirs._command_neurons), 64]
    groups = ours.wiring.groups
    block = ours.wiring.recurrent_mask[groups.slice("inter"), groups.slice("command")]
    assert block.sum() == pytest.approx(0.5 * block.size, rel=0.1)


def test_the_pure_form_starts_at_its_head_and_ends_at_its_limit() -> None:
    """h' = A (1 - exp(-(|w| + |f|) dt) f): A (1 - f) after no time, A after a long one."""
    torch.manual_seed(0)
    core = CfC(5, 8, mode="pure").double()
    assert core.w_tau is not None
    assert core.limit is not None
    x, h = torch.randn(1, 1, 5).double(), torch.randn(1, 8).double()
    f = core.heads(1.7159 * torch.tanh(0.666 * (core.input(x[:, 0]) + core.recurrent(h))))
    for seconds in (0.0, 0.02, 1.0, 1e3):
        y, _ = core(x, torch.full((1, 1), seconds).double(), (h,))
        decay = torch.exp(-(core.w_tau.abs() + f.abs()) * seconds)
        torch.testing.assert_close(y[:, 0], core.limit * (1.0 - decay * f))
    torch.testing.assert_close(y[0, 0], core.limit.detach(), check_dtype=False)


@pytest.mark.parametrize("mode", [*FORMS, "wired"])
def test_the_written_out_gradient_is_the_gradient(mode: str) -> None:
    torch.manual_seed(0)
    core = WiredCfC(3, 3, units=8) if mode == "wired" else CfC(3, 4, backbone_units=5, mode=mode)
    core, d = core.double(), core.state_shapes()[0][0][0]
    names, parameters = zip(*core.named_parameters(), strict=True)
    x, h = torch.randn(2, 4, 3, dtype=torch.float64), torch.randn(2, d, dtype=torch.float64)
    dt = 0.02 + 0.5 * torch.rand(2, 4, dtype=torch.float64)
    inputs = [tensor.detach().requires_grad_() for tensor in (x, dt, h, *parameters)]

    def run(x: Tensor, dt: Tensor, h: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        y, (last,) = functional_call(core, dict(zip(names, parameters, strict=True)), (x, dt, (h,)))
        return y, last

    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)


@pytest.mark.parametrize("mode", [*FORMS, "wired"])
def test_a_gradient_that_is_not_recorded_changes_nothing(mode: str) -> None:
    torch.manual_seed(0)
    core = WiredCfC(5, 8) if mode == "wired" else CfC(5, 8, mode=mode)
    x, dt = torch.randn(3, 7, 5), torch.rand(3, 7)
    recorded, (last,) = core(x, dt, core.initial_state(3))
    with torch.no_grad():
        y, (after,) = core(x, dt, core.initial_state(3))
    assert torch.equal(y, recorded)
    assert torch.equal(after, last)


@pytest.mark.parametrize("mode", [*FORMS, "wired"])
def test_autocast_changes_nothing(mode: str) -> None:
    torch.manual_seed(0)
    assert unmoved_by_autocast(WiredCfC(5, 8) if mode == "wired" else CfC(5, 8, mode=mode))


@pytest.mark.parametrize("mode", FORMS)
def test_streaming_notices_new_weights(mode: str) -> None:
    torch.manual_seed(0)
    core = CfC(5, 8, mode=mode)
    x, dt, h = torch.randn(1, 1, 5), torch.full((1, 1), 0.02), torch.randn(1, 8)
    for parameter in core.parameters():
        with torch.no_grad():
            before, _ = core(x, dt, (h,))
            parameter.mul_(1.5).add_(0.1)
            after, _ = core(x, dt, (h,))
        recorded, _ = core(x, dt, (h,))
        assert torch.equal(after, recorded)
        assert not torch.equal(after, before)


def test_a_batch_of_dts_is_not_mixed_up() -> None:
    """The case ncps gets wrong: different time spans in one batch, batch size equal to the state size."""
    torch.manual_seed(0)
    core = CfC(5, 8, backbone_units=16, time_unit=1.0)
    x, dt = torch.randn(8, 3, 5), torch.rand(8, 3) * 5.0
    together, _ = core(x, dt, core.initial_state(8))
    alone = torch.cat([core(x[i : i + 1], dt[i : i + 1], core.initial_state(1))[0] for i in range(8)])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=1e-6)


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match=r"mode: must be one of \['gated', 'no-gate', 'pure'\], got 'default'"):
        CfC(5, 8, mode="default")
    with pytest.raises(ValueError, match=r"units: must be at least output_size \+ 2 = 10 neurons, got 9"):
        WiredCfC(5, 8, units=9)
    with pytest.raises(ValueError, match=r"sparsity: must be in \[0, 1\), got 1.0"):
        WiredCfC(5, 8, sparsity=1.0)
