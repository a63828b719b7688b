"""S4D, the diagonal state space model (Gu et al. 2022), with a true dt per sample and step."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nac_drive.policies.cores.base import Core, State, scan


class S4D(Core):
    """Diagonal state space model: each of the d channels of u = W_i x + b_i drives N / 2 independent complex modes.

        ds/dt = r (A s + u),    y = 2 Re(C s) + D u,    output = GLU(W_o GELU(y) + b_o)

    with A = -exp(a) + i w diagonal and r > 0 a rate, learned per channel. Between two observations u is held
    (zero-order hold), so that over dt seconds s' = exp(r dt A) s + (exp(r dt A) - 1) / A u: the S4D-Lin of Gu et al.
    2022, "On the Parameterization and Initialization of Diagonal State Space Models", sec. 3 and 4, whose step size
    Delta is r dt. At first A_n = -1/2 + i pi n, C is standard complex normal, D normal, and r spread log-uniformly over
    0.2..5 per second: memories 2 / r of 0.4 to 10 s, within which the modes turn 0 to N / 2 - 1 times. (There Delta
    starts in 0.001..0.1; r = 5 at dt = 0.02 s is that upper end.)

    Two routes lead to the same numbers. Where all steps after the first of a call have one dt in the whole batch, the
    modes sum to one kernel and whole sequences are convolved with it, by FFT; otherwise, and for single steps, the
    recurrence runs. One layer, without norm, dropout and residual path, and N is half of the usual; the input map is
    ours, since S4 layers have as many inputs as outputs.

    State: real and imaginary part of A s, each (B, d, N / 2).

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        state_size: Number of real state variables per channel, N.

    Raises:
        ValueError: `state_size` is odd or less than 2.
    """

    continuous_time = True
    neuron_names = ("real part", "imaginary part")

    def __init__(self, input_size: int, output_size: int, *, state_size: int = 32) -> None:
        super().__init__()
        if state_size < 2 or state_size % 2:
            raise ValueError(f"state_size: must be even and at least 2 (conjugate pairs), got {state_size}.")
        self.input_size, self.output_size, self.modes = input_size, output_size, state_size // 2
        self.input = nn.Linear(input_size, output_size)
        low, high = math.log(0.2), math.log(5.0)
        self.log_rate = nn.Parameter(low + (high - low) * torch.rand(output_size, 1))
        self.log_decay = nn.Parameter(torch.full((output_size, self.modes), math.log(0.5)))
        self.frequency = nn.Parameter(math.pi * torch.arange(float(self.modes)).repeat(output_size, 1))
        self.readout = nn.Parameter(0.5**0.5 * torch.randn(2, output_size, self.modes))
        self.skip = nn.Parameter(torch.randn(output_size))
        self.output = nn.Linear(output_size, 2 * output_size)

    def state_shapes(self) -> tuple[tuple[tuple[int, ...], torch.dtype | None], ...]:
        return (((self.output_size, self.modes), None),) * 2

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        u = self.input(x).to(self.skip.dtype)  # (B, T, d)
        later = dt[:, 1:]
        even = later.numel() > 0 and bool((later == later[0, 0]).all())
        y, state = (self.convolve if even else self.recur)(u, dt, state)
        return F.glu(self.output(F.gelu(y + self.skip * u)), dim=2), state

    def recur(self, u: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        """Run step by step, in terms of h = A s.

        Args:
            u: Inputs of the modes, (B, T, d).
            dt: Seconds since the previous observation, (B, T), any values.
            state: Real and imaginary part of h, each (B, d, N / 2).

        Returns:
            2 Re(C s), (B, T, d), and the new state.
        """
        readout = self._readout()

        def step(state: State, u: Tensor, keep: Tensor) -> tuple[Tensor, State]:
            h = torch.view_as_complex(keep) * (state[0] + u) - u  # (B, d, N / 2)
            return (readout * h).sum(dim=2).real, (h,)

        keep = torch.view_as_real(self._power(dt[:, :, None, None]))  # ONNX cannot unbind complex numbers
        y, (h,) = scan(step, (torch.complex(*state),), u.unsqueeze(3), keep)
        return y, (h.real, h.imag)

    def convolve(self, u: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute `recur` by FFT, for a dt that differs between samples in the first of two or more steps only."""
        readout, length = self._readout(), u.shape[1] - 1
        first = u[:, 0, :, None]
        h = self._power(dt[:, 0, None, None]) * (torch.complex(*state) + first) - first  # (B, d, N / 2) after one step
        powers = self._power(dt[0, 1] * torch.arange(length + 1, device=u.device)[:, None, None])  # (T, d, N / 2)
        decays, input = powers[:length], powers[1] - 1  # Abar^0..Abar^(T - 2), Abar - 1
        kernel = (readout * input * decays).sum(dim=2).real  # (T - 1, d)
        spectrum = torch.fft.rfft(kernel, 2 * length, dim=0) * torch.fft.rfft(u[:, 1:], 2 * length, dim=1)
        forced = torch.fft.irfft(spectrum, 2 * length, dim=1)[:, :length]  # (B, T - 1, d)
        free = torch.einsum("tdn,bdn->btd", powers, readout * h).real  # (B, T, d)
        y = free + F.pad(forced, (0, 0, 1, 0))
        driven = torch.einsum("tdn,btd->bdn", decays, u[:, 1:].flip(1).to(decays.dtype))  # (B, d, N / 2)
        h = powers[length] * h + input * driven
        return y, (h.real, h.imag)

    def _power(self, seconds: Tensor) -> Tensor:
        """Return exp(r A seconds), the decay of the modes: (..., d, N / 2) for seconds (..., 1, 1)."""
        time = seconds * self.log_rate.exp()
        return torch.polar(torch.exp(-time * self.log_decay.exp()), time * self.frequency)

    def _readout(self) -> Tensor:
        """Return 2 C / A, which reads h = A s: (d, N / 2)."""
        return 2.0 * torch.complex(*self.readout) / torch.complex(-self.log_decay.exp(), self.frequency)
