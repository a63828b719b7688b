"""The registry of cores: names, settings, the table in the docs, and a core of one's own."""

from __future__ import annotations

import ast
import re
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import torch

from nac_drive.policies import CORES, NAC, Core, Driver, DriverConfig, NACCore, build_core, load_driver, save_driver
from nac_drive.policies.cores import registry
from nac_drive.policies.cores.base import CoreFactory, State, StateSpec
from nac_drive.policies.cores.registry import core_table
from tests.policies.kinds import FIRST_OF_CLASS
from tests.slow import slow_but

NAC_CORES = [name for name, factory in CORES.items() if factory.core is NACCore]


def test_the_registry_holds_the_promised_names() -> None:
    families = """
    cnn cnn-bojarski rnn rin tdnn narx lstm lstm-sparse gru
    ct-rnn ct-rnn-sparse ct-gru gru-ode ode-rnn phased-lstm mmrnn ltc lrc ncp ncp-random ncp-full tap-withdrawal
    cfc cfc-no-gate cfc-pure cfc-ncp lds deepstate s4 s4d
    attention mha transformer nac-transformer relu-attention linear-attention performer mtan cta odeformer contiformer
    pdna-b pdna-c pdna-d pdna-e pdna-ode circuitnet-l circuitnet-la circuitnet-lp
    circuitnet-lap
    """
    assert set(CORES) == {*NAC_CORES, *families.split()}
    phis, dense = {"nac-phi-linear", "nac-phi-tanh"}, {"nac-fc", "nac-09sfc", "nac-05sfc", "nac-02sfc"}
    ablations = {"nac-exact", "nac-euler", "nac-steady", "nac-2k", "nac-32k", "nac-pw", "nac-02s", "nac-09s"}
    assert set(NAC_CORES) == ablations | phis | dense | {"nac-learned", "nac-sharp"}


@pytest.mark.parametrize("name", CORES)
def test_every_accepted_setting_is_one_of_the_core(name: str) -> None:
    factory = CORES[name]
    parameters = signature(factory.core).parameters
    known = {*parameters, *signature(NAC).parameters} if factory.core is NACCore else {*parameters}
    assert {*factory.accepted, *factory.fixed} <= known
    assert not {*factory.accepted} & {*factory.fixed}
    assert {*factory.defaults} <= {*factory.accepted}


@pytest.mark.parametrize("name", slow_but(FIRST_OF_CLASS, CORES))
def test_a_core_stays_on_the_device_of_its_arguments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device nothing has values: a tensor made elsewhere, or a value that is read, is an error there.

    So neither waits for a GPU, nor fails on one. s4d alone reads whether all dt are equal, once per call.
    """
    autocast = torch.autocast
    monkeypatch.setattr(torch, "autocast", lambda device, **options: autocast("cpu", **options))  # unknown to meta
    core = build_core(name, 16, 16).to("meta")
    x, dt = torch.empty(2, 4, 16, device="meta", requires_grad=True), torch.empty(2, 4, device="meta")
    if name == "s4d":
        with pytest.raises(RuntimeError, match="cannot be called on meta"):
            core(x, dt, core.initial_state(2))
        dt = dt[:, :1]
        x = x[:, :1]
    y, state = core(x, dt, core.initial_state(2))
    y.sum().backward()
    with torch.no_grad():
        alone, after = core(x, dt, core.initial_state(2))
    assert {tensor.device.type for tensor in (y, *state, alone, *after)} == {"meta"}


def test_an_unknown_core_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(
        ValueError, match=r"core 'lstmm' is unknown; choose from attention, .*nac-exact.* Did you mean 'lstm'\?"
    ):
        build_core("lstmm", 5, 8)


def test_an_unknown_setting_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown \['windw'\]; accepted here are .* Did you mean 'window'\?"):
        build_core("mha", 5, 8, windw=4)


# Other values of settings that any core may have. `iterations` and the like count steps of a solver.
OTHERS = {"seed": 3, "sparsity": 0.3, "delta_t": 0.5, "top_k": 4, "unfolds": 5, "iterations": 2, "settle_steps": 5,
          "time_unit": 0.05, "open_ratio": 0.2, "leak": 0.01}  # fmt: skip


@pytest.mark.parametrize("name", CORES)
def test_a_setting_has_an_effect_or_is_refused(name: str) -> None:
    def output(**settings: object) -> torch.Tensor:
        torch.manual_seed(0)
        core = build_core(name, 16, 16, **settings).eval()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in core.parameters():  # also what begins at zero
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
            return core(torch.randn(1, 12, 16, generator=generator), torch.full((1, 12), 0.02), core.initial_state(1))[
                0
            ]

    factory, usual = CORES[name], output()
    for setting in sorted({*OTHERS} & {*factory.accepted}):
        settings = {setting: OTHERS[setting]}
        if setting in factory.needs and factory.fixed.get(factory.needs[setting][0]) not in factory.needs[setting][1]:
            with pytest.raises(ValueError, match=f"core_args: {setting} has no effect unless .*; leave it out"):
                factory.check_effects(settings)
            assert torch.equal(output(**settings), usual)
        else:
            factory.check_effects(settings)
            assert not torch.equal(output(**settings), usual), setting


def test_a_refused_setting_has_advice_that_can_be_followed() -> None:
    for core, fix in (("nac-exact", "leave it out, or set output."), ("nac-fc", "leave it out.")):
        setting = "delta_t" if core == "nac-exact" else "settle_steps"
        with pytest.raises(ValueError, match=f"; {re.escape(fix)}$"):
            CORES[core].check_effects({setting: 5})


@pytest.mark.parametrize(
    ("core", "args"),
    [("nac-exact", {"delta_t": 0.5, "output": "riemann"}), ("tap-withdrawal", {"seed": 3, "wiring": "b"})],
)
def test_a_setting_has_its_effect_beside_another(core: str, args: dict[str, object]) -> None:
    CORES[core].check_effects(args)


def test_a_default_of_the_registry_gives_way_to_a_setting() -> None:
    for settings, window in (({}, 64), ({"window": 9}, 9)):
        core = build_core("nac-pw", 16, 16, **settings)
        assert isinstance(core, NACCore)
        assert core.window == window


def test_no_two_names_build_the_same_function() -> None:
    """Two names of one function would give the same outputs from the same weights, drawn and then scaled by seed."""
    generator = torch.Generator().manual_seed(0)
    x, dt = torch.randn(2, 70, 16, generator=generator), 0.02 + 0.02 * torch.rand(2, 70, generator=generator)
    outputs = {}
    for name in CORES:
        torch.manual_seed(0)
        core = build_core(name, 16, 16)  # in training mode, as the noise of pdna-b wants
        with torch.no_grad():
            for parameter in core.parameters():  # by shape: the same for equal parameters, whatever they are called
                generator.manual_seed(sum(size * 31**axis for axis, size in enumerate(parameter.shape)))
                parameter.mul_(0.7 + 0.6 * torch.rand(parameter.shape, generator=generator))
            outputs[name] = core(x, dt, core.initial_state(2))[0]
    names = list(outputs)
    for i, name in enumerate(names):
        for other in names[:i]:
            assert (outputs[name] - outputs[other]).abs().max() > 1e-4, (name, other)


def test_the_page_of_drivers_holds_the_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "drivers.md").read_text(encoding="utf-8")
    table = core_table()
    assert table in page, f"docs/drivers.md: replace its table of cores by\n{table}"
    lines = table.splitlines()
    assert [line.split("`")[1] for line in lines[2:]] == list(CORES)
    assert f"| {sum(p.numel() for p in build_core('lstm', 64, 64).parameters()):,} | no |" in table
    assert len({line.count("|") for line in lines}) == 1


class Average(Core):
    """A core of one's own: y = h' = a h + (1 - a) W x."""

    continuous_time = False

    def __init__(self, input_size: int, output_size: int, *, keep: float = 0.5) -> None:
        super().__init__()
        self.input_size, self.output_size, self.keep = input_size, output_size, keep
        self.linear = torch.nn.Linear(input_size, output_size)

    def state_shapes(self) -> StateSpec:
        return (((self.output_size,), None),)

    def forward(self, x: torch.Tensor, dt: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        (h,), path = state, []
        for target in self.linear(x).unbind(1):
            h = self.keep * h + (1.0 - self.keep) * target
            path.append(h)
        return torch.stack(path, dim=1), (h,)


def test_a_core_of_ones_own_needs_a_class_and_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.CORES, "average", CoreFactory(Average, "an average", ("keep",)))
    torch.manual_seed(0)
    driver = Driver(DriverConfig(core="average", core_args={"keep": 0.9}, frame_shape=(32, 32, 3))).eval()
    frame = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    action, state = driver.act(frame, driver.begin(), 0.02)
    assert action in range(5)
    assert state[0].any()
    again = load_driver(save_driver(tmp_path / "driver", driver))
    assert isinstance(again.core, Average)
    assert again.core.keep == 0.9
    assert torch.equal(again.act(frame, again.begin(), 0.02)[1][0], state[0])
    assert "| `average` | 4,160 | no | an average |" in core_table()
    with pytest.raises(ValueError, match=r"unknown \['size'\]; accepted here are \['keep'\]"):
        build_core("average", 5, 8, size=3)


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
        ("nac-exact", {"num_heads": 2, "phi_activation": "relu"}, "phi_activation: must be one of"),
        ("nac-exact", {"num_heads": 2, "delta_t": 0.0}, "delta_t: must be positive"),
        ("nac-exact", {"num_heads": 2, "top_k": 0}, "top_k: must be at least 1, got 0"),
        ("cfc", {"backbone_units": 0}, "backbone_units: must be at least 1, got 0"),
    ],
)
def test_bad_settings_are_named(name: str, settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_core(name, 5, 8, **settings)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((16.0, 16), "input_size: must be a whole number, got 16.0"),
        ((16, "16"), "output_size: must be a whole number, got '16'"),
        ((0, 16), "input_size: must be at least 1, got 0"),
        ((16, True), "output_size: must be a whole number, got True"),
    ],
)
def test_bad_sizes_are_named(sizes: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        build_core("lstm", *sizes)
    assert build_core("lstm", np.int64(5), np.int64(8)).output_size == 8  # type: ignore[arg-type]


def test_cores_do_not_import_each_other() -> None:
    """Shared code is in base, window, state_space or ops.

    Two files may import CfC: its variants in pdna, and its plain form. CTA is an ODE-RNN that attends, and a
    transformer's block has attention.
    """
    folder = Path(registry.__file__).parent
    shared = {"base", "window", "state_space"}
    allowed = {
        ("pdna", "cfc"),
        ("cfc_naive", "cfc"),
        ("cta", "ode_rnn"),
        ("transformer", "attention"),
        ("nac_transformer", "transformer"),
        ("nac_transformer", "nac"),
    }
    found = set()
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nac_drive.policies.cores."):
                found.add((file.stem, str(node.module).rpartition(".")[2]))
    assert {(importer, core) for importer, core in found if importer != "registry" and core not in shared} == allowed
