"""Every core keeps the contract; what is particular to each of them."""

from __future__ import annotations

import json
import re
from inspect import signature
from pathlib import Path

import pytest
import torch

from nac_drive.policies import (
    CORES,
    NAC,
    CfC,
    Core,
    Driver,
    DriverConfig,
    Groups,
    NACCore,
    build_core,
    load_driver,
    random_wiring,
    save_driver,
)
from tests.contracts import CoreContract

NAC_CORES = [name for name in CORES if name.startswith("nac-")]


class TestNAC(CoreContract):
    @pytest.fixture(autouse=True, params=NAC_CORES)
    def _choose(self, request: pytest.FixtureRequest) -> None:
        self.name = request.param

    def make_core(self) -> Core:  # a window shorter than the contract's sequences, so that frames fall out of it
        settings = {"top_k": 3} if "top_k" in CORES[self.name].accepted else {}
        return build_core(self.name, 5, 8, num_heads=2, window=6, **settings)


class TestLSTM(CoreContract):
    def make_core(self) -> Core:
        return build_core("lstm", 5, 8)


class TestGRU(CoreContract):
    def make_core(self) -> Core:
        return build_core("gru", 5, 8)


class TestCNN(CoreContract):
    def make_core(self) -> Core:
        return build_core("cnn", 5, 8)


class TestCfC(CoreContract):
    def make_core(self) -> Core:
        return build_core("cfc", 5, 8, backbone_units=16)


def test_a_batch_of_dts_is_not_mixed_up() -> None:
    """The case ncps gets wrong: different time spans in one batch, batch size equal to the state size."""
    torch.manual_seed(0)
    core = CfC(5, 8, backbone_units=16)
    x, dt = torch.randn(8, 3, 5), torch.rand(8, 3) * 5.0
    together, _ = core(x, dt, core.initial_state(8))
    alone = torch.cat([core(x[i : i + 1], dt[i : i + 1], core.initial_state(1))[0] for i in range(8)])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=1e-6)


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


def test_the_registry_holds_the_promised_names() -> None:
    families = """
    cnn cnn-bojarski rnn lstm lstm-sparse gru
    ct-rnn ct-rnn-sparse ct-gru gru-ode phased-lstm mmrnn ltc ncp ncp-random ncp-full
    cfc cfc-no-gate cfc-pure cfc-ncp lds deepstate s4d
    attention mha linear-attention performer mtan cta odeformer contiformer
    pdna-a pdna-b pdna-c pdna-d pdna-e pdna-ode circuitnet-l circuitnet-la circuitnet-lp
    """
    assert set(CORES) == {*NAC_CORES, *families.split()}
    phis, dense = {"nac-phi-linear", "nac-phi-tanh"}, {"nac-fc", "nac-09sfc", "nac-05sfc", "nac-02sfc"}
    ablations = {"nac-exact", "nac-euler", "nac-steady", "nac-2k", "nac-32k", "nac-pw", "nac-02s", "nac-09s"}
    assert set(NAC_CORES) == ablations | phis | dense | {"nac-learned"}


@pytest.mark.parametrize("name", CORES)
def test_the_page_of_drivers_names_every_core_with_its_size(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "drivers.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("|") and f"`{name}`" in line.split("|")[1]]
    parameters = sum(p.numel() for p in build_core(name, 64, 64).parameters())
    told = [int(number.replace(",", "")) for number in re.findall(r"[\d,]+", row.split("|")[2])]
    assert parameters in told or ("to" in row.split("|")[2] and min(told) <= parameters <= max(told))
    assert row.split("|")[3].strip() == ("yes" if build_core(name, 64, 64).continuous_time else "no")


@pytest.mark.parametrize("name", CORES)
def test_a_driver_with_any_core_comes_back_from_its_folder(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    driver = Driver(DriverConfig(core=name)).eval()
    save_driver(tmp_path / "driver", driver, env={}, meta={})
    again = load_driver(tmp_path / "driver").eval()
    frames, dt = torch.randint(0, 256, (2, 3, 96, 96, 3), dtype=torch.uint8), torch.full((2, 3), 0.02)
    assert torch.equal(again(frames, dt)[0], driver(frames, dt)[0])


@pytest.mark.parametrize("name", CORES)
def test_every_accepted_setting_is_one_of_the_core(name: str) -> None:
    factory = CORES[name]
    parameters = signature(factory.core).parameters
    known = {*parameters, *signature(NAC).parameters} if factory.core is NACCore else {*parameters}
    assert {*factory.accepted, *factory.fixed} <= known
    assert not {*factory.accepted} & {*factory.fixed}


def test_a_wiring_of_ones_own_comes_as_its_config() -> None:
    wiring = random_wiring(8, Groups(inter=4, command=5, motor=2, input_group="inter"), sparsity=0.3, seed=0)
    core = build_core("nac-exact", 5, 8, num_heads=2, backbone=json.loads(json.dumps(wiring.to_config())))
    assert isinstance(core, NACCore)
    assert core.nac.drive_size == 4


def test_blocks_that_move_with_the_stream_are_refused() -> None:
    with pytest.raises(ValueError, match="selection: a stream cannot be cut into 'block's"):
        NACCore(5, 8, num_heads=2, selection="block")


def test_an_unknown_core_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"core: unknown name 'nac'.*nac-exact, nac-euler"):
        build_core("nac", 5, 8)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("lstm", {"layers": 2}, r"unknown \['layers'\]; accepted here are \[\]"),
        ("nac-exact", {"topk": 4}, r"unknown \['topk'\].*'top_k'"),
        ("nac-euler", {"mode": "exact"}, r"unknown \['mode'\]"),
        ("nac-pw", {"top_k": 4}, r"unknown \['top_k'\]"),
        ("nac-2k", {"top_k": 4}, r"unknown \['top_k'\]"),
        ("nac-exact", {"euler_steps": 4}, r"unknown \['euler_steps'\]"),
        ("nac-exact", {"window": 0}, "window: must be at least 1 frame, got 0"),
        ("nac-exact", {"num_heads": 3}, "d_model: must be a positive multiple of num_heads=3, got 8"),
        ("nac-exact", {"num_heads": 2, "settle_steps": 2}, "steps: .*got 2.*at least 3"),
        ("nac-exact", {"num_heads": 2, "sparsity": 1.0}, r"sparsity: must be in \[0, 1\), got 1.0"),
        ("nac-exact", {"num_heads": 2, "phi_activation": "relu"}, "gate: must be one of"),
        ("nac-exact", {"num_heads": 2, "delta_t": 0.0}, "delta_t: must be positive"),
        ("nac-exact", {"num_heads": 2, "top_k": 0}, "top_k: must be at least 1, got 0"),
        ("cfc", {"backbone_units": 0}, "backbone_units: must be at least 1, got 0"),
    ],
)
def test_bad_settings_are_named(name: str, settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_core(name, 5, 8, **settings)


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
