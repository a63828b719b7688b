"""The types of a call of `NAC`."""

from __future__ import annotations

from typing import Literal, Protocol, overload

from torch import Tensor

from nac_drive.policies.nac.records import AttentionRecord, CircuitRecord


class Call(Protocol):
    """Results of `NAC.forward` by the record that is returned."""

    @overload
    def __call__(
        self,
        x: Tensor,
        times: Tensor | None = None,
        *,
        context: Tensor | None = None,
        causal: bool = False,
        window: int | None = None,
        valid: Tensor | None = None,
        return_attention: Literal[False] = False,
        return_circuit: Literal[False] = False,
    ) -> Tensor: ...

    @overload
    def __call__(
        self,
        x: Tensor,
        times: Tensor | None = None,
        *,
        context: Tensor | None = None,
        causal: bool = False,
        window: int | None = None,
        valid: Tensor | None = None,
        return_attention: Literal[True],
        return_circuit: Literal[False] = False,
    ) -> tuple[Tensor, AttentionRecord]: ...

    @overload
    def __call__(
        self,
        x: Tensor,
        times: Tensor | None = None,
        *,
        context: Tensor | None = None,
        causal: bool = False,
        window: int | None = None,
        valid: Tensor | None = None,
        return_attention: bool = False,
        return_circuit: Literal[True],
    ) -> tuple[Tensor, CircuitRecord]: ...

    @overload
    def __call__(
        self,
        x: Tensor,
        times: Tensor | None = None,
        *,
        context: Tensor | None = None,
        causal: bool = False,
        window: int | None = None,
        valid: Tensor | None = None,
        return_attention: bool = False,
        return_circuit: bool = False,
    ) -> Tensor | tuple[Tensor, AttentionRecord] | tuple[Tensor, CircuitRecord]: ...
