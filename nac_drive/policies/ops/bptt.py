"""Backpropagation through time, written out.

It is for recurrences that are affine but for element-wise functions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nac_drive.policies.ops.graphed import graphed


class Form(ABC):
    """Element-wise part of a step: q <- f(u, *clock).

    u has k heads of d numbers, for a state q of d.
    """

    heads: int
    """Number of heads, k."""

    @classmethod
    def arrange(cls, weights: Tensor) -> Tensor:
        """Reorder the rows of the heads (k d, ...) for `step`.

        They come in the order of the equations.
        """
        return weights

    @classmethod
    @abstractmethod
    def columns(cls, u: Tensor) -> tuple[Tensor, ...]:
        """Return the parts of u (T, B, k d) that `step` works on."""

    @classmethod
    @abstractmethod
    def step(cls, *parts: Tensor) -> None:
        """Compute one frame, and write q into `parts`.

        It takes the columns and the clock of the frame; q (B, d) is the last part.

        It may overwrite the columns with values that `slope` needs.
        """

    @classmethod
    @abstractmethod
    def slope(cls, u: Tensor, q: Tensor, *clock: Tensor) -> tuple[Tensor, ...]:
        """Return dq/du (T, B, k d), and dq by the clock.

        It is called after the steps of all frames.
        """


class Feedback(NamedTuple):
    """Feedback of h = scale q + offset through weights.

    The weights are R (m, d): R h = (R scale) q + R offset.
    """

    direct: Tensor
    """R, for the h that a call begins with."""
    fused: Tensor
    """R scale, for the q of its own steps."""
    scale: Tensor
    """Scale of h, (d,)."""
    offset: Tensor
    """Offset of h, (d,)."""

    @classmethod
    def of(cls, recurrent: Tensor, bias: Tensor, scale: Tensor, offset: Tensor) -> tuple[Tensor, Feedback]:
        """Return the drive's bias with R offset, and the feedback.

        The bias is (m).
        """
        return bias + recurrent @ offset, cls(recurrent, recurrent * scale, scale, offset)


def recur(
    form: type[Form], drive: Tensor, h: Tensor, feedback: Feedback, heads: tuple[Tensor, Tensor] | None, *clock: Tensor
) -> Tensor:
    """Run a recurrence of h = scale q + offset.

    q <- form(u, *clock), u = drive + R h or u = W sigmoid(drive + R h) + b.

    Args:
        form: The element-wise part of a step.
        drive: (B, T, m), with R offset in it.
        h: The state before the first step, (B, d).
        feedback: R, scale and offset.
        heads: W (k d, m) and b (k d). None, for u = drive + R h, requires m = k d.
        *clock: Inputs of the form at each step, (B, T, 1 or d) each.

    Returns:
        h after every step, (B, T, d).
    """
    drive, *ticks = (tensor.transpose(0, 1) for tensor in (drive, *clock))
    inputs: Any = drive, h - feedback.offset, feedback.direct, feedback.fused, *(heads or (None, None)), *ticks
    if torch.is_grad_enabled():
        q: Any = _Recurrence.apply(form, *inputs)
    else:
        q = graphed(drive.shape[0], _run, form, False, *inputs)[0]
    return torch.addcmul(feedback.offset, q, feedback.scale).transpose(0, 1)


def _run(
    form: type[Form],
    keep: bool,
    drive: Tensor,
    start: Tensor,
    direct: Tensor,
    fused: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    *clock: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run `recur` with time first.

    Args:
        form: The element-wise part of a step.
        keep: Keep the last two results of every step. If False, every step overwrites them.
        drive: (T, B, m).
        start: q before the first step, (B, d).
        direct: R, (m, d).
        fused: R scale, (m, d).
        weight: W (k d, m), or None.
        bias: b (k d), or None.
        *clock: (T, B, 1 or d) each.

    Returns:
        q (T, B, d), sigmoid(drive + R h) (T, B, m), and u as the steps left it (T, B, k d).
    """
    length, batch, m = drive.shape
    kept = length if keep else 1
    path, g = drive.new_empty(length, batch, start.shape[1]), drive.new_empty(kept, batch, m)
    u = g if weight is None else g.new_empty(kept, batch, len(weight))
    g_, u_, *columns = (part.unbind() if keep else part.unbind() * length for part in (g, u, *form.columns(u)))
    parts = zip(*columns, *(tick.unbind() for tick in clock), path.unbind(), strict=True)
    state, recurrent, weight = start, direct.t(), None if weight is None else weight.t()
    for drive_t, g_t, u_t, parts_t in zip(drive.unbind(), g_, u_, parts, strict=True):
        torch.addmm(drive_t, state, recurrent, out=g_t)  # (B, m)
        if weight is not None and bias is not None:
            torch.addmm(bias, g_t.sigmoid_(), weight, out=u_t)  # (B, k d)
        form.step(*parts_t)
        state, recurrent = parts_t[-1], fused.t()
    return path, g, u


class _Recurrence(torch.autograd.Function):
    """The loop of `recur` with its gradient written out.

    On a CPU the gradient takes a half to a third of the time of recording every step: the element-wise part is
    differentiated for all steps at once, and so are the weights.
    """

    @staticmethod
    def forward(ctx: Any, form: type[Form], *inputs: Any) -> Tensor:
        path, g, u = graphed(len(inputs[0]), _run, form, True, *inputs)
        _, start, direct, fused, weight, _, *clock = inputs
        ctx.save_for_backward(g, u, path, start, direct, fused, weight, *clock)
        ctx.form = form
        return path.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the inputs from grad (T, B, d)."""
        saved = ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False):
            gradients = graphed(len(grad), _gradients, ctx.form, grad, *saved)
        of_heads = (None, None) if saved[6] is None else ()
        return None, *gradients[:4], *of_heads, *gradients[4:]


def _gradients(
    form: type[Form],
    grad: Tensor,
    g: Tensor,
    u: Tensor,
    path: Tensor,
    start: Tensor,
    direct: Tensor,
    fused: Tensor,
    weight: Tensor | None,
    *clock: Tensor,
) -> tuple[Tensor, ...]:
    """Return the gradients of the tensors that `_run` takes, from grad (T, B, d) of q.

    W and b have none where they are None.
    """
    length, batch, d = grad.shape
    d_u, *paces = form.slope(u, path, *clock)  # of q so far
    total = torch.cat((torch.zeros_like(grad[:1]), grad))  # becomes the whole gradient of each step's state
    d_drive = d_u if weight is None else g * (1.0 - g)  # likewise
    wide, narrow = d_u.view(length, batch, -1, d).unbind(), d_drive.unbind()  # (B, k, d), (B, m) each
    at, row = total.unbind(), torch.empty_like(narrow[0])
    for t in reversed(range(length)):
        part = wide[t].mul_(at[t + 1].unsqueeze(1)).view(batch, -1)  # (B, k d)
        if weight is not None:
            part = narrow[t].mul_(torch.mm(part, weight, out=row))  # (B, m)
        at[t].addmm_(part, fused if t else direct)  # (B, d)
    d_direct = d_drive[0].t() @ start  # (m, d)
    d_folded = d_drive[1:].flatten(0, 1).t() @ path[:-1].flatten(0, 1)  # (m, d)
    d_heads = () if weight is None else (d_u.flatten(0, 1).t() @ g.flatten(0, 1), d_u.sum(dim=(0, 1)))
    d_clock = ((total[1:] * pace).sum_to_size(tick.shape) for pace, tick in zip(paces, clock, strict=True))
    return d_drive, total[0], d_direct, d_folded, *d_heads, *d_clock
