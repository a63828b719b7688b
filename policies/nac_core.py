"""NAC over a stream: a causal window of the last W frames, carried as state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from policies.core import Core, State
from policies.masks import Mask
from policies.nac import NAC
from policies.tokens import Tokens
from policies.wiring import Wiring


class NACCore(Core):
    """Self-attention from each frame to itself and the `window - 1` frames before it.

    t_sample of a pair is the age of the key in seconds, from the dt of the frames between. The state holds, for the
    last M = window - 1 frames, their entries (B, H, M, D + E + 2 + D), see Tokens, their ages relative to the newest
    frame (B, M), so that float32 keeps its precision however long the episode, and whether the slot is filled.

    The paper names no window. Eight frames are 0.16 s: drivers that average over more learn late which frame is the
    present one (docs/cloning.md). In a window of eight, top_k = 8 allows every key; for selections to tell, widen it.

    Takes the settings of NAC; `backbone` is a wiring's `to_config()`, so that settings stay JSON-able. Raises
    ValueError if `window` is less than 1, or for selection "block", whose blocks would depend on how a stream is cut.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        num_heads: int = 16,
        window: int = 8,
        backbone: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        if window < 1:
            raise ValueError(f"window: must be at least 1 frame, got {window}.")
        if settings.get("selection") == "block":
            raise ValueError("selection: a stream cannot be cut into 'block's that stay put; use 'topk' or 'learned'.")
        circuit = None if backbone is None else Wiring.from_config(backbone)
        self.input_size, self.output_size, self.window = input_size, output_size, window
        self.nac = NAC(output_size, num_heads, input_size=input_size, backbone=circuit, **settings)
        self.continuous_time = self.nac.uses_time and window > 1

    def state_shapes(self) -> tuple[tuple[tuple[int, ...], torch.dtype | None], ...]:
        nac, slots = self.nac, self.window - 1
        entry = nac.head_size + nac.drive_size + 2 + nac.head_size
        return ((nac.num_heads, slots, entry), None), ((slots,), None), ((slots,), torch.bool)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        entries, age, filled = state
        length = x.shape[1]
        new = self.nac.project(x)
        entries = torch.cat((entries, new.entry), dim=2)  # (B, H, M + T, D + E + 2 + D)
        filled = torch.cat((filled, filled.new_ones(x.shape[0], length)), dim=1)  # (B, M + T)
        now = dt.cumsum(dim=1)  # (B, T) seconds since the newest frame of the state
        seen = torch.cat((-age, now), dim=1)  # (B, M + T)
        since = (now.unsqueeze(2) - seen.unsqueeze(1)).unsqueeze(1)  # (B, 1, T, M + T)
        mask = Mask(length, entries.shape[2], window=self.window, valid=filled)
        y, _ = self.nac.attend(Tokens(new.query, new.query_row, entries), mask, since)
        age = now[:, -1:] - seen[:, length:]  # (B, M)
        return y, (entries[:, :, length:], age, filled[:, length:])
