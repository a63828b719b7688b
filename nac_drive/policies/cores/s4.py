"""S4, a diagonal plus low-rank state space model.

Source: Gu, Goel & Ré 2022. It gets the true dt.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from nac_drive.policies.cores.base import State, scan
from nac_drive.policies.cores.state_space import StateSpaceCore
from nac_drive.policies.ops.size_limit import count_mask


class S4(StateSpaceCore):
    """Structured state space model with a low-rank part.

    A is diagonal plus low-rank, and starts as the HiPPO-LegS matrix.

        ds/dt = r (A s + B u),    A = diag(Lambda) - P P*,    y = 2 Re(C s) + D u,    output = GLU(W_o GELU(y) + b_o)

    Lambda = -exp(a) + i w, P, B, C and the rate r are learned per channel; the rest is inherited from `StateSpaceCore`.
    Source: Gu, Goel & Ré 2022, "Efficiently Modeling Long Sequences with Structured State Spaces", Theorem 1 and
    section C.2. P P* instead of their P Q* keeps A stable in training (Goel et al. 2022, "It's Raw!").
    Lambda, P and B start as `diagonal_plus_low_rank` returns them.

    The bilinear rule, their Eq. 3, takes the true dt at every step. With delta = r dt / 2:

        s' = (1 - delta A)^-1 ((1 + delta A) s + 2 delta B u) = 2 (1 - delta A)^-1 (s + delta B u) - s

    The Woodbury identity inverts it in O(N). The papers convolve with a kernel that holds one dt; here the recurrence
    always runs. Without input |s| never grows, whatever dt is. The rule does not damp modes that a step is long for:
    over a gap of many times 1 / r a state turns round its equilibrium rather than reach it.

    State: real and imaginary part of s, each (B, d, N / 2).
    """

    log_decay: nn.Parameter
    frequency: nn.Parameter
    low_rank: nn.Parameter
    drive: nn.Parameter

    def initial_system(self) -> dict[str, Tensor]:
        eigenvalues, p = diagonal_plus_low_rank(2 * self.modes)
        low_rank = np.stack((p, np.zeros_like(p)))  # real and imaginary part

        def channels(value: np.ndarray) -> Tensor:
            """Repeat a value (..., N / 2) for every channel: (..., d, N / 2)."""
            value = np.repeat(np.expand_dims(value, -2), self.output_size, axis=-2)
            return torch.from_numpy(value).to(torch.get_default_dtype())

        return {
            "log_decay": channels(np.log(-np.real(eigenvalues))), "frequency": channels(np.imag(eigenvalues)),
            "low_rank": channels(low_rank), "drive": channels(np.sqrt(2.0) * low_rank),
        }  # fmt: skip

    def respond(self, u: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        p, readout = torch.complex(*self.low_rank), 2.0 * torch.complex(*self.readout)
        inverse, gain, correction = self.discretise(dt)  # (B, T, d, N / 2) each

        def step(state: State, inverse: Tensor, push: Tensor, correction: Tensor) -> tuple[Tensor, State]:
            s = state[0]
            g = torch.view_as_complex(inverse) * s + torch.view_as_complex(push)  # (B, d, N / 2)
            overlap = 2.0 * (p.conj() * g).sum(dim=2, keepdim=True).real  # P* g, of both modes of every pair
            s = 2.0 * (g - torch.view_as_complex(correction) * overlap) - s
            return (readout * s).sum(dim=2).real, (s,)

        rows = (torch.view_as_real(row) for row in (inverse, gain * u.unsqueeze(3), correction))
        y, (s,) = scan(step, (torch.complex(*state),), *rows)  # ONNX cannot unbind complex numbers
        return y, (s.real, s.imag)

    def discretise(self, dt: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the coefficients of a step, complex (B, T, d, N / 2), for dt (B, T) seconds.

        With E = (1 - delta Lambda)^-1 and the Woodbury identity, (1 - delta A)^-1 x = E x - correction P* E x:

        Returns:
            E; E delta B; and the correction, delta E P / (1 + delta P* E P).
        """
        delta = 0.5 * dt[:, :, None, None] * self.log_rate.exp()  # (B, T, d, 1)
        one, turn = 1.0 + delta * self.log_decay.exp(), delta * self.frequency
        inverse = torch.complex(one, turn) / (one.square() + turn.square())
        p, scaled = torch.complex(*self.low_rank), delta * inverse
        overlap = 2.0 * (self.low_rank.square().sum(dim=0) * scaled.real).sum(dim=3, keepdim=True)  # not negative
        return inverse, scaled * torch.complex(*self.drive), scaled * p / (1.0 + overlap)


def hippo_legs(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return A (N, N) and B (N,) of HiPPO-LegS.

    N is `size` (Gu, Goel & Ré 2022, Eq. 2).
    """
    count_mask(size, size)
    root = np.sqrt(2.0 * np.arange(size) + 1.0)
    return -np.tril(np.outer(root, root), -1) - np.diag(np.arange(size) + 1.0), root


def diagonal_plus_low_rank(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return HiPPO-LegS as normal plus low-rank.

    One mode of each conjugate pair is kept (their Theorem 1, LegS).

        A = V (diag(Lambda) - p p*) V*,    B = sqrt(2) V p

    The phases of the columns of V make p real and positive.

    Args:
        size: N, even.

    Returns:
        Lambda, complex (N / 2,) with positive imaginary parts, and p (N / 2,).
    """
    matrix, drive = hippo_legs(size)
    p = drive / np.sqrt(2.0)
    skew = matrix + np.outer(p, p) + 0.5 * np.eye(size)
    frequency, vectors = np.linalg.eigh(-1j * skew)
    half = slice(size // 2, None)  # eigh sorts: the positive ones
    return -0.5 + 1j * frequency[half], np.abs(vectors[:, half].conj().T @ p)
