"""The block of a transformer, against torch's own layer."""

from __future__ import annotations

import pytest
import torch

from nac_drive.policies.cores.attention import SoftmaxAttention
from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.transformer import Transformer
from tests.contracts import CoreContract


class TestTransformerBlock(CoreContract):
    def make_core(self) -> Core:
        return Transformer(5, 8, num_heads=2, window=6)


def test_a_block_without_slopes_equals_torch_on_copied_weights() -> None:
    torch.manual_seed(0)
    ours = Transformer(8, 8, num_heads=2, window=4)
    theirs = torch.nn.TransformerEncoderLayer(
        8, 2, dim_feedforward=16, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    attention = ours.attention
    assert isinstance(attention, SoftmaxAttention)
    with torch.no_grad():
        attention.slope.zero_()
        for parameter in (*ours.first_norm.parameters(), *ours.second_norm.parameters()):
            parameter.uniform_(0.5, 1.5)
        theirs.self_attn.in_proj_weight.copy_(torch.cat([attention.query.weight, attention.kv.weight]))
        theirs.self_attn.in_proj_bias.copy_(torch.cat([attention.query.bias, attention.kv.bias]))
        theirs.self_attn.out_proj.load_state_dict(attention.output.state_dict())
        for one, other in (("norm1", "first_norm"), ("norm2", "second_norm"), ("linear1", "up"), ("linear2", "down")):
            getattr(theirs, one).load_state_dict(getattr(ours, other).state_dict())
            for parameter, copy in zip(
                getattr(theirs, one).parameters(), getattr(ours, other).parameters(), strict=True
            ):
                copy.copy_(parameter.add_(0.1 * torch.randn_like(parameter)))
    x = torch.randn(3, 11, 8)
    behind = torch.arange(11)[:, None] - torch.arange(11)
    expected = theirs(x, src_mask=(behind < 0) | (behind >= 4))
    y, _ = ours(x, torch.full((3, 11), 0.02), ours.initial_state(3))
    torch.testing.assert_close(y, expected, atol=1e-6, rtol=1e-5)


def test_a_bad_number_of_heads_is_named() -> None:
    with pytest.raises(ValueError, match=r"num_heads: .*divide output_size=8, got 3"):
        Transformer(5, 8, num_heads=3)
