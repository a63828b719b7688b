"""A transformer's block whose attention is NAC."""

from __future__ import annotations

from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.nac import NACCore
from nac_drive.policies.cores.transformer import Transformer
from nac_drive.policies.nac.variants import NAC_VARIANTS


class NACTransformer(Transformer):
    """The block of `Transformer` with NAC as its attention.

    It is beyond the paper: NAC is the variant `nac-scored`, which is `nac-sharp` with the score q.k / sqrt(D) among its
    logits. So a head weighs a frame by its content, as softmax attention does, by the circuit, and by its age in time.

    State: the last frames, see `NACCore`.

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d, a multiple of `num_heads`.
        num_heads: Number of heads.
        window: Number of frames that a query sees, its own included.

    Raises:
        ValueError: `num_heads` does not divide `output_size`, or `window` is less than 1.
    """

    continuous_time = True

    def __init__(self, input_size: int, output_size: int, *, num_heads: int = 4, window: int = 8) -> None:
        super().__init__(input_size, output_size, num_heads=num_heads, window=window)
        settings = {"num_heads": num_heads, "window": window, "selection": "pairwise", **NAC_VARIANTS["nac-scored"]}
        self.attention = NACCore(output_size, output_size, **settings)  # in place of the one that the block begins with


def nac_of(core: Core) -> NACCore | None:
    """Return the NAC of a core.

    It is the core itself, or the attention of its block.
    """
    attention = core.attention if isinstance(core, Transformer) else core
    return attention if isinstance(attention, NACCore) else None
