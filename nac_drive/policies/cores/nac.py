"""NAC over a stream, with a causal window as state.

The window holds the last W frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nac_drive.policies.cores.base import NOMINAL_DT, State, StateSpec, check_time_unit
from nac_drive.policies.cores.window import WindowBase
from nac_drive.policies.nac.layer import NAC
from nac_drive.policies.nac.masks import Mask
from nac_drive.policies.nac.records import AttentionRecord
from nac_drive.policies.nac.tokens import Tokens
from nac_drive.policies.wiring.wiring import Wiring


class NACCore(WindowBase):
    """Self-attention from each frame to the last `window` frames.

    The frame itself is among them.

    t_sample of a pair is the age of the key in units of `time_unit`, from the dt of the frames between. The slots of
    the state (see WindowBase) are the keys and values of the frames, (B, H, M, D + E + 2 + D), see Tokens; the
    inputs (B, M, F) follow at the end of the state where they are the values.

    The paper names no window. Eight frames are 0.16 s: drivers that average over more learn late which frame is the
    present one (docs/cloning.md). In a window of eight, top_k = 8 keeps every key; a selection needs a wider one
    (docs/drivers.md).

    Args:
        input_size: Number of input features.
        output_size: d_model of the layer, a multiple of `num_heads`.
        num_heads: Number of heads.
        window: Number of frames that a query sees, its own included.
        time_unit: Seconds of one unit of age: a frame by default. Ages in seconds, at most 0.14 in this window, hardly
            move a gate.
        backbone: Wiring of the backbones, as its JSON-able `to_config()`; None for a drawn one.
        settings: Other settings of NAC.

    Raises:
        ValueError: `window` is less than 1, `time_unit` is not positive, a setting of NAC is outside its range, or the
            selection is "block", whose blocks would depend on the cut of the stream.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        num_heads: int = 16,
        window: int = 8,
        time_unit: float = NOMINAL_DT,
        backbone: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(input_size, output_size, window)
        if settings.get("selection") == "block":
            raise ValueError("selection: a stream cannot be cut into 'block's that stay put; use 'topk' or 'learned'.")
        self.time_unit = check_time_unit(time_unit)
        circuit = None if backbone is None else Wiring.from_config(backbone)
        self.nac = NAC(output_size, num_heads, input_size=input_size, backbone=circuit, **settings)
        self.continuous_time = self.nac.uses_time and window > 1
        self.attention_hooks: list[Callable[[Tokens, Mask, Tensor, AttentionRecord], None]] = []
        """Called after every attention with its tokens, mask, times and record; for analysis."""

    @property
    def neurons(self) -> int:
        """Number of neurons of its circuits in every head.

        They are the sensory gates of q, k and v, and the backbones.

        NAC has no recurrent state. Neurons of disabled groups do not count, although the NAC paper lists them.
        """
        nac = self.nac
        biases = [nac.query_gate.bias, nac.context_gate.bias, *nac.backbone.bias.values()]  # one of each neuron
        return sum(bias.numel() for bias in biases)

    @property
    def synapses(self) -> int:
        nac = self.nac
        gates = sum(int(gate.mask.sum()) for gate in (nac.query_gate, nac.context_gate))
        return gates + nac.num_heads * sum(int(mask.sum()) for mask in nac.backbone.buffers())

    def slot_shapes(self, slots: int) -> tuple[int, ...]:
        nac = self.nac
        return (nac.num_heads, slots, nac.head_size + nac.drive_size + 2 + (nac.head_size if nac.gated else 0))

    def state_shapes(self) -> StateSpec:
        inputs = () if self.nac.gated else (((self.window - 1, self.input_size), None),)
        return (*super().state_shapes(), *inputs)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        kv, age, filled, *inputs = state
        length = x.shape[1]
        new = self.nac.project(x)
        frames = torch.cat((inputs[0], x.to(inputs[0].dtype)), dim=1) if inputs else None  # (B, M + T, F)
        kv = torch.cat((kv, new.kv), dim=2)  # (B, H, M + T, D + E + 2 + D)
        since, filled, age = self.clock(dt, age, filled)
        mask = Mask(length, kv.shape[2], window=self.window, valid=filled)
        tokens = Tokens(new.query, new.query_logit_inputs, kv, frames)
        times = since.unsqueeze(1) / self.time_unit  # (B, 1, T, M + T)
        y, record = self.nac.attend(tokens, mask, times, AttentionRecord if self.attention_hooks else None)
        for hook in self.attention_hooks:
            hook(tokens, mask, times, AttentionRecord(**record))
        after = () if frames is None else (frames[:, length:],)
        return y, (kv[:, :, length:], age, filled[:, length:], *after)
