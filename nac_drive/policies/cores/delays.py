"""Networks that see delayed signals (Hasani's thesis, section 2.6.3).

The signals replace a state that is learned.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nac_drive.policies.cores.base import Core, State, StateSpec
from nac_drive.policies.cores.window import WindowCore, pairs


class TDNN(WindowCore):
    """Time-delay neural network (Waibel et al. 1989; thesis, Eq. 2.5).

    y_t = tanh(W [x_t, x_{t-1}, ...] + b).

    The thesis' inputs end one step before the output; a driver acts on the present frame, so it is among ours. Frames
    before the first are 0. dt has no effect.

    State: the inputs of the last frames, see WindowCore.

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        window: Number of frames that an output sees, its own included.
    """

    continuous_time = False

    def __init__(self, input_size: int, output_size: int, *, window: int = 8) -> None:
        super().__init__(input_size, output_size, window)
        self.linear = nn.Linear(window * input_size, output_size)

    def attend(self, x: Tensor, age: Tensor, allowed: Tensor) -> Tensor:
        x, _, allowed = pairs(x, age, allowed)  # (B, T, W, F), (B, T, W)
        return self.linear((x * allowed.unsqueeze(3)).flatten(2)).tanh()


class NARX(Core):
    """Nonlinear autoregressive network with exogenous inputs (Lin et al. 1996).

    See the thesis, Eq. 2.6.

        y_t = tanh(W [x_{t-n+1}, ..., x_t] + U [y_{t-m}, ..., y_{t-1}] + b)

    The present frame is among the inputs, as in `TDNN`; signals before the first frame are 0. dt has no effect.

    State: (x, y): the last n - 1 inputs (B, n - 1, F) and m outputs (B, m, d), the oldest first.

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        window: Number of inputs that an output sees, n.
        delays: Number of earlier outputs that it sees, m.

    Raises:
        ValueError: `window` or `delays` is less than 1.
    """

    continuous_time = False

    def __init__(self, input_size: int, output_size: int, *, window: int = 8, delays: int = 4) -> None:
        super().__init__()
        for name, value in (("window", window), ("delays", delays)):
            if value < 1:
                raise ValueError(f"{name}: must be at least 1 frame, got {value}.")
        self.input_size, self.output_size, self.window, self.delays = input_size, output_size, window, delays
        self.linear = nn.Linear(window * input_size, output_size)
        self.feedback = nn.Linear(delays * output_size, output_size, bias=False)

    def state_shapes(self) -> StateSpec:
        return ((self.window - 1, self.input_size), None), ((self.delays, self.output_size), None)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        inputs, outputs = state
        seen = torch.cat((inputs, x.to(inputs.dtype)), dim=1)  # (B, n - 1 + T, F)
        drive = self.linear(seen.unfold(1, self.window, 1).transpose(2, 3).flatten(2))  # (B, T, d)
        past, path = list(outputs.unbind(1)), []
        for each in drive.unbind(1):
            y = (each + self.feedback(torch.cat(past, dim=1))).tanh()
            path.append(y)
            past = [*past[1:], y.to(outputs.dtype)]
        return torch.stack(path, dim=1), (seen[:, x.shape[1] :], torch.stack(past, dim=1))
