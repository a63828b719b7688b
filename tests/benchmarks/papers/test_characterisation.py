"""Responses of single cells against loops in numpy and closed forms; ablation against networks without the weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ablation import ablated_predictions, without_cell
from cells import count_cells
from characterisation import (
    FREQUENCY,
    SECONDS,
    Responses,
    characterise,
    isolated,
    peak_frequency,
    settling_time,
    sine_signal,
    step_signal,
)

from nac_drive.policies import CORES, Driver, DriverConfig, build_core
from nac_drive.policies.cores.base import NOMINAL_DT

DOUBLE = torch.float64
FRAMES = round(SECONDS / NOMINAL_DT)
PER_CELL = ["rnn", "gru", "lstm", "cfc", "ltc", "ct-rnn", "ct-gru", "phased-lstm"]


def core_of(name: str, seed: int = 0, units: int = 5) -> Any:
    torch.manual_seed(seed)
    return build_core(name, 3, units).double()


def weights_of(core: Any) -> list[np.ndarray]:
    """Weights from the input and from the state, and the sum of the biases."""
    into, recurrent, *biases = (parameter.detach().numpy() for parameter in core.cell.parameters())
    return [into, recurrent, biases[0] + biases[1]]


def fields(responses: Responses) -> dict[str, np.ndarray]:
    return vars(responses) | {"delta": responses.delta}


def test_the_response_of_an_rnn_cell_is_that_of_a_loop_with_its_own_weights():
    core, signal = core_of("rnn"), np.random.default_rng(0).normal(size=30)
    into, recurrent, bias = weights_of(core)
    for cell, response in enumerate(isolated(core, signal, NOMINAL_DT)):
        h, expected = 0.0, []
        for x in signal:
            h = np.tanh(into[cell].sum() * x + recurrent[cell, cell] * h + bias[cell])
            expected.append(h)
        np.testing.assert_allclose(response, expected, atol=1e-12)


def test_the_response_of_an_lstm_cell_is_that_of_a_loop_with_its_own_weights():
    core, signal, units = core_of("lstm"), np.random.default_rng(0).normal(size=30), 5
    into, recurrent, bias = weights_of(core)
    for cell, response in enumerate(isolated(core, signal, NOMINAL_DT)):
        rows = [gate * units + cell for gate in range(4)]
        h, c, expected = 0.0, 0.0, []
        for x in signal:
            i, f, g, o = into[rows].sum(axis=1) * x + recurrent[rows, cell] * h + bias[rows]
            i, f, o = 1 / (1 + np.exp(-np.array([i, f, o])))
            c = f * c + i * np.tanh(g)
            h = o * np.tanh(c)
            expected.append(h)
        np.testing.assert_allclose(response, expected, atol=1e-12)


@pytest.mark.parametrize("name", PER_CELL)
def test_every_row_is_a_run_in_which_the_other_states_are_removed(name: str):
    core, signal = core_of(name), sine_signal(12, 3.0, NOMINAL_DT)
    responses = isolated(core, signal, NOMINAL_DT)
    for cell in (0, 3):
        state, others = core.initial_state(1), [unit for unit in range(5) if unit != cell]
        for x, expected in zip(signal, responses[cell], strict=True):
            with torch.no_grad():
                y, state = core(
                    torch.full((1, 1, 3), x, dtype=DOUBLE), torch.full((1, 1), NOMINAL_DT, dtype=DOUBLE), state
                )
            for part in state:
                part[..., others] = 0.0
            assert y[0, 0, cell].item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("name", ["rnn", "lstm"])
def test_weights_between_cells_have_no_effect(name: str):
    core, units = core_of(name), 5
    before = fields(characterise(core))
    with torch.no_grad():
        for gate in core.cell.weight_hh_l0.split(units):
            gate.add_(torch.randn(units, units).double().fill_diagonal_(0.0))
    after = fields(characterise(core))
    for key, values in before.items():
        np.testing.assert_allclose(after[key], values, atol=1e-9, err_msg=key)


def test_a_memoryless_cell_responds_as_its_formula():
    core, scale = core_of("rnn", units=3), 0.5
    weights = np.array([0.3, -0.3, 0.0])
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.zero_()
        core.cell.weight_ih_l0[:, 0] = torch.from_numpy(weights)
    found = characterise(core, scale)
    wave = scale * sine_signal(FRAMES, FREQUENCY, NOMINAL_DT)
    outputs = np.tanh(np.outer(weights, wave))
    np.testing.assert_allclose(found.delta, np.tanh(scale * weights), atol=1e-12)
    np.testing.assert_allclose(found.amplitude, np.ptp(outputs, axis=1), atol=1e-12)
    np.testing.assert_allclose(found.correlation, outputs @ wave, atol=1e-9)
    assert found.correlation[0] == pytest.approx(-found.correlation[1])
    assert found.amplitude[2] == found.delta[2] == found.correlation[2] == 0.0
    assert found.frequency.tolist() == [FREQUENCY, FREQUENCY, 0.0]
    assert found.settling_time.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("name", ["rnn", "ct-rnn"])
def test_a_flip_of_the_input_weights_flips_delta_and_correlation(name: str):
    core = core_of(name)
    parameters = dict(core.named_parameters())
    with torch.no_grad():
        for key, parameter in parameters.items():
            if "bias" in key:
                parameter.zero_()
        before = fields(characterise(core))
        parameters["cell.weight_ih_l0" if name == "rnn" else "input.values"].neg_()
    after = fields(characterise(core))
    for key, values in before.items():
        sign = -1 if key in ("initial", "final", "delta", "correlation") else 1
        np.testing.assert_allclose(after[key], sign * values, atol=1e-9, err_msg=key)
    assert np.abs(before["delta"]).min() > 0.01


def test_a_slow_cell_settles_after_ln_10_time_constants():
    core, tau = core_of("ct-rnn", units=3), np.array([0.05, 0.2, 0.5])
    with torch.no_grad():
        core.log_tau.copy_(torch.from_numpy(np.log(tau)))
        core.recurrent.values.zero_()
    expected = NOMINAL_DT * (np.ceil(tau * np.log(10.0) / NOMINAL_DT) - 1)  # the first frame ends dt after the step
    np.testing.assert_allclose(characterise(core).settling_time, expected, atol=1e-9)
    assert (np.diff(expected) > 0).all()


def test_a_start_that_dies_away_is_no_part_of_the_responses():
    core = core_of("ct-rnn", units=1)
    with torch.no_grad():
        core.log_tau.fill_(np.log(0.2))
        core.input.values.zero_()
        core.recurrent.values.zero_()
        core.bias.fill_(2.0)
    found, path = characterise(core), isolated(core, np.zeros(FRAMES), NOMINAL_DT)[0]
    assert np.ptp(path) > 0.1  # the cell rises from 0 to its rest
    np.testing.assert_allclose([found.initial[0], found.final[0]], path[-1], rtol=1e-6)
    np.testing.assert_allclose([found.amplitude[0], found.delta[0]], 0.0, atol=1e-6)


def test_metrics_of_responses_that_are_known_by_hand():
    responses = np.array([
        [0, 0, 0, 0, 0, 0.5, 0.95, 1.0],
        [0, 0, 0, 0, 0.95, 0.5, 1.0, 1.0],  # leaves the window again
        [1, 1, 1, 1, 0.0, 0, 0, 0],
        [2, 2, 2, 2, 2, 2, 2, 2],
    ])  # fmt: skip
    np.testing.assert_allclose(settling_time(responses, 0.5), [1.0, 1.0, 0.0, 0.0])
    assert step_signal(6).tolist() == [0, 0, 0, 1, 1, 1]
    times = 0.02 * np.arange(200)
    waves = np.stack([5 + np.sin(2 * np.pi * 3 * times), np.sign(np.sin(2 * np.pi * 2 * times + 0.1)), 0 * times + 1])
    np.testing.assert_allclose(peak_frequency(waves, 0.02), [3.0, 2.0, 0.0])


CELLS = [
    "rnn", "rin", "gru", "lstm", "lstm-sparse", "ct-rnn", "ct-rnn-sparse", "ct-gru", "gru-ode", "ode-rnn",
    "phased-lstm", "mmrnn", "ltc", "lrc", "cfc", "cfc-no-gate", "cfc-pure",
]  # fmt: skip
COINCIDENCES = {
    "s4": 16, "s4d": 16, "deepstate": 40, "circuitnet-l": 128, "circuitnet-la": 112, "circuitnet-lp": 64, "ncp": 21,
    "ncp-random": 21, "ncp-full": 21, "tap-withdrawal": 7, "lds": 5, "cta": 5, "cfc-ncp": 5,
}  # fmt: skip
"""Core -> a number of outputs that is also the size of a tensor of its state."""


@pytest.mark.parametrize("name", CORES)
def test_the_number_of_cells_does_not_depend_on_a_coincidence_of_sizes(name: str):
    for size in (16, COINCIDENCES.get(name, 32)):
        core = build_core(name, 3, size)
        if name in CELLS:
            assert count_cells(core) == size
        else:
            with pytest.raises(ValueError, match=r"core: every tensor of the state must .*; choose a core such as"):
                count_cells(core)


@pytest.mark.parametrize("name", ["ncp", "mha", "cnn", "cfc-ncp"])
def test_a_core_without_cells_is_refused(name: str):
    core = build_core(name, 3, 8)
    with pytest.raises(ValueError, match=r"core: every tensor of the state .* 8 outputs, got"):
        characterise(core)


def driver_of(core: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    config = DriverConfig(core, encoder="pooled", d_model=4, control="continuous", **settings)
    return Driver(config).eval()


def cut(driver: Any, cell: int) -> None:
    """Remove the outgoing weights of a cell."""
    with torch.no_grad():
        driver.core.cell.weight_hh_l0[:, cell] = 0.0
        driver.action_head.hidden.weight[:, cell] = 0.0


@pytest.mark.parametrize("core", ["lstm", "rnn"])
def test_ablation_removes_the_outgoing_weights_of_a_cell_and_nothing_else(core: str):
    driver, features, dt = driver_of(core), torch.randn(20, 4), torch.full((20,), 0.02)
    *without, intact = ablated_predictions(driver, features, dt)
    for cell, predicted in enumerate(without):
        other = driver_of(core)
        cut(other, cell)
        with torch.no_grad():
            expected, _ = other.decide(features[None], dt[None])
        torch.testing.assert_close(predicted, expected[0])
        assert not torch.allclose(predicted, intact, atol=1e-4)
        again = ablated_predictions(other, features, dt)
        torch.testing.assert_close(again[cell], again[-1])  # nothing is left to remove
    with torch.no_grad():
        torch.testing.assert_close(intact, driver.decide(features[None], dt[None])[0][0])


@pytest.mark.parametrize("core", [name for name in CELLS if name != "phased-lstm"])  # whose gates hardly open at first
def test_a_drive_without_a_cell_is_the_ablation_frame_by_frame(core: str):
    driver, cell = driver_of(core), 2
    images = np.random.default_rng(0).integers(256, size=(6, 96, 96, 3), dtype=np.uint8)
    with torch.no_grad():
        features = driver.features(torch.from_numpy(images))
    expected = ablated_predictions(driver, features, torch.full((6,), 0.02))
    tested, state = without_cell(driver, cell), driver.begin()
    for image, action in zip(images, expected[cell], strict=True):
        driven, state = tested.act(image, state, 0.02)
        np.testing.assert_allclose(driven, action, atol=1e-5)
    assert not torch.allclose(expected[cell], expected[-1], atol=1e-4)


def test_a_cell_that_cannot_be_ablated_is_refused():
    with pytest.raises(ValueError, match="cell: must be 0 to 3, got 4"):
        without_cell(driver_of("lstm"), 4)
    with pytest.raises(ValueError, match="residual=False"):
        without_cell(driver_of("lstm", residual=True), 0)
