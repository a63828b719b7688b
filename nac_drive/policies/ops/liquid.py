"""Liquid time-constant networks (Hasani's thesis, Chapter 3).

Neurons leak, synapses conduct.

    C_i dv_i/dt = g_i (leak_i - v_i) + sum_j w_ij s_ij (E_ij - v_i),    s_ij = sigmoid(gamma_ij (u_j - mu_ij))

j runs over the inputs (u_j = x_j) and over the neurons (u_j = v_j) that have a synapse to i (Eq. 3.4, 3.5; the sign of
mu as in Eq. 3.72). E, mu, gamma and the leak potential are free, w, C and g positive (softplus).

Shapes: B batch, T time, F inputs, N neurons, M sources of synapses (F or N), K unfolds, R rows.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nac_drive.policies.ops.graphed import graphed
from nac_drive.policies.ops.weight_cache import WeightCache, weights_of

SHORTEST = 1e-6
"""Seconds; a shorter dt counts as this, as the solver divides by dt."""

Solver = Literal["hybrid", "euler", "rk4"]
"""The hybrid solver (thesis, Algorithm 2), explicit Euler, or the classical Runge-Kutta method of fourth order."""

ROWS = 32
"""Rows whose synapses are computed together: (N, ROWS, M) numbers should fit in a core's cache."""


class LiquidNetwork(nn.Module):
    """LTC neurons on any wiring. `ops.liquid_naive` holds the same function in plain form.

    The initial ranges follow Lechner et al. 2020, C and g per second. It runs in the precision of its weights,
    under autocast too.

    Args:
        input_mask: (F, N) bool, synapses from inputs to neurons: row = source, column = target.
        recurrent_mask: (N, N) bool, synapses between neurons.
        unfolds: Solver steps per frame.
        solver: See `Solver`. An explicit one diverges where a step is long beside a time constant; the hybrid one does
            not, and is the only one that is written for speed.
        electrical_mask: (F, N) bool, electrical synapses from inputs to neurons, which add the current w (x_j - v_i);
            None for none.

    Raises:
        ValueError: `unfolds` is less than 1, or `solver` is unknown.
    """

    def __init__(
        self,
        input_mask: Tensor,
        recurrent_mask: Tensor,
        unfolds: int,
        solver: Solver = "hybrid",
        electrical_mask: Tensor | None = None,
    ) -> None:
        super().__init__()
        if unfolds < 1:
            raise ValueError(f"unfolds: must be at least 1 solver step per frame, got {unfolds}.")
        if solver not in get_args(Solver):
            raise ValueError(f"solver: must be one of {', '.join(get_args(Solver))}, got {solver!r}.")
        self.unfolds, self.solver, units = unfolds, solver, recurrent_mask.shape[0]
        self.sensory, self.recurrent = Synapses(input_mask.T), Synapses(recurrent_mask.T)
        self.electrical = None if electrical_mask is None else ElectricalSynapses(electrical_mask.T)
        self.capacitance = nn.Parameter(positive(0.4, 0.6, units))
        self.conductance = nn.Parameter(positive(0.001, 1.0, units))
        self.leak = nn.Parameter(torch.empty(units).uniform_(-0.2, 0.2))
        self._cache: WeightCache[Any] = WeightCache()

    def forward(self, x: Tensor, dt: Tensor, v: Tensor) -> Tensor:
        """Return the potentials (B, T, N) after each frame.

        x is (B, T, F), dt (B, T) in seconds; v (B, N) comes before them.
        """
        tensors = weights_of(self, *self.children())
        with torch.autocast(x.device.type, enabled=False):
            sensory, recurrent, leak, capacitance = self._cache(tensors, self._fuse)
            if self.solver != "hybrid":
                return self._explicit(x.to(v.dtype), dt.to(v.dtype), v, sensory, recurrent, leak, capacitance)
            dt = dt.t().to(v.dtype)  # (T, B)
            inertia = capacitance * (self.unfolds / dt.clamp(min=SHORTEST)).unsqueeze(2)  # (T, B, N): C / D
            rows = x.to(v.dtype).transpose(0, 1).flatten(0, 1)  # (T B, F)
            drive = torch.cat([_currents(part, *sensory) for part in rows.split(ROWS)], dim=2)  # (N, 2, T B)
            drive = (drive + leak).unflatten(2, dt.shape).permute(2, 0, 1, 3)  # (T, N, 2, B)
            drive = drive + F.pad(inertia.mT.unsqueeze(2), (0, 0, 1, 0))  # C / D is part of the divisor
            inputs: Any = v, drive, inertia, *recurrent, self.unfolds
            if torch.is_grad_enabled():
                path: Any = _Unfold.apply(*inputs)  # (T, B, N)
            else:
                path = graphed(self.unfolds * len(dt), _solve, False, *inputs)[0][1:]
        return path.transpose(0, 1)

    def _explicit(
        self,
        x: Tensor,
        dt: Tensor,
        v: Tensor,
        sensory: tuple[Tensor, ...],
        recurrent: tuple[Tensor, ...],
        leak: Tensor,
        capacitance: Tensor,
    ) -> Tensor:
        """Solve dv/dt = (a - b v) / C by explicit steps. Inputs are constant over a frame. Returns (B, T, N)."""
        path = []
        for frame, seconds in zip(x.unbind(1), dt.unbind(1), strict=True):  # (B, F), (B,)
            constant = _currents(frame, *sensory) + leak  # (N, 2, B)

            def slope(v: Tensor, constant: Tensor = constant) -> Tensor:
                a, b = (constant + _currents(v, *recurrent)).unbind(1)  # (N, B) each
                return (a.t() - b.t() * v) / capacitance

            step = (seconds / self.unfolds).unsqueeze(1)  # (B, 1)
            for _ in range(self.unfolds):
                k1 = slope(v)
                if self.solver == "euler":
                    v = v + step * k1
                    continue
                k2 = slope(v + 0.5 * step * k1)
                k3 = slope(v + 0.5 * step * k2)
                v = v + step / 6 * (k1 + 2 * k2 + 2 * k3 + slope(v + step * k3))
            path.append(v)
        return torch.stack(path, dim=1)

    def coupling_sensitivity(self, x: Tensor, v: Tensor) -> Tensor:
        """Return the time constant of every neuron, in seconds.

        It is C / (g + sum_j w s) (thesis, Eq. 3.7).

        Args:
            x: Inputs, (B, F).
            v: Potentials, (B, N).

        Returns:
            (B, N).
        """
        *parts, leak, capacitance = self._fuse()
        conducted = [  # (N, B) each
            _currents(source.to(v.dtype), *part)[:, 1] for part, source in zip(parts, (x, v), strict=True)
        ]
        return (capacitance.unsqueeze(1) / (leak[:, 1] + sum(conducted))).t()

    def _fuse(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor, Tensor]:
        conductance = F.softplus(self.conductance)
        leak = torch.stack((conductance * self.leak, conductance), dim=1).unsqueeze(2)  # (N, 2, 1)
        electrical = () if self.electrical is None else (self.electrical.dense(),)
        return (*self.sensory.dense(), *electrical), self.recurrent.dense(), leak, F.softplus(self.capacitance)


class Synapses(nn.Module):
    """One number of each kind per synapse of `mask`.

    The mask is (targets, sources) bool, in reading order.
    """

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        count = int(mask.sum())
        self.mask: Tensor
        self.register_buffer("mask", mask.contiguous())
        self.weight = nn.Parameter(positive(0.001, 1.0, count))  # w = softplus of it
        self.reversal = nn.Parameter(2.0 * torch.randint(2, (count,)) - 1.0)  # E
        self.gain = nn.Parameter(torch.empty(count).uniform_(3.0, 8.0))  # gamma
        self.center = nn.Parameter(torch.empty(count).uniform_(0.3, 0.8))  # mu

    def dense(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return w E, w, gamma and -gamma mu of all synapses.

        The first two are stacked (N, 2, M), the others (N, 1, M) each; 0 where there is no synapse.
        """
        weight = F.softplus(self.weight)
        values = torch.stack((weight * self.reversal, weight, self.gain, -self.gain * self.center))  # (4, synapses)
        full = values.new_zeros(4, *self.mask.shape).masked_scatter(self.mask, values)  # (4, N, M)
        return full[:2].transpose(0, 1).contiguous(), full[2].unsqueeze(1), full[3].unsqueeze(1)


class ElectricalSynapses(nn.Module):
    """The conductance w of each gap junction of `mask`.

    They are electrical synapses; the mask is (targets, sources) bool.
    """

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.mask: Tensor
        self.register_buffer("mask", mask.contiguous())
        self.weight = nn.Parameter(positive(0.001, 1.0, int(mask.sum())))  # w = softplus of it

    def dense(self) -> Tensor:
        """Return w (N, M); 0 where there is no synapse."""
        weight = F.softplus(self.weight)
        return weight.new_zeros(self.mask.shape).masked_scatter(self.mask, weight)


def _solve(
    keep: bool, v: Tensor, drive: Tensor, inertia: Tensor, weight: Tensor, gain: Tensor, shift: Tensor, unfolds: int
) -> tuple[Tensor, Tensor]:
    """Take K solver steps per frame.

    v' = (inertia v + a) / b, [a, b] = drive + weight s, s = sigmoid(shift + gain v).

    v is (B, N), drive (T, N, 2, B), inertia (T, B, N), weight (N, 2, N), gain and shift (N, 1, N).

    Returns:
        The states before and after every step (T K + 1, B, N), and every b (T K, B, N). If `keep` is False, the states
        before and after every frame (T + 1, B, N), and the last b (1, B, N).
    """
    length, units, _, batch = drive.shape
    steps = length * unfolds
    s, sums = v.new_empty(units, batch, units), v.new_empty(steps if keep else 1, units, 2, batch)
    path = v.new_empty((steps if keep else length) + 1, batch, units)
    path[0] = v
    a, b = sums.transpose(1, 3).unbind(2)  # (T K or 1, B, N) each
    places = [tensor.unbind() if keep else tensor.unbind() * steps for tensor in (sums, a, b)]
    first, *after = path.unbind() if keep else [path[0], *(end for end in path[1:] for _ in range(unfolds))]
    rows = zip(*places, after, strict=True)
    state, source = first, s.transpose(1, 2)
    for constant, hold in zip(drive.unbind(), inertia.unbind(), strict=True):
        for total, numerator, divisor, new in islice(rows, unfolds):
            torch.addcmul(shift, gain, state, out=s).sigmoid_()  # (N, B, N)
            torch.baddbmm(constant, weight, source, out=total)  # (N, 2, B)
            torch.addcmul(numerator, hold, state, out=new).div_(divisor)  # (B, N)
            state = new
    return path, b


class _Unfold(torch.autograd.Function):
    """`_solve` with its gradient written out.

    On a CPU it takes a half to a third of the time of recording every step.

    dv'_i/ds_ij = (w E_ij - v'_i w_ij) / b_i. Backward, a few steps at a time are taken together: their activations are
    computed again, then their Jacobians; the gradient runs back through these, and the gradient of the weights is
    summed.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        unfolds = inputs[6]
        path, divisor = graphed(unfolds * len(inputs[1]), _solve, True, *inputs)
        ctx.save_for_backward(*inputs[2:6], path, divisor)
        ctx.unfolds = unfolds
        return path[unfolds::unfolds].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the inputs from grad (T, B, N)."""
        steps = ctx.unfolds * len(grad)
        with torch.autocast(grad.device.type, enabled=False):
            return *graphed(steps, _gradients, ctx.unfolds, grad, *ctx.saved_tensors), None


def _gradients(
    unfolds: int,
    grad: Tensor,
    inertia: Tensor,
    weight: Tensor,
    gain: Tensor,
    shift: Tensor,
    path: Tensor,
    divisor: Tensor,
) -> tuple[Tensor, ...]:
    """Return the gradients of the tensors that `_solve` takes, from grad (T, B, N) of the states after the frames."""
    length, batch, units = grad.shape
    steps, chunk = length * unfolds, max(1, ROWS // batch)
    before, inverse = path[:-1], divisor.reciprocal()  # (T K, B, N) each
    local = torch.stack((inverse, -path[1:] * inverse)).flatten(1, 2).permute(2, 0, 1).contiguous()  # (N, 2, R)
    keep = inertia.unsqueeze(1) * inverse.unflatten(0, (length, unfolds))  # (T, K, B, N): dv'/dv but for synapses
    keep = keep.view(steps, batch, 1, units).unbind()
    total = grad.new_zeros(steps + 1, batch, 1, units)  # becomes the whole gradient of each step's state
    total[unfolds::unfolds] = grad.unsqueeze(2)
    at = total.unbind()
    d_weight, d_gain, d_shift = (torch.zeros_like(tensor) for tensor in (weight, gain, shift))
    for start in range((steps - 1) // chunk * chunk, -1, -chunk):
        stop = min(start + chunk, steps)
        u = before[start:stop].flatten(0, 1)  # (R, N)
        s = _activation(u, gain, shift)  # (N, R, N)
        part = local[:, :, start * batch : stop * batch]  # (N, 2, R)
        d_s = torch.ops.aten.sigmoid_backward(torch.bmm(part.mT, weight), s)  # (N, R, N)
        jacobian = (d_s * gain).unflatten(1, (-1, batch)).permute(1, 2, 0, 3).unbind()  # (B, N, N) per step
        for k in range(stop - 1, start - 1, -1):
            at[k].addcmul_(at[k + 1], keep[k]).baddbmm_(at[k + 1], jacobian[k - start])  # (B, 1, N)
        row = total[start + 1 : stop + 1].reshape(-1, units).t().contiguous().unsqueeze(1)  # (N, 1, R)
        d_weight.baddbmm_(row * part, s)
        d_shift.baddbmm_(row, d_s)
        d_gain.baddbmm_(row, d_s.mul_(u))
    d_sums = local * total[1:].reshape(-1, units).t().unsqueeze(1)  # (N, 2, R)
    d_sums = d_sums.view(units, 2, length, unfolds, batch)
    d_drive = d_sums.sum(dim=3).permute(2, 0, 1, 3)  # (T, N, 2, B)
    d_inertia = (d_sums[:, 0].permute(1, 2, 3, 0) * before.unflatten(0, (length, unfolds))).sum(dim=1)  # (T, B, N)
    return total[0, :, 0], d_drive, d_inertia, d_weight, d_gain, d_shift


def _activation(u: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    """Return s (N, R, M) of the sources u (R, M)."""
    return torch.addcmul(shift, gain, u).sigmoid_()


def _currents(u: Tensor, weight: Tensor, gain: Tensor, shift: Tensor, electrical: Tensor | None = None) -> Tensor:
    """Return the sums of w s E and of w s.

    They run over the sources u (R, M); electrical ones add w u and w: (N, 2, R).
    """
    chemical = torch.bmm(weight, _activation(u, gain, shift).mT)
    if electrical is None:
        return chemical
    return chemical + torch.stack((electrical @ u.t(), electrical.sum(dim=1, keepdim=True).expand(-1, len(u))), dim=1)


def positive(low: float, high: float, *shape: int) -> Tensor:
    """Draw numbers whose softplus is uniform in [low, high]."""
    return torch.empty(shape).uniform_(low, high).expm1().log()
