"""Backpropagation through time, written out for recurrences that are affine but for element-wise functions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def recur(
    mix: Callable[..., Tensor],
    drive: Tensor,
    dt: Tensor,
    h: Tensor,
    recurrent: Tensor,
    heads: tuple[Tensor, Tensor] | None = None,
    *own: Tensor,
) -> Tensor:
    """h <- mix(*u, dt, *own) at every step, u = drive + R h, or u = W sigmoid(drive + R h) + b with heads (W, b).

    u is cut into k heads of d numbers, and `mix` must work on these element by element. Shapes: drive (T, B, m), dt
    (B, T), h (B, d), R (m, d), W (k d, m), b (k d), own (d) each -> y (B, T, d). Without W, m = k d.
    """
    inputs: Any = drive, h, recurrent, *(heads or (None, None)), dt.t().unsqueeze(2).to(h.dtype), *own
    if torch.is_grad_enabled():
        y: Any = _Recurrence.apply(mix, *inputs)
    else:
        y = _run(mix, *inputs)[0][1:]
    return y.transpose(0, 1)


def _run(
    mix: Callable[..., Tensor],
    drive: Tensor,
    h: Tensor,
    recurrent: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    dt: Tensor,
    *own: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """dt (T, B, 1) -> the states, the first too (T + 1, B, d), sigmoid(drive + R h) (T, B, m), and u (T, B, k d)."""
    states, g = [h], torch.empty_like(drive)
    u = g if weight is None else g.new_empty(*g.shape[:2], len(weight))
    cut = zip(*(head.unbind() for head in u.split(h.shape[1], dim=2)), strict=True)
    for drive_t, dt_t, g_t, u_t, heads_t in zip(drive.unbind(), dt.unbind(), g.unbind(), u.unbind(), cut, strict=True):
        torch.addmm(drive_t, states[-1], recurrent.t(), out=g_t)  # (B, m)
        if weight is not None and bias is not None:
            torch.addmm(bias, g_t.sigmoid_(), weight.t(), out=u_t)  # (B, k d)
        states.append(mix(*heads_t, dt_t, *own))  # (B, d)
    return torch.stack(states), g, u


class _Recurrence(torch.autograd.Function):
    """The loop of `recur`. Its gradient takes a half to a third of the time of recording every step on a CPU: what a
    step does element by element is differentiated for all steps at once, and so are the weights in the end."""

    @staticmethod
    def forward(ctx: Any, mix: Callable[..., Tensor], *inputs: Any) -> Tensor:
        path, g, u = _run(mix, *inputs)
        _, _, recurrent, weight, _, *own = inputs
        ctx.save_for_backward(g, u, path, recurrent, weight, *own)
        ctx.mix = mix
        return path[1:].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """grad (T, B, d)."""
        with torch.autocast(grad.device.type, enabled=False):
            return _Recurrence._backward(ctx, grad)

    @staticmethod
    def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        g, u, path, recurrent, weight, *own = ctx.saved_tensors
        (length, batch, d), needed = grad.shape, ctx.needs_input_grad[6:]
        with torch.enable_grad():
            leaf, *own = (x.detach().requires_grad_(need) for x, need in zip((u, *own), (True, *needed), strict=True))
            y = ctx.mix(*leaf.split(d, dim=2), *own)
            (slope,) = torch.autograd.grad(y.sum(), leaf, retain_graph=any(needed))  # (T, B, k d)
        total = torch.cat((torch.zeros_like(grad[:1]), grad))  # becomes the whole gradient of each step's state
        d_u, d_drive, bend = torch.empty_like(u), torch.empty_like(g), g * (1.0 - g)
        at, drives, bends = total.unbind(), d_drive.unbind(), bend.unbind()
        outs, slopes = (tensor.view(length, batch, -1, d).unbind() for tensor in (d_u, slope))  # (B, k, d) each
        for t in reversed(range(length)):
            part = torch.mul(slopes[t], at[t + 1].unsqueeze(1), out=outs[t]).flatten(1)  # (B, k d)
            if weight is not None:
                part = torch.mm(part, weight, out=drives[t]).mul_(bends[t])  # (B, m)
            at[t].addmm_(part, recurrent)  # (B, d)
        if weight is None:
            d_drive, d_weight, d_bias = d_u, None, None
        else:
            d_weight, d_bias = d_u.flatten(0, 1).t() @ g.flatten(0, 1), d_u.sum(dim=(0, 1))
        d_recurrent = d_drive.flatten(0, 1).t() @ path[:-1].flatten(0, 1)  # (m, d)
        found = iter(torch.autograd.grad(y, [*compress(own, needed)], total[1:]) if any(needed) else ())
        d_own = (next(found) if need else None for need in needed)
        return None, d_drive, total[0], d_recurrent, d_weight, d_bias, *d_own
