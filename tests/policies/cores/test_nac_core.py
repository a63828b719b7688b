"""NAC over a stream: its window, its ages, and a task that needs memory."""

from __future__ import annotations

import json

import pytest
import torch

from nac_drive.policies import CORES, Core, Groups, NACCore, build_core, random_wiring
from tests.contracts import CoreContract

NAC_CORES = [name for name, factory in CORES.items() if factory.core is NACCore]


class TestNAC(CoreContract):
    @pytest.fixture(autouse=True, params=NAC_CORES)
    def _choose(self, request: pytest.FixtureRequest) -> None:
        self.name = request.param

    def make_core(self) -> Core:  # a window shorter than the contract's sequences, so that frames fall out of it
        settings = {"top_k": 3} if "top_k" in CORES[self.name].accepted else {}
        return build_core(self.name, 5, 8, num_heads=2, window=6, **settings)


def test_nac_forgets_what_leaves_the_window_and_nothing_sooner() -> None:
    torch.manual_seed(0)
    core = build_core("nac-pw", 5, 8, num_heads=2, window=4)
    x, dt = torch.randn(1, 9, 5), torch.full((1, 9), 0.02)
    base, _ = core(x, dt, core.initial_state(1))
    changed = x.clone()
    changed[:, 2] += 1.0
    moved = (core(changed, dt, core.initial_state(1))[0] - base).abs().amax(dim=(0, 2)) > 1e-6
    assert moved.tolist() == [False, False, True, True, True, True, False, False, False]


def test_nac_ages_keep_their_precision_over_a_long_stream() -> None:
    torch.manual_seed(0)
    core = build_core("nac-exact", 5, 8, num_heads=2, window=4)
    with torch.no_grad():
        state = core.initial_state(1)
        x = torch.randn(1, 500, 5)
        for _ in range(20):  # 10 000 frames, 200 s: absolute float32 times would be off by 1e-5
            _, state = core(x, torch.full((1, 500), 0.02), state)
        for _ in range(4):
            _, state = core(x[:, :1], torch.full((1, 1), 0.02), state)
    torch.testing.assert_close(state[1], torch.tensor([[0.04, 0.02, 0.0]]), atol=1e-7, rtol=0.0)


def test_a_wiring_of_ones_own_comes_as_its_config() -> None:
    wiring = random_wiring(8, Groups(inter=4, command=5, motor=2, input_group="inter"), sparsity=0.3, seed=0)
    core = build_core("nac-exact", 5, 8, num_heads=2, backbone=json.loads(json.dumps(wiring.to_config())))
    assert isinstance(core, NACCore)
    assert core.nac.drive_size == 4


def test_blocks_that_move_with_the_stream_are_refused() -> None:
    with pytest.raises(ValueError, match="selection: a stream cannot be cut into 'block's"):
        NACCore(5, 8, num_heads=2, selection="block")


def test_the_window_needs_time_unless_steady_and_unweighted() -> None:
    assert build_core("nac-steady", 5, 8, num_heads=2).continuous_time
    assert not build_core("nac-steady", 5, 8, num_heads=2, output="riemann").continuous_time


def test_nac_learns_what_needs_memory_and_a_feedforward_core_cannot() -> None:
    """The answer is the bit of the frame before: nothing in the present frame gives it away."""
    losses = {}
    for name, settings in (("nac-exact", {"num_heads": 4, "window": 3}), ("cnn", {})):
        torch.manual_seed(0)
        bits = torch.randint(0, 2, (16, 10))
        x, dt = torch.nn.functional.one_hot(bits, 2).float(), torch.full((16, 10), 0.5)
        core, readout = build_core(name, 2, 16, **settings), torch.nn.Linear(16, 2)
        optimizer = torch.optim.Adam([*core.parameters(), *readout.parameters()], lr=2e-2)
        for _ in range(120):
            y, _ = core(x, dt, core.initial_state(16))
            loss = torch.nn.functional.cross_entropy(readout(y[:, 1:]).flatten(0, 1), bits[:, :-1].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses[name] = loss.item()
    assert losses["cnn"] > 0.6
    assert losses["nac-exact"] < 0.3
