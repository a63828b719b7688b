"""A device of Python with values on the CPU.

On it a mix of devices and `.numpy()` fail as on a GPU, every number is the CPU's, and transfers are counted. It is
made of a private interface of torch, so it goes with the version of torch that is pinned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

try:
    from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend
except ImportError:  # another version of torch
    _DummyBackendModule, _setup_privateuseone_for_python_backend = object, None

NAME = "toy"
DEVICE = f"{NAME}:0"
_READS = {"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero"}
_MIXES = {"aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"}
"""Operations that take indices of the CPU, and send them."""

transfers: Counter[str] = Counter()
"""Transfers so far: `up`, `down`."""


class ToyTensor(torch.Tensor):
    """A tensor of the device."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> ToyTensor:
        tensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(DEVICE),
        )
        tensor.raw = raw
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def tolist(self) -> Any:
        """Read the values."""
        transfers["down"] += 1
        return self.raw.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Read the values, if this is what the caller says."""
        if not force:
            raise TypeError(f"can't convert {DEVICE} device type tensor to numpy")
        transfers["down"] += 1
        return self.raw.detach().numpy(force=True)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a tensor of the device cannot be pickled")

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        copy = ToyTensor(self.raw.detach().clone())
        result = torch.nn.Parameter(copy, self.requires_grad) if isinstance(self, torch.nn.Parameter) else copy
        memo[id(self)] = result
        return result


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _has_toy(args) or _has_toy(kwargs.values()):
            return _dispatch(func, args, kwargs)
        return func(*args, **kwargs)


def _has_toy(items: Iterable[Any]) -> bool:
    return any(
        isinstance(item, ToyTensor) or _is_toy(item) or (isinstance(item, (list, tuple)) and _has_toy(item))
        for item in items
    )


def _is_toy(item: Any) -> bool:
    return isinstance(item, torch.device) and item.type == NAME


def _backend_of(select: Any, image: torch.Tensor, weight: torch.Tensor, *others: Any) -> Any:
    """Return the kernel that computes a convolution."""
    raw = (item.raw if isinstance(item, ToyTensor) else item for item in (image, weight, *others))
    return select(*raw)


def _dispatch(func: Any, args: Any, kwargs: Any) -> Any:
    """Compute on the CPU, and wrap the results."""
    flat, spec = pytree.tree_flatten((args, kwargs))
    name = func.overloadpacket._qualified_op_name if hasattr(func, "overloadpacket") else str(func)
    toys = [item for item in flat if isinstance(item, ToyTensor)]
    others = [item for item in flat if isinstance(item, torch.Tensor) and not isinstance(item, ToyTensor)]
    devices = [item for item in flat if isinstance(item, torch.device)]
    to_toy = _is_toy(devices[0]) if devices else bool(toys)
    if "copy" in name or "_to" in name:
        if toys and (others or not to_toy):
            first = next(item for item in flat if isinstance(item, torch.Tensor))
            transfers["up" if isinstance(first, ToyTensor) and others else "down"] += 1
        elif others and to_toy:
            transfers["up"] += 1
    elif toys:
        for other in others:
            if name in _MIXES:
                transfers["up"] += 1
            elif other.dim():
                raise RuntimeError(f"{name}: a CPU tensor {tuple(other.shape)} beside tensors of the device")
    raw = [item.raw if isinstance(item, ToyTensor) else torch.device("cpu") if _is_toy(item) else item for item in flat]
    cpu_args, cpu_kwargs = pytree.tree_unflatten(raw, spec)
    result = func(*cpu_args, **cpu_kwargs)
    if name in _READS:
        transfers["down"] += 1
        return result
    if name in ("aten::nonzero", "aten::masked_select"):  # their size is read
        transfers["down"] += 1
    back = {id(toy.raw): toy for toy in toys}
    kept = {id(other) for other in others}

    def wrap(item: Any) -> Any:
        if not isinstance(item, torch.Tensor) or id(item) in kept:
            return item
        return back.get(id(item)) if id(item) in back else ToyTensor(item) if to_toy else item

    leaves, form = pytree.tree_flatten(result)
    return pytree.tree_unflatten([wrap(leaf) for leaf in leaves], form)


@contextmanager
def python_device() -> Iterator[torch.device]:
    """Yield the device. Modules keep their parameters' identity when they move there."""
    swap = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    made = {name: getattr(torch, name) for name in ("tensor", "as_tensor")}
    like, select = torch.Tensor.new_tensor, torch._C._select_conv_backend
    transfers.clear()
    try:
        with _Mode():
            for name, function in made.items():
                setattr(torch, name, partial(_made, function))
            torch.Tensor.new_tensor = _new_tensor  # type: ignore[method-assign]
            torch._C._select_conv_backend = partial(_backend_of, select)
            yield torch.device(DEVICE)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swap)
        torch.Tensor.new_tensor = like  # type: ignore[method-assign]
        torch._C._select_conv_backend = select
        for name, function in made.items():
            setattr(torch, name, function)


def _made(function: Any, data: Any, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
    """Make a tensor past torch's dispatch modes."""
    if isinstance(data, torch.Tensor) or device is None:
        return function(data, *args, **kwargs) if device is None else function(data, *args, device=device, **kwargs)
    return function(data, *args, **kwargs).to(device)


def _new_tensor(self: torch.Tensor, data: Any, *, dtype: Any = None, device: Any = None) -> torch.Tensor:
    return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device)


class _Backend(_DummyBackendModule):  # type: ignore[misc, valid-type]
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


def register() -> None:
    """Register the device, before the process's first backward pass."""
    assert _setup_privateuseone_for_python_backend is not None
    _setup_privateuseone_for_python_backend(NAME, _Backend())


def supported() -> bool:
    """Return whether torch has the private interface."""
    return _setup_privateuseone_for_python_backend is not None
