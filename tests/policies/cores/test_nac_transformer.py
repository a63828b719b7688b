"""The block with NAC, against the naive layer and its equations."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from nac_drive.policies import CORES, Core, build_core
from nac_drive.policies.cores.base import NOMINAL_DT
from nac_drive.policies.cores.nac_transformer import NACTransformer, nac_of
from nac_drive.policies.nac.naive import naive_nac
from tests.contracts import CoreContract


class TestBlock(CoreContract):
    def make_core(self) -> Core:
        return NACTransformer(5, 8, num_heads=2, window=6)


def test_it_is_a_transformers_block_around_the_naive_layer():
    torch.manual_seed(0)
    core = NACTransformer(8, 8, num_heads=2, window=4).double()
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    x, dt = torch.randn(2, 11, 8).double(), torch.rand(2, 11).double() * 0.1
    now = dt.cumsum(dim=1)
    ages = (now.unsqueeze(2) - now.unsqueeze(1)) / NOMINAL_DT
    nac = nac_of(core)
    assert nac is not None
    assert nac.nac.scored
    h = x + naive_nac(nac.nac, core.first_norm(x), ages, window=4)
    expected = h + core.down(functional.gelu(core.up(core.second_norm(h))))
    y, _ = core(x, dt, core.initial_state(2))
    torch.testing.assert_close(y, expected, atol=1e-6, rtol=1e-5)


def test_cores_have_nac_or_none():
    with_nac = {name for name in CORES if nac_of(build_core(name, 16, 16))}
    assert with_nac == {name for name in CORES if name.startswith("nac-")}


@pytest.mark.parametrize("settings", [{"num_heads": 3}, {"window": 0}])
def test_a_bad_setting_is_named(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=f"{name}: must be"):
        NACTransformer(8, 8, **settings)
