"""Batch invariance: a row gets the bits it gets alone.

A product of one row and a product of many rows run in different kernels, which add in different orders (He et al. 2025,
"Defeating Nondeterminism in LLM Inference"). Here every row of a batch is its own product, in one call for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

SMALL_PRODUCT = 400
"""Multiplications below which `bmm` takes another kernel than a single product: small products run one by one."""


REGISTERS = 32
"""Numbers that a loop of torch takes at a time, at most: functions like `sigmoid` round the numbers of a last, shorter
piece in another way."""


class BatchInvariance(TorchFunctionMode):
    """Computes every row of a batch by single-row kernels.

    It holds inside a `with` block.

    - Products with a matrix of weights become one product per row: in one call where a row is one vector.
    - Convolutions run image by image if torch would take another kernel for a single image.
    - Functions like `sigmoid` run row by row unless a row fills whole registers.
    - Recurrent layers run row by row.

    Everything else is left alone: exact arithmetic, other functions, normalisations and products of batches treat their
    rows alike already. No list of operations is a proof, so `BatchedActs` compares a whole driver with single rows
    before it relies on this.

    Args:
        rows: Number of rows of the batch. The first axis of its tensors is this number or a multiple of it.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        row_wise = _ROW_WISE.get(func)
        if row_wise is not None:
            result = row_wise(self.rows, *args, **kwargs)
            if result is not None:
                return result
        return func(*args, **kwargs)


def _linear(rows: int, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    if x.dim() < 2 or x.shape[0] % rows:
        return None
    (n, k), shape = weight.shape, x.shape
    x = x.reshape(rows, -1, k)  # (B, M, K)
    if x.shape[1] > 1 or n * k < SMALL_PRODUCT:
        y = torch.stack([F.linear(row, weight, bias) for row in x])
    elif bias is None:
        y = torch.bmm(x, weight.t().expand(rows, k, n))
    else:
        y = torch.baddbmm(bias.expand(rows, 1, n), x, weight.t().expand(rows, k, n))
    return y.view(*shape[:-1], n)


def _matmul(rows: int, x: Tensor, matrix: Tensor) -> Tensor | None:
    return _linear(rows, x, matrix.t()) if matrix.dim() == 2 else None


def _addmm(
    rows: int, summand: Tensor, x: Tensor, matrix: Tensor, *, out: Tensor | None = None, **scales: float
) -> Tensor | None:
    if scales or x.shape[0] % rows:
        return None
    k, n = matrix.shape
    x = x.reshape(rows, -1, k)  # (B, M, K)
    summands = summand.expand(rows * x.shape[1], n).reshape(rows, -1, n)  # (B, M, N)
    if x.shape[1] > 1 or n * k < SMALL_PRODUCT:
        y = torch.stack([torch.addmm(*row, matrix) for row in zip(summands, x, strict=True)])
    else:
        y = torch.baddbmm(summands, x, matrix.expand(rows, k, n))
    y = y.flatten(0, 1)
    return y if out is None else out.copy_(y)


def _conv2d(
    rows: int,
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> Tensor | None:
    form = [[size] * 2 if isinstance(size, int) else list(size) for size in (stride, padding, dilation)]
    one, many = (
        torch._C._select_conv_backend(some, weight, bias, *form, False, [0, 0], groups, None)
        for some in (images[:1], images)
    )
    if one == many:
        return None
    return torch.cat([F.conv2d(image, weight, bias, stride, padding, dilation, groups) for image in images.split(1)])


def _recurrent(layer: Callable) -> Callable:
    """Return torch's recurrent layer, computed row by row.

    Rows are (B, T, F), states (layers, B, d).
    """

    def row_by_row(rows: int, x: Tensor, state: Any, *settings: Any) -> tuple[Tensor, ...] | None:
        if x.shape[0] != rows or not settings[-1]:  # time comes first
            return None
        results = []
        for row, alone in enumerate(x.split(1)):
            start = [part[:, row : row + 1].contiguous() for part in (state if layer is torch.lstm else (state,))]
            results.append(layer(alone, start if layer is torch.lstm else start[0], *settings))
        y, *after = zip(*results, strict=True)
        return torch.cat(y), *(torch.cat(part, dim=1) for part in after)

    return row_by_row


def _elementwise(function: Callable) -> Callable:
    """Return an element-wise function of torch, row by row."""

    def row_by_row(rows: int, x: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
        if isinstance(x, Parameter) or not x.dim() or x.shape[0] % rows or x.numel() % (rows * REGISTERS) == 0:
            return None
        results = [function(row, *args, **kwargs) for row in x.chunk(rows)]
        return x if function in _IN_PLACE else torch.cat(results)

    return row_by_row


_IN_PLACE = (torch.sigmoid_, torch.Tensor.sigmoid_)
_UNEVEN = (
    torch.sigmoid, torch.Tensor.sigmoid, F.softplus, F.silu, F.gelu, F.glu, F.elu, torch.pow, torch.Tensor.pow,
    torch.Tensor.__pow__, *_IN_PLACE,
)  # fmt: skip
"""Functions that round the last numbers of an array in another way than the others."""

_ROW_WISE: dict[Callable, Callable[..., Any]] = {
    F.linear: _linear,
    torch.matmul: _matmul,
    torch.mm: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.Tensor.__matmul__: _matmul,
    torch.Tensor.mm: _matmul,
    torch.addmm: _addmm,
    torch.conv2d: _conv2d,
    **{function: _elementwise(function) for function in _UNEVEN},
    **{layer: _recurrent(layer) for layer in (torch.lstm, torch.gru, torch.rnn_tanh)},
}
"""Function of torch -> the same row by row, from the number of rows and its arguments; None where it is left alone."""
