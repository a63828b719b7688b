"""Measures of attention on weights whose answers are known, and weights that are replaced and put back."""

from __future__ import annotations

import math

import pytest
import torch

from nac_drive.analysis.attention import (
    constant_clock,
    largest_weight,
    mean_age,
    nac_core,
    newest_frame_only,
    normalised_entropy,
    recorded_attention,
    shuffled_keys,
    uniform_weights,
    weight_by_age,
)
from nac_drive.policies import Driver, DriverConfig
from nac_drive.policies.cores.base import NOMINAL_DT

WINDOW = 4
UNIFORM = torch.full((WINDOW,), 1 / WINDOW)
SINGLE = torch.tensor([0.0, 0.0, 0.0, 1.0])
HALVES = torch.tensor([0.5, 0.0, 0.5, 0.0])
WEIGHTS = torch.stack((UNIFORM, SINGLE, HALVES))


def test_normalised_entropy():
    assert normalised_entropy(WEIGHTS).tolist() == pytest.approx([1.0, 0.0, math.log(2) / math.log(4)])


def test_largest_weight():
    assert largest_weight(WEIGHTS).tolist() == [0.25, 1.0, 0.5]


def test_mean_age():
    age = torch.tensor([0.06, 0.04, 0.02, 0.0])
    assert mean_age(WEIGHTS, age).tolist() == pytest.approx([0.03, 0.0, 0.04])


def test_weight_by_age():
    age, edges = torch.tensor([0.06, 0.04, 0.02, 0.0]), torch.tensor([0.0, 0.03, 0.05])
    assert weight_by_age(WEIGHTS, age, edges).tolist() == [[0.5, 0.25], [1.0, 0.0], [0.5, 0.0]]


def driver(core: str = "nac-exact") -> Driver:
    torch.manual_seed(0)
    settings = {"window": WINDOW, "num_heads": 2} if core.startswith("nac-") else {}
    return Driver(DriverConfig(core=core, core_args=settings, d_model=16)).eval()


FRAMES = torch.rand(1, 6, 96, 96, 3, generator=torch.Generator().manual_seed(1))
DT = torch.tensor([[0.0, 0.02, 0.02, 0.04, 0.02, 0.02]])


def stream(network: Driver) -> torch.Tensor:
    """The predictions of single frames, one after the other."""
    state, outputs = network.initial_state(1), []
    with torch.no_grad():
        for i in range(FRAMES.shape[1]):
            prediction, state = network(FRAMES[:, i : i + 1], DT[:, i : i + 1], state)
            outputs.append(prediction)
    return torch.cat(outputs, dim=1)


def test_a_record_changes_nothing_and_holds_every_decision():
    network = driver()
    plain = stream(network)
    with recorded_attention(network) as steps:
        assert stream(network).equal(plain)
    assert stream(network).equal(plain)
    assert len(steps) == FRAMES.shape[1]
    for step in steps:
        torch.testing.assert_close(step.record.alpha.sum(dim=3), torch.ones(1, 2, 1))
    for ages in steps[-1].age[0, :, 0]:
        torch.testing.assert_close(ages.sort(descending=True).values, torch.tensor([0.08, 0.04, 0.02, 0.0]))


def test_the_ages_are_those_of_the_keys_that_each_head_keeps():
    torch.manual_seed(0)
    network = Driver(
        DriverConfig(core="nac-exact", core_args={"window": 6, "num_heads": 2, "top_k": 2}, d_model=16)
    ).eval()  # fmt: skip
    with recorded_attention(network) as steps:
        stream(network)
    times, index = DT[0].cumsum(0), steps[-1].record.index[0, :, 0]
    assert index.shape == (2, 2)
    torch.testing.assert_close(steps[-1].age[0, :, 0], (times[-1] - times)[index])


@pytest.mark.parametrize("slope", [0.5, -0.5])
def test_the_movement_of_t_is_that_of_its_formula(slope):
    network = driver()
    nac = nac_core(network).nac
    with torch.no_grad():
        nac.time_weight.zero_()
        nac.time_bias[..., 0] = slope  # t_a, per frame
        nac.time_bias[..., 1] = -1.0  # t_b
    with recorded_attention(network) as steps:
        stream(network)
    expected = torch.sigmoid(torch.tensor(slope * 4 - 1.0)) - torch.sigmoid(torch.tensor(-1.0))
    torch.testing.assert_close(steps[-1].t_movement, expected.abs().expand(1, 2, 1, WINDOW))


@pytest.mark.parametrize("core", ["nac-exact", "nac-sharp", "nac-transformer"])
def test_uniform_weights_are_uniform_and_the_drivers_own_come_back(core):
    network = driver(core)
    plain = stream(network)
    with uniform_weights(network), recorded_attention(network) as steps:
        changed = stream(network)
    for i, step in enumerate(steps):
        weights = step.record.alpha[step.record.alpha > 0]
        torch.testing.assert_close(weights, torch.full_like(weights, 1 / min(i + 1, WINDOW)))
    assert not changed.equal(plain)
    assert stream(network).equal(plain)


def test_with_the_newest_frame_only_the_past_plays_no_part():
    network = driver()
    plain = stream(network)
    with newest_frame_only(network):
        alone = stream(network)
        with torch.no_grad():
            fresh = [network(FRAMES[:, i : i + 1], DT[:, i : i + 1])[0] for i in range(FRAMES.shape[1])]
    torch.testing.assert_close(alone, torch.cat(fresh, dim=1))
    assert not alone.equal(plain)
    assert stream(network).equal(plain)


@pytest.mark.parametrize("core", ["nac-exact", "nac-sharp", "nac-transformer"])
def test_shuffled_keys_have_the_same_weights_in_another_order(core):
    network = driver(core)
    with recorded_attention(network) as steps:
        plain = stream(network)
    with shuffled_keys(network), recorded_attention(network) as mixed:
        changed = stream(network)
    full = slice(WINDOW - 1, None)  # before, the order also decides which weights fall on frames that are not there
    for before, after in zip(steps[full], mixed[full], strict=True):
        torch.testing.assert_close(before.record.alpha.sort(dim=3).values, after.record.alpha.sort(dim=3).values)
    assert any(not a.record.alpha.equal(b.record.alpha) for a, b in zip(steps[full], mixed[full], strict=True))
    assert not changed.equal(plain)
    assert stream(network).equal(plain)


def test_a_constant_clock_is_that_of_a_clockless_driver():
    network = driver("nac-sharp")
    plain = stream(network)
    with constant_clock(network):
        constant = stream(network)
    with torch.no_grad():
        nominal = network(FRAMES, torch.full_like(DT, NOMINAL_DT))[0]
    torch.testing.assert_close(constant, nominal)
    assert not constant.equal(plain)
    assert stream(network).equal(plain)


def test_two_records_hold_every_decision_once():
    network = driver()
    with recorded_attention(network) as outer, recorded_attention(network) as inner:
        stream(network)
    assert len(outer) == len(inner) == FRAMES.shape[1]
    assert all(a.record.alpha.equal(b.record.alpha) for a, b in zip(outer, inner, strict=True))


@pytest.mark.parametrize("replaced", [uniform_weights, newest_frame_only, shuffled_keys, recorded_attention])
def test_an_error_inside_the_block_leaves_the_driver_as_it_was(replaced):
    network = driver()
    plain = stream(network)
    with pytest.raises(KeyError), replaced(network):
        raise KeyError
    assert stream(network).equal(plain)
    core = nac_core(network)
    assert (core.attention_hooks, core.nac.logit_hooks) == ([], [])
    assert not {*vars(core), *vars(core.nac)} & {*vars(type(core)), *vars(type(core.nac))}  # no method is replaced


def test_a_driver_without_attention_is_refused():
    for replaced in (uniform_weights, newest_frame_only, shuffled_keys, recorded_attention):
        with pytest.raises(ValueError, match="must have a NAC core, got 'lstm'"), replaced(driver("lstm")):
            pass
