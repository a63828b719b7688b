"""ContiFormer (Chen et al. 2023): keys and values that evolve."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nac_drive.policies.cores.window import WindowCore, check_heads, pairs
from nac_drive.policies.ops.ode import midpoint_path


class ContiFormer(WindowCore):
    """Attention whose keys and values evolve in continuous time.

    They go on evolving after their observation.

    The key and the value of each frame s start at its time t_s and follow ordinary differential equations

        dk/dt = tanh(W_1 k + b_1),    k(t_s) = W_k x_s + b_k,    and likewise v with W_2, b_2, W_v, b_v;

    a query t attends to their means over [t_s, t], <k> and <v>, here per head of size D:

        y_t = W_o [sum_s p_ts <v>_s of every head] + b_o,    p_ts = softmax over s of q_t.<k>_s / sqrt(D)

    Source: Chen et al. 2023, "ContiFormer: Continuous-Time Transformer for Irregular Time Series Modeling", sec. 3.1.
    The tanh bounds the speed: a component moves by at most 1 in a second. Each pair is integrated over its own age: on
    [0, 1] by `ode_steps` midpoint steps with the derivative multiplied by the age; the mean is the trapezoidal rule
    over their ends. Both are of second order.

    Simplified: the source interpolates the queries by a cubic spline and takes the mean of q(u).k(u), which needs the
    future; here q stays at its value of t. One attention layer: no residual path, norm or feed-forward part around
    it, and time is no input of the vector field. Frames have no position: their order has an effect through the
    evolution only.

    State: the inputs of the last frames, see WindowCore.

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d, a multiple of `num_heads`.
        num_heads: Number of heads.
        window: Number of frames that a query sees, its own included.
        ode_steps: Midpoint steps per pair of query and key.

    Raises:
        ValueError: `num_heads` does not divide `output_size`, or `window` or `ode_steps` is less than 1.
    """

    def __init__(
        self, input_size: int, output_size: int, *, num_heads: int = 4, window: int = 32, ode_steps: int = 2
    ) -> None:
        super().__init__(input_size, output_size, window)
        check_heads("output_size", output_size, num_heads)
        if ode_steps < 1:
            raise ValueError(f"ode_steps: must be at least 1, got {ode_steps}.")
        self.continuous_time = window > 1
        self.num_heads, self.ode_steps = num_heads, ode_steps
        self.query = nn.Linear(input_size, output_size)
        self.kv = nn.Linear(input_size, 2 * output_size)  # key, value
        bound = output_size**-0.5
        self.field_weight = nn.Parameter(torch.empty(2, output_size, output_size).uniform_(-bound, bound))
        self.field_bias = nn.Parameter(torch.empty(2, 1, output_size).uniform_(-bound, bound))
        self.output = nn.Linear(output_size, output_size)

    def attend(self, x: Tensor, age: Tensor, allowed: Tensor) -> Tensor:
        q = self.query(x[:, x.shape[1] - age.shape[1] :])  # (B, T, d)
        start, age, allowed = pairs(self.kv(x), age, allowed)  # (B, T, W, 2 d), (B, T, W) twice
        k, v = self.mean(start, age).chunk(2, dim=3)  # (B, T, W, d) each
        q, k, v = (side.unflatten(-1, (self.num_heads, -1)).transpose(-2, -3) for side in (q.unsqueeze(2), k, v))
        scores = q @ k.transpose(3, 4) / math.sqrt(q.shape[4])  # (B, T, H, 1, W)
        p = scores.masked_fill(~allowed[:, :, None, None], -torch.inf).softmax(dim=4)
        return self.output((p @ v).flatten(2))  # (B, T, H D)

    def mean(self, start: Tensor, age: Tensor) -> Tensor:
        """Return the mean path of keys and values.

        It leads from `start` (..., 2 d) over the seconds `age` (...).
        """
        initial = torch.stack(start.to(age.dtype).flatten(0, -2).chunk(2, dim=1))  # (2, P, d)
        seconds = age.reshape(-1, 1)

        def field(kv: Tensor) -> Tensor:
            return seconds * torch.baddbmm(self.field_bias, kv, self.field_weight).tanh()

        path = midpoint_path(field, initial, self.ode_steps)  # (n + 1, 2, P, d)
        mean = torch.trapezoid(path, dx=1.0 / self.ode_steps, dim=0)  # (2, P, d)
        return torch.cat((mean[0], mean[1]), dim=1).view_as(start)
