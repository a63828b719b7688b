"""The Neuronal Attention Circuit (NAC paper, Section 2).

It is attention whose logits solve a first-order ODE.

Shapes: B batch, T time (Tq queries, Tk keys), F features, d = d_model, H heads, D = d / H, K kept keys per query,
E neurons of the backbone's input group, L settling steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nac_drive.arguments import require_flag, require_number
from nac_drive.policies.nac.arguments import (
    require_backbone,
    require_call,
    require_gate_wirings,
    require_name,
    require_positive,
    whole_numbers,
)
from nac_drive.policies.nac.call import Call
from nac_drive.policies.nac.circuit import Backbone, FusedBackbone, SensoryGate
from nac_drive.policies.nac.fused import fused_pairwise, layers, usable
from nac_drive.policies.nac.logits import MODES, OMEGA_FLOOR, PHI_ACTIVATIONS
from nac_drive.policies.nac.masks import Mask
from nac_drive.policies.nac.pairs import gather, mix_inputs, scores, straight_through
from nac_drive.policies.nac.records import AttentionRecord, CircuitRecord
from nac_drive.policies.nac.selection import SELECTIONS, Selection
from nac_drive.policies.nac.tokens import TokenProjection, Tokens, token_projection
from nac_drive.policies.ops.weight_cache import WeightCache, weights_of
from nac_drive.policies.wiring.graphs import WIRINGS, backbone_wiring, sensory_gate_wiring
from nac_drive.policies.wiring.wiring import Wiring

OUTPUTS = ("quadrature", "riemann")
VALUES = ("gated", "input")

_ATTENTION = tuple(field.name for field in fields(AttentionRecord))

PAIRS_PER_CHUNK = 2**15
"""Queries are taken in chunks of about this many (head, query, key) triples: bounds memory, keeps caches warm."""

PAIRS_KEPT = 2**21
"""Limit of (head, query, key) triples in training. Beyond it the backward pass computes the inside of a chunk again."""


class NAC(nn.Module):
    """Multi-head self- or cross-attention with NAC logits.

        phi = phi_activation(motor_1)     omega = softplus(motor_2) + eps     t = sigmoid(t_a(u) t_sample + t_b(u))
        a = mode(phi, omega, t)     alpha = softmax(a over the kept keys)
        y_h = sum alpha v t  ("quadrature", Eq. 19)   or   delta_t sum alpha v  ("riemann")

    Beyond the paper, `gain`, `recency` and `scored` make the logits exp(g_h) a - softplus(s_h) t_sample + q.k D^(-1/2):
    with phi in (0, 1) the paper's logits differ by less than 1, so that the softmax is nearly uniform
    (docs/attention.md). `value="input"` attends to the inputs of the keys themselves.

    The heads are concatenated and projected linearly. `nac.naive.naive_nac` is the same function in plain form. A NaN
    in the input reaches every query that may see it. Padding has no influence, whatever it holds. Initial weights come
    from torch's global generator.

    Args:
        d_model: Number of output features, a multiple of `num_heads`.
        num_heads: Number of heads. Each has d_model / num_heads features and a backbone with its own weights.
        input_size: Features of the queries' input; None for d_model.
        context_size: Features of the input of keys and values; None for `input_size`.
        top_k: Number of keys that a query keeps. "pairwise" ignores it.
        sparsity: Fraction of the synapses that the drawn wirings leave out, in [0, 1).
        mode: Solution of the logit's equation: "exact" (Eq. 17), "euler" (Eq. 2) or "steady" (Eq. 18).
        selection: Keys that a query keeps: "topk" (largest q.k), "block" (Algorithm 2), "pairwise" (all), or "learned":
            "topk" by a trained score q M k. M is the identity at first; in training the gradient of the logit goes
            straight through to the score.
        phi_activation: Activation of phi: "sigmoid" (Eq. 15), "tanh" or "linear".
        output: "quadrature" or "riemann", see above.
        delta_t: Factor of the "riemann" output.
        euler_steps: Least number of steps in mode "euler".
        settle_steps: Steps of the backbone.
        gain: Initial factor of the logits, learned per head; None for none.
        recency: Initial loss of the logit per unit of t_sample in the first head, a quarter of it in each next one,
            learned per head; None for none.
        scored: Add the score q.k / sqrt(D), by which "topk" selects keys, to the logits.
        value: Values v: "gated" (Eq. 13) or "input", the whole input of the key in every head, without a gate.
        wiring: Graph of the drawn wirings, a name in WIRINGS: "ncp" or "mlp".
        seed: Seed of the drawn wirings.
        gate_wirings: Wirings of the gates of q, k and v, instead of drawn ones.
        backbone: Wiring of the backbones, instead of a drawn one.

    Raises:
        ValueError: A setting is outside its range, or a wiring has the wrong size.
    """

    def __init__(
        self,
        d_model: int = 64,
        num_heads: int = 8,
        *,
        input_size: int | None = None,
        context_size: int | None = None,
        top_k: int = 8,
        sparsity: float = 0.5,
        mode: str = "exact",
        selection: str = "topk",
        phi_activation: str = "sigmoid",
        output: str = "quadrature",
        delta_t: float = 1.0,
        euler_steps: int = 6,
        settle_steps: int = 3,
        gain: float | None = None,
        recency: float | None = None,
        scored: bool = False,
        value: str = "gated",
        wiring: str = "ncp",
        seed: int = 0,
        gate_wirings: Sequence[Wiring] | None = None,
        backbone: Wiring | None = None,
    ) -> None:
        super().__init__()
        require_name("mode", mode, MODES)
        require_name("selection", selection, (*SELECTIONS, "learned"))
        require_name("phi_activation", phi_activation, PHI_ACTIVATIONS)
        require_name("output", output, OUTPUTS)
        require_name("value", value, VALUES)
        require_positive(gain=gain, recency=recency)
        require_flag("scored", scored)
        require_name("wiring", wiring, WIRINGS)
        d_model, settle_steps = whole_numbers(None, d_model=d_model, settle_steps=settle_steps)
        num_heads, top_k, euler_steps = whole_numbers(1, num_heads=num_heads, top_k=top_k, euler_steps=euler_steps)
        if d_model < 1 or d_model % num_heads:
            raise ValueError(f"d_model: must be a positive multiple of num_heads={num_heads}, got {d_model}.")
        (seed,) = whole_numbers(0, seed=seed)
        input_size = d_model if input_size is None else input_size
        context_size = input_size if context_size is None else context_size
        sizes = whole_numbers(1, input_size=input_size, context_size=context_size)
        self.input_size, self.context_size = sizes
        require_number("sparsity:", sparsity)
        require_number("delta_t:", delta_t)
        if not 0.0 < delta_t < math.inf:
            raise ValueError(f"delta_t: must be positive and finite, got {delta_t}; the paper uses 0.5 to 1.")
        self.d_model, self.num_heads, self.head_size = d_model, num_heads, d_model // num_heads
        self.top_k, self.delta_t, self.euler_steps, self.output = top_k, delta_t, euler_steps, output
        self.mode, self.selection, self.phi_activation, self.scored = mode, selection, phi_activation, scored
        self._solve, self._phi = MODES[mode], PHI_ACTIVATIONS[phi_activation]
        self._select = SELECTIONS["topk" if selection == "learned" else selection]
        self.uses_time = mode != "steady" or output == "quadrature" or recency is not None
        self.value_size = self.head_size if value == "gated" else self.context_size
        self.gated = value == "gated"

        sizes += sizes[1:] * self.gated  # of the inputs of q, k and v
        if gate_wirings is None:
            gate_wirings = [sensory_gate_wiring(n, d_model, sparsity, seed + i, wiring) for i, n in enumerate(sizes)]
        require_gate_wirings(gate_wirings, sizes, d_model)
        self.query_gate, self.context_gate = SensoryGate(gate_wirings[:1]), SensoryGate(gate_wirings[1:])
        pair = 2 * self.head_size
        circuit = backbone_wiring(pair, d_model, sparsity, seed, wiring) if backbone is None else backbone
        require_backbone(circuit, pair)
        self.backbone = Backbone(circuit, num_heads, settle_steps)
        self.drive_size = circuit.groups.size(circuit.groups.input_group)
        bound = pair**-0.5
        self.time_weight = nn.Parameter(torch.empty(num_heads, pair, 2).uniform_(-bound, bound))  # t_a, t_b
        self.time_bias = nn.Parameter(torch.zeros(num_heads, 1, 2))
        self.score_weight: Tensor | None = None  # (H, D, D)
        if selection == "learned":
            self.score_weight = nn.Parameter(torch.eye(self.head_size).repeat(num_heads, 1, 1))
        self.log_gain: Tensor | None = None  # (H,)
        if gain is not None:
            self.log_gain = nn.Parameter(torch.full((num_heads,), math.log(gain)))
        self.slope: Tensor | None = None  # (H,)
        if recency is not None:
            slopes = recency * 0.25 ** torch.arange(num_heads)
            self.slope = nn.Parameter(slopes + torch.log(-torch.expm1(-slopes)))  # softplus gives the slopes
        self.logit_hooks: list[Callable[[Tensor], Tensor]] = []
        """Functions of the logits (B, H, Tq, K) that take their place, in order; for analysis."""
        self.out = nn.Linear(num_heads * self.value_size, d_model)
        self._cache: WeightCache[tuple[TokenProjection, TokenProjection]] = WeightCache()

    if TYPE_CHECKING:  # nn.Module's own __call__ returns Any
        __call__: Call

    def forward(
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
    ) -> Tensor | tuple[Tensor, AttentionRecord] | tuple[Tensor, CircuitRecord]:
        """Attend from every step of x to every allowed step.

        Keys come from `context`, or from x itself.

        Args:
            x: Inputs of the queries, (B, Tq, F).
            times: t_sample of each key: None for 1 everywhere, (B,) per sample, (B, Tk) per key or (B, Tq, Tk) per
                pair, such as the `ages` of the keys in seconds. The layer learns its own scale, so any unit does.
            context: Inputs of the keys and values, (B, Tk, F'); None for x.
            causal: Mask the steps after a query's own. The queries are the last Tq of the Tk steps.
            window: Number of steps that a query sees, its own included. Implies `causal`; None for all.
            valid: (B, Tk) bool, False for padding. Padding is read as zeros and never attended to.
            return_attention: Return an AttentionRecord as well.
            return_circuit: Return a CircuitRecord as well, with every neuron of the backbone.

        Returns:
            y (B, Tq, d), or y and a record. A query without an allowed key yields the bias of the output projection.

        Raises:
            ValueError: A shape or dtype does not fit, `context` is missing, or `window` is less than 1.
        """
        require_call(self.input_size, self.context_size, self.time_weight.dtype, x, times, context, window, valid)
        if valid is not None:  # NaN in padding times a weight of 0 would be NaN
            padding = ~valid.unsqueeze(2)
            if context is None:
                x = x.masked_fill(padding, 0.0)
            else:
                context = context.masked_fill(padding, 0.0)
        tokens = self.project(x, context)
        queries, keys = tokens.query.shape[2], tokens.kv.shape[2]
        if times is not None:
            times = times.reshape({1: (-1, 1, 1, 1), 2: (-1, 1, 1, keys), 3: (-1, 1, queries, keys)}[times.dim()])
        mask = Mask(queries, keys, causal, window, valid)
        detail = CircuitRecord if return_circuit else AttentionRecord if return_attention else None
        y, record = self.attend(tokens, mask, times, detail)
        if detail is None:
            return y
        if detail is AttentionRecord:
            return y, AttentionRecord(**{name: record[name] for name in _ATTENTION})
        attention = AttentionRecord(**{name: record.pop(name) for name in _ATTENTION})
        context = x if context is None else context
        (q,) = self._heads(self.query_gate(x))
        k, *gated = self._heads(self.context_gate(context))
        v = gated[0] if gated else context.unsqueeze(1).expand(-1, self.num_heads, -1, -1)
        return y, CircuitRecord(q, k, v, record, attention)

    def project(self, x: Tensor, context: Tensor | None = None) -> Tokens:
        """Compute all that depends on one token only. W [q; k] = W_q q + W_k k, so no pair is ever concatenated.

        Args:
            x: Inputs of the queries, (B, Tq, F).
            context: Inputs of the keys and values, (B, Tk, F'); None for x.
        """
        query_side, context_side = self._sides()
        query, query_logit_inputs = query_side(x).split((self.head_size, self.drive_size + 2), dim=3)
        if self.score_weight is not None:
            query = query.detach() @ self.score_weight
        context = x if context is None else context
        return Tokens(query, query_logit_inputs, context_side(context), None if self.gated else context)

    def _heads(self, gated: Tensor) -> tuple[Tensor, ...]:
        """Split (B, T, P, d) into P tensors (B, H, T, D)."""
        return gated.unflatten(3, (self.num_heads, self.head_size)).permute(2, 0, 3, 1, 4).unbind(0)

    def _sides(self) -> tuple[TokenProjection, TokenProjection]:
        """Return the projections of queries, keys and values.

        Linear parts are multiplied out.
        """
        cell = self.backbone
        return self._cache(weights_of(self, self.query_gate, self.context_gate, cell, cell.bias), self._fuse)

    def _fuse(self) -> tuple[TokenProjection, TokenProjection]:
        weight, bias = self.backbone.input_map()  # (H, 2D, E), (H, 1, E)
        of_query, of_key = torch.cat((weight, self.time_weight), dim=2).split(self.head_size, dim=1)  # (H, D, E + 2)
        bias = torch.cat((bias, self.time_bias), dim=2)  # (H, 1, E + 2)
        same = torch.eye(self.head_size, device=weight.device, dtype=weight.dtype).expand(self.num_heads, -1, -1)
        none = torch.zeros_like(same)
        query_map = torch.cat((same, of_query), dim=2)  # (H, D, D + E + 2)
        key_map = torch.cat((same, of_key, none), dim=2)  # (H, D, D + E + 2 + D)
        value_map = torch.cat((none, torch.zeros_like(of_key), same), dim=2)
        query_side = token_projection(self.query_gate, query_map, F.pad(bias, (self.head_size, 0)))
        both = torch.cat((key_map, value_map), dim=1) if self.gated else key_map[..., : -self.head_size]
        return query_side, token_projection(self.context_gate, both)

    def attend(
        self, tokens: Tokens, mask: Mask, times: Tensor | None, detail: type | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Attend with projected tokens, as a stream does.

        Args:
            tokens: Projections of the Tq queries and the Tk keys.
            mask: The keys that each query may see.
            times: t_sample, broadcastable to (B, H, Tq, Tk); None for 1.
            detail: AttentionRecord or CircuitRecord to have its fields recorded; None for neither.

        Returns:
            y (B, Tq, d), and the recorded fields by name. CircuitRecord adds the neurons of the backbone.
        """
        batch, heads, queries, _ = tokens.query.shape
        selection = self._select(tokens.kv[..., : self.head_size], mask, self.top_k)
        fused = self.backbone.fused()
        plain = self.gated and not (self.scored or self.logit_hooks) and self.log_gain is None and self.slope is None
        kernel = plain and selection.everything and detail is None and usable(tokens.query)  # the kernel is plain
        if kernel and (circuit := layers(fused)) is not None:
            y = fused_pairwise(self, tokens, circuit, mask, times)
            if y is not None:
                return self.out(y.transpose(1, 2).flatten(2)), {}
        pairs = batch * heads * selection.kept
        size = max(1, PAIRS_PER_CHUNK // pairs)
        again = torch.is_grad_enabled() and queries * pairs > PAIRS_KEPT and detail is None
        work = partial(self._attend_chunk, tokens, selection, fused, detail)
        parts, records = [], []
        whole = None  # without gradients the output is filled in place, because small parts would fragment the memory
        for start in range(0, queries, size):
            rows = slice(start, min(start + size, queries))
            part = times if times is None or times.shape[2] == 1 else times[:, :, rows]
            y, record = checkpoint(work, rows, part, use_reentrant=False) if again else work(rows, part)
            records.append(record)
            if size >= queries:
                whole = y
            elif torch.is_grad_enabled():
                parts.append(y)
            else:
                whole = y.new_empty(batch, heads, queries, self.value_size) if whole is None else whole
                whole[:, :, rows] = y
        y = torch.cat(parts, dim=2) if whole is None else whole  # (B, H, Tq, D)
        record = {name: torch.cat([r[name] for r in records], dim=2 + (name not in _ATTENTION)) for name in records[0]}
        return self.out(y.transpose(1, 2).flatten(2)), record

    def _attend_chunk(
        self,
        tokens: Tokens,
        selection: Selection,
        fused: FusedBackbone,
        detail: type | None,
        chunk: slice,
        times: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Attend with one chunk of queries: y (B, H, Tq, D) and its record. K is Tk where every key is kept."""
        query = tokens.query[:, :, chunk]  # (B, H, Tq, D)
        query_logit_inputs = tokens.query_logit_inputs[:, :, chunk, None]  # (B, H, Tq, 1, E + 2)
        index, masked = selection.choose(query, chunk)
        kv = tokens.kv[..., self.head_size :]  # (B, H, Tk, E + 2 + D)
        if index is None:
            pairs = kv.unsqueeze(2)  # (B, H, 1, K, E + 2 + D)
        else:
            pairs = gather(kv, index)  # (B, H, Tq, K, E + 2 + D)
            if times is not None and times.shape[3] > 1:
                times = times.expand(*index.shape[:3], -1).gather(3, index)  # (B, H, Tq, K)
        key_logit_inputs, value = pairs[..., : self.drive_size + 2], pairs[..., self.drive_size + 2 :]
        score = scores(query, tokens.kv[..., : self.head_size], index) if self.scored else None
        drive, phi, omega, t, a = self._logits(query_logit_inputs, key_logit_inputs, times, fused, score)
        if self.score_weight is not None and torch.is_grad_enabled():
            a = a + straight_through(query, tokens.kv[..., : self.head_size].detach(), index)
        if masked is None:
            alpha = a.softmax(dim=3)
        else:  # the second fill is for rows without any allowed key: zeros, not a uniform average
            alpha = a.masked_fill(masked, torch.finfo(a.dtype).min).softmax(dim=3).masked_fill(masked, 0.0)
        weight = alpha * t if self.output == "quadrature" else alpha * self.delta_t  # (B, H, Tq, K)
        if tokens.inputs is not None:
            y = mix_inputs(weight, tokens.inputs, index)  # (B, H, Tq, F')
        elif index is None:
            y = weight @ value.squeeze(2)  # (B, H, Tq, D)
        else:
            y = (weight.unsqueeze(4) * value).sum(dim=3)
        record = {}
        if detail is not None:
            if index is None:
                index = torch.arange(a.shape[3], device=a.device).expand(a.shape)
            record = {"index": index, "alpha": alpha, "phi": phi, "omega": omega, "t": t, "a": a}
        if detail is CircuitRecord:
            for group, states in self.backbone.trajectory(drive.flatten(2, 3)).items():
                record[group] = states.unflatten(3, drive.shape[2:4])  # (L, B, H, Tq, K, n)
        return y, record

    def _logits(
        self, query_logit_inputs: Tensor, key_logit_inputs: Tensor, times: Tensor | None, fused: FusedBackbone,
        score: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        """Return the drive (B, H, Tq, K, E), and phi, omega, t and a (B, H, Tq, K) each.

        The logit inputs are (B, H, Tq, 1, E + 2) of the queries and (B, H, Tq or 1, K, E + 2) of the keys.
        """
        size = self.drive_size
        drive = query_logit_inputs[..., :size] + key_logit_inputs[..., :size]  # (B, H, Tq, K, E)
        t_a, t_b = (query_logit_inputs[..., size:] + key_logit_inputs[..., size:]).unbind(4)
        t = torch.sigmoid(t_a + t_b if times is None else torch.addcmul(t_b, t_a, times))
        motor = self.backbone(drive.flatten(2, 3), fused)  # (B, H, 2, Tq K)
        phi_motor, omega_motor = motor.unflatten(3, drive.shape[2:4]).unbind(2)
        phi, omega = self._phi(phi_motor), F.softplus(omega_motor) + OMEGA_FLOOR
        a = self._solve(phi, omega, t, self.euler_steps)
        if self.log_gain is not None:
            a = a * self.log_gain.exp().view(-1, 1, 1)
        if self.slope is not None:
            a = a - F.softplus(self.slope).view(-1, 1, 1) * (1.0 if times is None else times)
        if score is not None:
            a = a + score * self.head_size**-0.5
        for hook in self.logit_hooks:
            a = hook(a)
        return drive, phi, omega, t, a
