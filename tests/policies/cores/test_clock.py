"""The clock of a core: its unit, how much it moves the output at first, and drivers without one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from nac_drive.policies import CORES, Driver, DriverConfig, load_driver
from nac_drive.policies.cores.base import NOMINAL_DT, Core
from nac_drive.policies.cores.window import WindowBase
from tests.policies.kinds import FIRST_OF_CLASS
from tests.slow import slow_but

WITH_UNIT = [name for name, factory in CORES.items() if "time_unit" in factory.accepted]
LEAST, LEAST_WITH_UNIT = 0.005, 0.05
"""Change of a new core's outputs when dt doubles, over their standard deviation."""


def outputs(core: Core, dt: float, frames: int = 64) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    walk = torch.randn(1, frames, core.input_size, generator=generator).cumsum(dim=1)
    x = torch.nn.functional.layer_norm(walk, walk.shape[2:])
    with torch.no_grad():
        return core(x, torch.full((1, frames), dt), core.initial_state(1))[0]


@pytest.mark.parametrize("name", slow_but({*FIRST_OF_CLASS, *WITH_UNIT}, CORES))
def test_a_doubled_dt_moves_the_outputs_of_a_new_core(name):
    torch.manual_seed(0)
    core = CORES[name](64, 64).eval()
    once, twice = outputs(core, NOMINAL_DT), outputs(core, 2 * NOMINAL_DT)
    moved = ((twice - once).square().mean() / once.var()).sqrt().item()
    least = LEAST_WITH_UNIT if name in WITH_UNIT else LEAST
    assert moved >= least if core.continuous_time else moved == 0.0


def test_ages_after_a_long_gap_keep_their_digits():
    """A sum in float32 lost them."""
    dt = torch.full((1, 40), 0.02)
    dt[:, 10] = 3600.0
    between, _, _ = WindowBase.clock(dt, torch.zeros(1, 7), torch.zeros(1, 7, dtype=torch.bool))
    steps = torch.arange(1, 40)
    assert torch.equal(between[0, steps, 7 + steps - 1], dt[0, 1:])


@pytest.mark.parametrize("name", ["nac-exact", "nac-sharp", "nac-transformer"])
def test_a_long_gap_is_the_same_streamed_and_whole(name):
    torch.manual_seed(0)
    core = CORES[name](64, 64).eval()
    x, dt = torch.randn(1, 40, 64), torch.full((1, 40), 0.02)
    dt[:, 10] = 3600.0
    state, outputs = core.initial_state(1), []
    with torch.no_grad():
        whole, _ = core(x, dt, state)
        for frame, seconds in zip(x.split(1, dim=1), dt.split(1, dim=1), strict=True):
            y, state = core(frame, seconds, state)
            outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs, dim=1), whole, atol=1e-5, rtol=1e-5)


def test_every_core_whose_gates_are_affine_in_time_has_a_unit():
    assert {"nac-exact", "nac-learned", "cfc", "cfc-no-gate", "cfc-ncp", "pdna-c", "pdna-e", "pdna-ode"} <= {*WITH_UNIT}
    assert "cfc-pure" not in WITH_UNIT


@pytest.mark.parametrize("name", ["nac-exact", "nac-euler", "nac-pw", "cfc", "cfc-no-gate", "cfc-ncp", "pdna-b"])
def test_a_unit_scales_dt(name):
    cores = []
    for unit in (1.0, 0.04):
        torch.manual_seed(0)
        cores.append(CORES[name](64, 64, time_unit=unit).eval())
    torch.testing.assert_close(outputs(cores[0], 0.5), outputs(cores[1], 0.02))


@pytest.mark.parametrize("unit", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["nac-exact", "cfc", "cfc-ncp", "pdna-c"])
def test_a_unit_is_positive(name, unit):
    with pytest.raises(ValueError, match="time_unit: must be a positive number of seconds, got"):
        CORES[name](8, 8, time_unit=unit)


@pytest.mark.parametrize("name", ["nac-exact", "cfc", "ltc"])
def test_a_clockless_driver_acts_the_same_whatever_the_time(name):
    drivers = []
    for clockless in (False, True):
        torch.manual_seed(0)
        drivers.append(Driver(DriverConfig(core=name, clockless=clockless, frame_shape=(32, 32, 3))).eval())
    frames, nominal = torch.randint(256, (2, 12, 32, 32, 3), dtype=torch.uint8), torch.full((2, 12), NOMINAL_DT)
    late = nominal * torch.randint(1, 6, (2, 12))
    with torch.no_grad():
        expected, _ = drivers[0](frames, nominal)
        assert not torch.allclose(drivers[0](frames, late)[0], expected)
        for dt in (nominal, late):
            torch.testing.assert_close(drivers[1](frames, dt)[0], expected)


@pytest.mark.parametrize("core", ["lstm", "cnn"])
def test_dt_as_an_input_gives_a_clock_to_a_core_without_one(core):
    config = DriverConfig(core=core, frame_shape=(32, 32, 3))
    frames = torch.randint(256, (2, 6, 32, 32, 3), dtype=torch.uint8)
    nominal, late = torch.full((2, 6), NOMINAL_DT), torch.full((2, 6), 5e7)
    for dt_input, clockless in ((False, False), (True, False), (True, True)):
        torch.manual_seed(0)
        driver = Driver(replace(config, dt_input=dt_input, clockless=clockless)).eval()
        with torch.no_grad():
            same = torch.equal(driver(frames, nominal)[0], driver(frames, late)[0])
            assert driver(frames, late)[0].isfinite().all()
        assert same == (not dt_input or clockless)


# Drivers and runs of before


def made_old(folder):
    """Give the settings of a driver folder the form that they had when time was in seconds."""
    file = folder / "config.json"
    saved = json.loads(file.read_text())
    for name in ("clockless", "dt_input", "zero_lost_frames"):
        del saved["driver"][name]
    saved["driver"]["core_args"].pop("time_unit", None)
    file.write_text(json.dumps(saved))
    return folder


def test_the_champions_from_above_keep_their_seconds():
    """The one from the seat learned in default units."""
    champions = [load_driver(f"champion-{control}") for control in ("continuous", "discrete")]
    assert all(driver.config.core_args["time_unit"] == 1.0 for driver in champions if driver.config.core in WITH_UNIT)
