"""Element-wise steps of the closed-form continuous-time networks, arranged for speed.

tanh(f) = 2 sigmoid(2 f) - 1, and sigmoid is several times faster than tanh on CPUs: so `Gated` and `NoGate` step a
state q with h = 2 q - 1, by sigmoids alone, of which all of a step are taken at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nac_drive.policies.ops.bptt import Feedback, Form

SCALE, SLOPE = 1.7159, 0.666
"""LeCun's tanh is SCALE tanh(SLOPE z)."""


class Gated(Form):
    """Gated step: h' = (1 - z) tanh(f_1) + z tanh(f_2).

    z = sigmoid(t_a dt + t_b).

    It is computed as q' = (1 - z) s_1 + z s_2 with s_i = sigmoid(u_i), from the heads u = (2 f_1, 2 f_2, t_b, t_a). The
    clock is dt.
    """

    heads = 4

    @classmethod
    def arrange(cls, weights: Tensor) -> Tensor:
        """Turn the rows f_1, f_2, t_a, t_b into u."""
        f, t_a, t_b = weights.tensor_split((len(weights) // 2, 3 * len(weights) // 4))
        return torch.cat((2.0 * f, t_b, t_a))

    @classmethod
    def columns(cls, u: Tensor) -> tuple[Tensor, ...]:
        heads = u.chunk(4, dim=2)
        return u[..., : 3 * heads[0].shape[2]], *heads

    @classmethod
    def step(cls, *parts: Tensor) -> None:
        logits, s_1, s_2, z, t_a, dt, out = parts
        z.addcmul_(t_a, dt)
        logits.sigmoid_()
        cls.mix(s_1, s_2, z, out)

    @classmethod
    def slope(cls, u: Tensor, q: Tensor, *clock: Tensor) -> tuple[Tensor, ...]:
        s_1, s_2, z, t_a = u.chunk(4, dim=2)
        by_1, by_2, by_z = cls.mixed(s_1, s_2, z)
        by_t = by_z * z * (1.0 - z)
        return torch.cat((by_1 * s_1 * (1.0 - s_1), by_2 * s_2 * (1.0 - s_2), by_t, by_t * clock[0]), 2), by_t * t_a

    @staticmethod
    def mix(s_1: Tensor, s_2: Tensor, z: Tensor, out: Tensor) -> None:
        torch.lerp(s_1, s_2, z, out=out)

    @staticmethod
    def mixed(s_1: Tensor, s_2: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return dq by s_1, s_2 and z."""
        return 1.0 - z, z, s_2 - s_1


class NoGate(Gated):
    """Step without a gate: h' = tanh(f_1) + z tanh(f_2).

    It is computed as q' = s_1 + z (s_2 - 1/2).
    """

    @staticmethod
    def mix(s_1: Tensor, s_2: Tensor, z: Tensor, out: Tensor) -> None:
        torch.addcmul(s_1, s_2, z, out=out).add_(z, alpha=-0.5)

    @staticmethod
    def mixed(s_1: Tensor, s_2: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.ones_like(z), z, s_2 - 0.5


class Pure(Form):
    """Pure step: h' = A - A exp(-(|w_tau| + |f|) dt) f.

    It is computed as q' = f exp(-dt |w_tau| - dt |f|) with h = A - A q. The clock is -dt and -dt |w_tau|.
    """

    heads = 1

    @classmethod
    def columns(cls, u: Tensor) -> tuple[Tensor, ...]:
        return (u,)

    @classmethod
    def step(cls, *parts: Tensor) -> None:
        f, back, decay, out = parts
        torch.addcmul(decay, torch.abs(f, out=out), back, out=out).exp_().mul_(f)

    @classmethod
    def slope(cls, u: Tensor, q: Tensor, *clock: Tensor) -> tuple[Tensor, ...]:
        (back, decay), size = clock, u.abs()
        return torch.exp(decay + back * size) * (1.0 + back * size), q * size, q


FORMS: dict[str, type[Form]] = {"gated": Gated, "no-gate": NoGate, "pure": Pure}


def feedback_of_tanh(recurrent: Tensor, bias: Tensor) -> tuple[Tensor, Feedback]:
    """Return `Feedback.of` for h = 2 q - 1.

    h has d numbers, R is (m, d).
    """
    scale = recurrent.new_full(recurrent.shape[1:], 2.0)
    return Feedback.of(recurrent, bias, scale, -0.5 * scale)
