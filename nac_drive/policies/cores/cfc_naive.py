"""The closed-form continuous-time network, frame by frame.

`CfC` computes the same function fast. This form is for reading, and its tests compare the two.
Source: Hasani et al. 2022 (Closed-form continuous-time neural networks), models CfC, CfC-noGate and Cf-S, with the time
gate sigmoid(t_a dt + t_b) of the authors' library ncps.

Shapes: B batch, T time, F inputs, m backbone units, d neurons.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nac_drive.policies.cores.base import State
from nac_drive.policies.cores.cfc import CfC


def naive_cfc(core: CfC, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
    """Compute `core(x, dt, state)` from the weights of `core`.

    Args:
        core: The core whose weights and mode are used.
        x: Inputs, (B, T, F).
        dt: Seconds since the previous frame, (B, T).
        state: (h,), the neurons, (B, d).

    Returns:
        The neurons after each frame, (B, T, d), and the new state.
    """
    (h,) = state
    path = []
    for x_t, dt_t in zip(x.unbind(1), dt.unsqueeze(2).unbind(1), strict=True):  # (B, F), (B, 1)
        g = lecun_tanh(core.input(x_t) + core.recurrent(h))  # (B, m): the backbone, W [x; h] + b
        heads = core.heads(g)  # (B, 4 d), or (B, d) in mode "pure"
        if core.w_tau is not None and core.limit is not None:  # mode "pure"
            f, A = heads, core.limit  # (B, d), (d,)
            h = A - A * torch.exp(-(core.w_tau.abs() + f.abs()) * dt_t) * f
        else:
            f_1, f_2, t_a, t_b = heads.chunk(4, dim=1)  # (B, d) each
            z = torch.sigmoid(t_a * dt_t / core.time_unit + t_b)
            if core.mode == "no-gate":
                h = torch.tanh(f_1) + z * torch.tanh(f_2)
            else:  # mode "gated"
                h = (1.0 - z) * torch.tanh(f_1) + z * torch.tanh(f_2)
        path.append(h)
    return torch.stack(path, dim=1), (h,)


def lecun_tanh(z: Tensor) -> Tensor:
    """Return 1.7159 tanh(0.666 z)."""
    return 1.7159 * torch.tanh(0.666 * z)
