"""The Neuronal Attention Circuit: attention whose logits solve a first-order ODE (NAC paper, Section 2).

    da/dt = phi - omega a,   a(0) = 0,   phi, omega, t functions of the pair u = [q; k]

Shapes: B batch, T time (Tq queries, Tk keys), F features, d = d_model, H heads, D = d / H, K kept keys per query,
E neurons of the backbone's input group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from policies import selection as masks
from policies.fold import Memo
from policies.ncp import Backbone, SensoryGate
from policies.selection import SELECTIONS
from policies.wiring import Wiring, backbone_wiring, sensory_gate_wiring

OMEGA_FLOOR = 1e-3
"""The epsilon of Eq. 16: omega never falls below it."""

PAIRS_PER_CHUNK = 2**15
"""Queries are taken in chunks of about this many (head, query, key) triples: bounds memory, keeps caches warm."""


def exact(phi: Tensor, omega: Tensor, t: Tensor, steps: int) -> Tensor:
    """a(t) = phi / omega (1 - exp(-omega t)), Eq. 17; expm1 keeps it exact as omega t -> 0. `steps` plays no part."""
    return -phi / omega * torch.expm1(-omega * t)


def euler(phi: Tensor, omega: Tensor, t: Tensor, steps: int) -> Tensor:
    """a_{n+1} = a_n + h (phi - omega a_n) from a_0 = 0, h = t / n, after n steps (Eq. 2).

    The recursion is linear, so its n-th iterate is a_n = phi / omega (1 - (1 - omega h)^n): no loop. A pair takes
    `steps` steps, or as many more as keep omega h < 1, without which Theorem 1 does not hold.
    """
    n = (omega * t).detach().floor().add_(1.0).clamp_(min=steps)
    return -phi / omega * torch.expm1(n * torch.log1p(-omega * t / n))


def steady(phi: Tensor, omega: Tensor, t: Tensor, steps: int) -> Tensor:
    """a* = phi / omega, Eq. 18: the limit of long times. `t` and `steps` play no part."""
    return phi / omega


MODES: dict[str, Callable[[Tensor, Tensor, Tensor, int], Tensor]] = {"exact": exact, "euler": euler, "steady": steady}
GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "linear": lambda motor: motor,
}
OUTPUTS = ("quadrature", "riemann")


@dataclass(frozen=True)
class Attention:
    """What the layer did, for interpretation. All tensors are (B, H, Tq, K)."""

    index: Tensor
    """Positions of the kept keys."""
    alpha: Tensor
    """Softmax weights; exactly 0 for keys that are not allowed."""
    phi: Tensor
    omega: Tensor
    t: Tensor
    a: Tensor
    """The logits, before masking."""


@dataclass(frozen=True)
class Tokens:
    """Per-token projections: all that a pair needs of its two sides. First axes (B, H, T)."""

    query: Tensor
    """(..., D) for scoring."""
    query_row: Tensor
    """(..., E + 2): the query's share of the backbone drive and of t_a, t_b, biases included."""
    key: Tensor
    """(..., D) for scoring."""
    key_row: Tensor
    """(..., E + 2 + D): the key's share of the same, and its value."""


class NAC(nn.Module):
    """Multi-head self-attention with NAC logits.

        phi = gate(motor_1)     omega = softplus(motor_2) + eps     t = sigmoid(t_a(u) t_sample + t_b(u))
        a = mode(phi, omega, t)     alpha = softmax(a over the kept keys)
        y_h = sum alpha v t  ("quadrature", Eq. 19)   or   delta_t sum alpha v  ("riemann")

    The heads are concatenated and projected linearly. `seed` draws the wirings; initial weights come from torch's
    global generator. `settle_steps` are the backbone's, `euler_steps` the least number in mode "euler".

    Raises ValueError for a setting outside its range.
    """

    def __init__(
        self,
        d_model: int = 64,
        num_heads: int = 8,
        *,
        input_size: int | None = None,
        top_k: int = 8,
        sparsity: float = 0.5,
        mode: str = "exact",
        selection: str = "topk",
        gate: str = "sigmoid",
        output: str = "quadrature",
        delta_t: float = 1.0,
        euler_steps: int = 6,
        settle_steps: int = 3,
        seed: int = 0,
        backbone: Wiring | None = None,
    ) -> None:
        super().__init__()
        for name, value, known in (
            ("mode", mode, MODES),
            ("selection", selection, SELECTIONS),
            ("gate", gate, GATES),
            ("output", output, OUTPUTS),
        ):
            if value not in known:
                raise ValueError(f"{name}: must be one of {sorted(known)}, got {value!r}.")
        for name, count in (("num_heads", num_heads), ("top_k", top_k), ("euler_steps", euler_steps)):
            if count < 1:
                raise ValueError(f"{name}: must be at least 1, got {count}.")
        if d_model < 1 or d_model % num_heads:
            raise ValueError(f"d_model: must be a positive multiple of num_heads={num_heads}, got {d_model}.")
        if not delta_t > 0.0:
            raise ValueError(f"delta_t: must be positive, got {delta_t}; the paper uses 0.5 to 1.")
        self.d_model, self.num_heads, self.head_size = d_model, num_heads, d_model // num_heads
        self.top_k, self.delta_t, self.euler_steps, self.output = top_k, delta_t, euler_steps, output
        self.logits, self.select, self.gate_phi = MODES[mode], SELECTIONS[selection], GATES[gate]
        self.uses_time = mode != "steady" or output == "quadrature"
        inputs = d_model if input_size is None else input_size
        self.gate = SensoryGate([sensory_gate_wiring(inputs, d_model, sparsity, seed + i) for i in range(3)])
        pair = 2 * self.head_size
        wiring = backbone_wiring(pair, d_model, sparsity, seed) if backbone is None else backbone
        if wiring.inputs != pair or getattr(wiring, wiring.output_group) != 2:
            raise ValueError(
                f"backbone: the wiring must take 2 d_model / num_heads = {pair} inputs and have two output neurons "
                f"(phi, omega), got {wiring.inputs} inputs and {getattr(wiring, wiring.output_group)} outputs."
            )
        self.backbone = Backbone(wiring, num_heads, settle_steps)
        self.drive_size = getattr(wiring, wiring.input_group)
        bound = pair**-0.5
        self.time_weight = nn.Parameter(torch.empty(num_heads, pair, 2).uniform_(-bound, bound))  # t_a, t_b
        self.time_bias = nn.Parameter(torch.zeros(num_heads, 1, 2))
        self.out = nn.Linear(d_model, d_model)
        self._memo: Memo[tuple[Tensor, Tensor, Tensor]] = Memo()

    def forward(
        self,
        x: Tensor,
        times: Tensor | None = None,
        *,
        causal: bool = False,
        window: int | None = None,
        valid: Tensor | None = None,
        return_attention: bool = False,
    ) -> Tensor | tuple[Tensor, Attention]:
        """Attend from every step of x (B, T, F) to every allowed step; y is (B, T, d).

        `times` is t_sample: None (1 everywhere), per sample (B,), per key step (B, T) or per pair (B, Tq, Tk).
        `causal` hides the future, `window` all but the last `window` steps (and the future), `valid` (B, T) bool
        padding. A query with no allowed key yields zeros before the output projection.
        """
        batch, length, _ = x.shape
        allowed = None
        if window is not None:
            allowed = masks.sliding_window(length, length, window, x.device)[None, None]
        elif causal:
            allowed = masks.causal(length, length, x.device)[None, None]
        if valid is not None:
            allowed = masks.valid_keys(valid) if allowed is None else allowed & masks.valid_keys(valid)
        if times is not None:
            shapes = {1: (batch, 1, 1, 1), 2: (batch, 1, 1, length), 3: (batch, 1, length, length)}
            if times.shape not in {(batch,), (batch, length), (batch, length, length)}:
                raise ValueError(
                    f"times: shape must be ({batch},), ({batch}, {length}) or ({batch}, {length}, {length}), "
                    f"got {tuple(times.shape)}."
                )
            times = times.reshape(shapes[times.dim()])
        y, attention = self.attend(self.project(x), allowed, times, return_attention)
        return (y, attention) if attention is not None else y

    def project(self, x: Tensor) -> Tokens:
        """All per-token work: x (B, T, F) -> Tokens. W [q; k] = W_q q + W_k k, so no pair is ever concatenated."""
        gated = self.gate(x).unflatten(-1, (self.num_heads, self.head_size))  # (B, T, 3, H, D)
        q, k, v = gated.permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, T, D) each
        tensors = (*self.backbone.tensors(), self.time_weight, self.time_bias)
        weight_q, weight_k, bias = self._memo(tensors, self._fold)  # (H, D, E + 2) twice, (H, 1, E + 2)
        return Tokens(q, q @ weight_q + bias, k, torch.cat((k @ weight_k, v), dim=3))

    def _fold(self) -> tuple[Tensor, Tensor, Tensor]:
        """The affine map from [q; k] to the backbone drive, t_a and t_b, split into its query and key halves."""
        weight, bias = self.backbone.input_map()  # (H, 2D, E), (H, 1, E)
        weight_q, weight_k = torch.cat((weight, self.time_weight), dim=2).split(self.head_size, dim=1)
        return weight_q, weight_k, torch.cat((bias, self.time_bias), dim=2)

    def attend(
        self, tokens: Tokens, allowed: Tensor | None, times: Tensor | None, return_attention: bool = False
    ) -> tuple[Tensor, Attention | None]:
        """y (B, Tq, d) for the Tq queries over the Tk keys of `tokens`.

        `allowed` bool and `times` broadcast to (B, H, Tq, Tk); None means all, and 1.
        """
        batch, heads, queries, _ = tokens.query.shape
        kept = min(self.top_k, tokens.key.shape[2]) if self.select is not masks.pairwise else tokens.key.shape[2]
        size = max(1, PAIRS_PER_CHUNK // (batch * heads * kept))
        ys, details = [], []
        for start in range(0, queries, size):
            rows = slice(start, start + size)
            y, detail = self._attend_chunk(tokens, rows, _rows(allowed, rows), _rows(times, rows))
            ys.append(y)
            if return_attention:
                details.append(detail)
        y = self.out(torch.cat(ys, dim=2).transpose(1, 2).flatten(2))  # (B, Tq, d)
        if not return_attention:
            return y, None
        return y, Attention(*(torch.cat([getattr(d, f.name) for d in details], dim=2) for f in fields(Attention)))

    def _attend_chunk(
        self, tokens: Tokens, rows: slice, allowed: Tensor | None, times: Tensor | None
    ) -> tuple[Tensor, Attention]:
        """One chunk of queries: y (B, H, Tq, D) and its details. K is Tk where the selection keeps every key."""
        query, query_row = tokens.query[:, :, rows], tokens.query_row[:, :, rows, None]  # (B, H, Tq, [1,] ...)
        index, kept = self.select(query, tokens.key, allowed, self.top_k)
        if index is None:
            pairs = tokens.key_row.unsqueeze(2)  # (B, H, 1, K, E + 2 + D)
        else:
            pairs = _gather(tokens.key_row, index)  # (B, H, Tq, K, E + 2 + D)
            if times is not None and times.shape[-1] > 1:
                times = times.expand(*index.shape[:3], -1).gather(3, index)  # (B, H, Tq, K)
        drive, time_row, value = pairs.split((self.drive_size, 2, self.head_size), dim=4)
        drive = query_row[..., : self.drive_size] + drive  # (B, H, Tq, K, E)
        t_a, t_b = (query_row[..., self.drive_size :] + time_row).movedim(-1, 0)  # (B, H, Tq, K) each
        t = torch.sigmoid(t_a + t_b if times is None else torch.addcmul(t_b, t_a, times))
        motor = self.backbone(drive.flatten(2, 3)).movedim(-1, 0).contiguous()  # (2, B, H, Tq K)
        phi_motor, omega_motor = motor.view(2, *drive.shape[:4])  # (B, H, Tq, K) each
        phi, omega = self.gate_phi(phi_motor), F.softplus(omega_motor) + OMEGA_FLOOR
        a = self.logits(phi, omega, t, self.euler_steps)
        if kept is None:
            alpha = a.softmax(dim=-1)
        else:  # the second fill is for rows without any allowed key: zeros, not a uniform average
            alpha = a.masked_fill(~kept, torch.finfo(a.dtype).min).softmax(dim=-1).masked_fill(~kept, 0.0)
        weight = alpha * t if self.output == "quadrature" else alpha * self.delta_t  # (B, H, Tq, K)
        y = (weight.unsqueeze(-2) @ value).squeeze(-2) if index is not None else weight @ value.squeeze(2)
        if index is None:
            index = torch.arange(a.shape[-1], device=a.device).expand(a.shape)
        return y, Attention(index, alpha, phi, omega, t, a)


def _rows(x: Tensor | None, rows: slice) -> Tensor | None:
    """The query rows of a tensor that broadcasts to (B, H, Tq, Tk)."""
    return x if x is None or x.shape[-2] == 1 else x[..., rows, :]


def _gather(table: Tensor, index: Tensor) -> Tensor:
    """table (B, H, Tk, R), index (B, H, Tq, K) -> (B, H, Tq, K, R), by one row copy per pair."""
    batch, heads, keys, width = table.shape
    offset = torch.arange(0, batch * heads * keys, keys, device=index.device).view(batch, heads, 1, 1)
    return table.reshape(-1, width).index_select(0, (index + offset).flatten()).view(*index.shape, width)
