"""The Pulse-Driven Neural Architecture: a CfC that oscillates.

Our text of the paper lacks its equations. They come from the authors' published source, and agree with every parameter
count of the paper's overhead table (Section 6.5). Variant A is the CfC without additions: `cfc`.

The clock: the paper's t is the index of the row, "one integer per row of the input", so that an omega of 1 is one
radian per row. Our rows are frames and frames may be lost: t is the true time since the start of the episode, counted
in frames of 1/50 s. At the nominal rate it is the paper's index, 0 at the first frame (whose dt is 0), and a gap moves
it on by the gap's true length. Omega thus starts at 0.1 to 10 radians per frame, 0.8 to 80 Hz; as in the paper, the
fastest quarter of it lies above the Nyquist frequency (Section 7.4).

t is float64, because angles reach 10 t: after 1000 s of frames float32 resolves 0.03 radians, and the sum of thousands
of steps adds rounding errors. Angles are reduced to one period in float64, too.

Under autocast all of this runs in the precision of the weights: a pulse starts at 0.01 * 0.1, which bfloat16 would
round away next to a state of size 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nac_drive.policies.cores.base import NOMINAL_DT, RecurrentCore, State, StateSpec, scan
from nac_drive.policies.cores.cfc import CfC
from nac_drive.policies.ops.cfc_steps import SCALE, SLOPE

FRAMES_PER_SECOND = 1.0 / NOMINAL_DT
GATE = 0.01
"""Initial strength of pulse, self-attention and noise alike (Sections 3.2, 3.3 and 3.5)."""


class Pulse(nn.Module):
    """The pulse gate * A * sin(omega t + phi(h)) (Eq. 3 and 4).

    phi(h) = W h + b; A, omega (d,), gate a scalar.

    Initially gate is 0.01, omega log-uniformly spaced from 0.1 to 10 radians per frame and A 0.1 * N(0, 1), as in the
    authors' source; the paper gives no initial A.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.amplitude = nn.Parameter(0.1 * torch.randn(size))
        self.omega = nn.Parameter(torch.logspace(-1.0, 1.0, size))
        self.phase = nn.Linear(size, size)
        self.gate = nn.Parameter(torch.tensor(GATE))

    def forward(self, h: Tensor, t: Tensor) -> Tensor:
        """Return the pulse to add to h (B, T, d) at the times t (B, T), float64 frames."""
        return self.gate * self.amplitude * torch.sin(self._angle(t, h.dtype) + self.phase(h))

    def span(self, t: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
        """Integrate the pulse over [t - dt, t], for `travel`.

        The phase is held. t and dt (B, T) are float64 frames.

            integral of sin(omega s + phi) ds = dt sinc(omega dt / 2) sin(omega (t - dt / 2) + phi)

        Returns:
            The middle angle omega (t - dt / 2) and the reach gate A dt sinc(omega dt / 2), (B, T, d) each.
        """
        dtype = self.omega.dtype
        frames = dt.to(dtype).unsqueeze(2)  # (B, T, 1)
        sinc = torch.sinc(self.omega * frames / (2.0 * math.pi))  # (B, T, d): torch's sinc(x) is sin(pi x) / (pi x)
        return self._angle(t - 0.5 * dt, dtype), self.gate * self.amplitude * frames * sinc

    def travel(self, h: Tensor, middle: Tensor, reach: Tensor) -> Tensor:
        """Return h (B, d) at the end of a span.

        The phase is held at the start of the span.
        """
        return torch.addcmul(h, reach, torch.sin(middle + self.phase(h)))  # (B, d)

    def _angle(self, t: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the angle omega t modulo 2 pi (B, T, d) at the times t (B, T) float64."""
        return torch.remainder(self.omega.double() * t.unsqueeze(2), 2.0 * math.pi).to(dtype)


class SelfAttend(nn.Module):
    """Attention among the neurons of one frame (Eq. 5 and 6).

    gate * W sigmoid(h), W (d, d), gate a scalar.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.projection = nn.Linear(size, size, bias=False)
        self.gate = nn.Parameter(torch.tensor(GATE))

    def forward(self, h: Tensor) -> Tensor:
        """Return the term to add to the states h (B, T, d)."""
        return self.gate * self.projection(torch.sigmoid(h))


class PDNA(RecurrentCore):
    """Variants C, D and E: a CfC with added terms.

    The terms are added to its states h afterwards (Sections 3.4 and 3.5).

        y = h + pulse(t, h)               if `pulse`
        y = y + self_attend(y)            if `self_attend`

    Neither feeds back into the CfC. With neither, it is variant A, a CfC in other code. Simplified: the CfC starts from
    zeros, as in ncps, which the authors use, not from a learned state as in Section 3.1.

    State: h (B, d), and t (B,), float64 frames since the start.

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        pulse: Add the pulse.
        self_attend: Add the attention among the neurons.
        backbone_units: Number of units of the CfC's backbone.
        time_unit: See `CfC`; the pulse counts frames in any case.

    Raises:
        ValueError: `backbone_units` is less than 1, or `time_unit` is not positive.
    """

    continuous_time = True
    neuron_names = ("h",)

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        pulse: bool,
        self_attend: bool,
        backbone_units: int = 128,
        time_unit: float = NOMINAL_DT,
    ) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        self.cfc = CfC(input_size, output_size, backbone_units=backbone_units, time_unit=time_unit)
        self.pulse = Pulse(output_size) if pulse else None
        self.self_attend = SelfAttend(output_size) if self_attend else None

    def state_shapes(self) -> StateSpec:
        return ((self.output_size,), None), ((), torch.float64)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        h, start = state
        with torch.autocast(x.device.type, enabled=False):
            y, (h,) = self.cfc(x.to(h.dtype), dt, (h,))  # (B, T, d)
            t = _clock(start, dt)  # (B, T)
            if self.pulse is not None:
                y = y + self.pulse(y, t)
            if self.self_attend is not None:
                y = y + self.self_attend(y)
        return y, (h, t[:, -1])


class PDNAODE(RecurrentCore):
    """A CfC whose state evolves with a pulse.

    The pulse is a term of the state's own evolution, which goes beyond the paper.

    Its authors name as future work "integrating the pulse as a true ODE term using sequential LTC processing, where the
    oscillation continuously evolves hidden state between input steps" (Section 8). Between two frames, with no input,

        dh/ds = gate A sin(omega s + phi(h))

    and then the CfC takes in the frame: h' = CfC(x, h, dt). This is the first-order splitting of Eq. 1, without its
    self-attention, into the pulse and the rest, of which the CfC is the closed form. The pulse's part is exact in s
    while the phase is held at the last frame's (`Pulse.span`); an Euler step of one frame would be Eq. 4. In
    variant C the pulse is added to the output; here it changes the state. The output is h'.

    State: h (B, d), and t (B,), float64 frames since the start.

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        backbone_units: Number of units of the CfC's backbone.
        time_unit: See `CfC`; the pulse counts frames in any case.

    Raises:
        ValueError: `backbone_units` is less than 1, or `time_unit` is not positive.
    """

    continuous_time = True
    neuron_names = ("h",)

    def __init__(
        self, input_size: int, output_size: int, *, backbone_units: int = 128, time_unit: float = NOMINAL_DT
    ) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        self.cfc = CfC(input_size, output_size, backbone_units=backbone_units, time_unit=time_unit)
        self.pulse = Pulse(output_size)

    def state_shapes(self) -> StateSpec:
        return ((self.output_size,), None), ((), torch.float64)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        h, start = state
        cfc, d = self.cfc, self.output_size
        weight = cfc.recurrent.weight.t()

        def step(state: State, drive: Tensor, dt: Tensor, middle: Tensor, reach: Tensor) -> tuple[Tensor, State]:
            h = self.pulse.travel(state[0], middle, reach)  # (B, d)
            g = SCALE * torch.tanh(SLOPE * torch.addmm(drive, h, weight))  # (B, units): from here on CfC's own step
            f_1, f_2, t_a, t_b = cfc.heads(g).split(d, dim=1)
            h = torch.lerp(f_1.tanh(), f_2.tanh(), torch.addcmul(t_b, t_a, dt).sigmoid())  # (B, d)
            return h, (h,)

        with torch.autocast(x.device.type, enabled=False):
            t = _clock(start, dt)  # (B, T)
            middle, reach = self.pulse.span(t, FRAMES_PER_SECOND * dt.double())  # (B, T, d) each
            drive = cfc.input(x.to(h.dtype))  # (B, T, units)
            y, (h,) = scan(step, (h,), drive, dt.unsqueeze(2) / cfc.time_unit, middle, reach)
        return y, (h, t[:, -1])


class NoisyCfC(RecurrentCore):
    """Variant B (Section 3.5): a CfC with noise, no pulse.

    y = h + gate * noise, noise of N(0, 1).

    It tests whether any perturbation has the same effect. The noise is added in training mode only, as in the authors'
    source; the paper does not say. The gate starts at the pulse's 0.01, so at first the noise is 14 times as large as
    the pulse, which also has the amplitude A, although the paper calls them equal.

    The noise is a hash of the frame's features and its index in the episode, which the state holds. The same call gives
    the same noise, and a stream the same as the whole sequence, without a random generator. It changes with every frame
    and with every change of the features, hence from epoch to epoch as the encoder learns. No layer can learn to
    subtract it, unlike a table of noise by index.

    State: h (B, d), and the index of the next frame (B,) int64.

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        backbone_units: Number of units of the CfC's backbone.
        time_unit: See `CfC`; the noise counts frames in any case.

    Raises:
        ValueError: `backbone_units` is less than 1, or `time_unit` is not positive.
    """

    continuous_time = True
    neuron_names = ("h",)

    def __init__(
        self, input_size: int, output_size: int, *, backbone_units: int = 128, time_unit: float = NOMINAL_DT
    ) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        self.cfc = CfC(input_size, output_size, backbone_units=backbone_units, time_unit=time_unit)
        self.gate = nn.Parameter(torch.tensor(GATE))

    def state_shapes(self) -> StateSpec:
        return ((self.output_size,), None), ((), torch.int64)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        h, start = state
        with torch.autocast(x.device.type, enabled=False):
            y, (h,) = self.cfc(x.to(h.dtype), dt, (h,))  # (B, T, d)
            if self.training:
                index = start.unsqueeze(1) + torch.arange(x.shape[1], device=x.device)  # (B, T)
                y = y + self.gate * hashed_noise(x, index, self.output_size).to(y.dtype)
        return y, (h, start + x.shape[1])


def hashed_noise(x: Tensor, index: Tensor, size: int) -> Tensor:
    """Compute N(0, 1) as a function of frame and index.

    x (B, T, F) counts to the bit of its float32; the index is (B, T) int64.

    A hash of the frame seeds the counter-based generator splitmix64; Box and Muller make its numbers Gaussian.

    Returns:
        (B, T, size) float64.
    """
    bits = x.detach().float().contiguous().view(torch.int32).long()  # (B, T, F)
    columns = torch.arange(1, x.shape[2] + 1, device=x.device)
    seed = _mix(_mix(index) + (bits * _mix(columns)).sum(dim=2))  # (B, T)
    pairs = torch.arange(1, size + 1 + size % 2, device=x.device) * _ODD
    uniform = _shift(_mix(seed.unsqueeze(2) + pairs), 11).double() * 2.0**-53  # (B, T, size or size + 1) in [0, 1)
    radius, angle = uniform.chunk(2, dim=2)
    radius, angle = torch.sqrt(-2.0 * torch.log1p(-radius)), 2.0 * math.pi * angle
    return torch.cat((radius * torch.cos(angle), radius * torch.sin(angle)), dim=2)[..., :size]


_ODD = 0x9E3779B97F4A7C15 - 2**64  # the constants of splitmix64, as signed integers, on which int64 wraps alike
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def _mix(z: Tensor) -> Tensor:
    """Apply the finalizer of splitmix64 (Steele, Lea, Flood 2014) to int64."""
    z = (z ^ _shift(z, 30)) * _FIRST
    z = (z ^ _shift(z, 27)) * _SECOND
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Shift right logically.

    The shift of int64 itself would copy the sign.
    """
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _clock(start: Tensor, dt: Tensor) -> Tensor:
    """Return the frames since the start, (B, T) float64.

    The episode starts at start (B,); dt (B, T) is in seconds.
    """
    return start.unsqueeze(1) + FRAMES_PER_SECOND * dt.double().cumsum(dim=1)
