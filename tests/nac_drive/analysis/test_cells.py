"""Cells inside a core equal the record of the layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nac_drive.analysis.cells import COUPLING, SIGNALS, Cells, watched_cells
from nac_drive.analysis.probe import Probe
from nac_drive.policies import NAC, Driver, DriverConfig
from nac_drive.policies.cores.nac import NACCore

FRAMES, WINDOW = 12, 4


def network(core: str, **args: object) -> Driver:
    torch.manual_seed(0)
    return Driver(DriverConfig(core, args, encoder="pooled", d_model=16, dense=16, residual=False)).eval()


def driven(driver: Driver) -> tuple[torch.Tensor, list[Cells]]:
    """Return features (1, T, F), and the cells of every decision."""
    frames = np.random.default_rng(0).integers(256, size=(FRAMES, 96, 96, 3), dtype=np.uint8)
    noted: list[Cells] = []
    state = driver.begin()
    with watched_cells(driver, noted.append):
        for frame in frames:
            _, state = driver.act(frame, state, 0.02)
    with torch.no_grad():
        return driver.features(torch.from_numpy(frames)[None]), noted


@pytest.mark.parametrize(("core", "top_k"), [("nac-steady", 8), ("nac-exact", 3), ("nac-sharp", 8)])
def test_cells_of_a_stream_equal_the_cells_of_the_whole_sequence(core: str, top_k: int):
    driver = network(core, num_heads=2, window=WINDOW, top_k=top_k)
    x, noted = driven(driver)
    assert isinstance(driver.core, NACCore)
    layer, ages = driver.core.nac, 0.02 * (torch.arange(FRAMES)[:, None] - torch.arange(FRAMES)).clamp(min=0)
    with torch.no_grad():
        _, record = layer(x, ages[None] / driver.core.time_unit, window=WINDOW, return_circuit=True)
    assert isinstance(layer, NAC)
    gates = {"q": record.q, "k": record.k} | ({"v": record.v} if layer.gated else {})
    assert set(noted[0]) == {*gates, *record.neurons, *SIGNALS}
    signals = {name: getattr(record.attention, name)[..., None] for name in SIGNALS}
    pairs = {name: states[-1] for name, states in record.neurons.items()} | signals
    for time, cells in enumerate(noted):
        for name, values in gates.items():
            np.testing.assert_allclose(cells[name], values[0, :, time].flatten(), atol=1e-5)
        for name, values in pairs.items():
            means = []
            for head in range(2):
                kept = [
                    values[0, head, time, place].numpy()
                    for place, key in enumerate(record.attention.index[0, head, time].tolist())
                    if max(0, time - WINDOW + 1) <= key <= time
                ]
                assert len(kept) == min(time + 1, WINDOW, top_k)
                means.append(np.mean(kept, axis=0))
            np.testing.assert_allclose(cells[name], np.concatenate(means), atol=1e-5, err_msg=name)


@pytest.mark.parametrize("core", ["ltc", "ncp"])
def test_the_coupling_sensitivity_is_the_cores_own_at_every_state(core: str):
    driver = network(core)
    x, noted = driven(driver)
    state = driver.begin()
    for time, cells in enumerate(noted):
        assert set(cells) == {COUPLING}
        expected = driver.core.coupling_sensitivity(x[:, time], state)  # type: ignore[operator]
        np.testing.assert_allclose(cells[COUPLING], expected[0].detach(), rtol=1e-5)
        _, state = driver.core(x[:, time : time + 1], torch.full((1, 1), 0.02), state)
    assert np.ptp([cells[COUPLING] for cells in noted], axis=0).max() > 0


def test_cells_cannot_be_switched_and_a_driver_is_left_as_it_was():
    driver = network("nac-exact", num_heads=2, window=WINDOW)
    probe = Probe(driver)
    probe.act(np.zeros((96, 96, 3), np.uint8), probe.begin(None), 0.02)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^motor cannot be held at 0: only features"):
        probe.switch_neuron("motor", 0, True)
    assert driver.core.attention_hooks == []
    assert not driver.core._forward_pre_hooks
    with watched_cells(network("lstm"), lambda cells: pytest.fail("an LSTM has no such cells")):
        network("lstm").act(np.zeros((96, 96, 3), np.uint8), network("lstm").begin(), 0.02)
