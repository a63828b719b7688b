"""The NAC layer in plain torch, equation by equation.

`NAC` computes the same function fast. This form is for reading, and its tests compare the two. It loops over samples,
heads and queries. Source: NAC paper, Section 2, Algorithm 1, Equations 1-3 and 13-19.

Shapes: B samples, Tq queries, Tk keys, F input features, d = d_model, H heads, D = d / H, J allowed and K kept keys of
one query, n neurons of a group.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nac_drive.policies.nac.circuit import Backbone, SensoryGate
from nac_drive.policies.nac.layer import NAC
from nac_drive.policies.nac.logits import OMEGA_FLOOR, PHI_ACTIVATIONS
from nac_drive.policies.nac.selection import FLOOR, TIE


def naive_nac(
    layer: NAC,
    x: Tensor,
    times: Tensor | None = None,
    *,
    context: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    valid: Tensor | None = None,
) -> Tensor:
    """Compute `layer(x, times, ...)` from the weights of `layer`.

    Args:
        layer: The layer whose weights and settings are used.
        x: Inputs of the queries, (B, Tq, F).
        times: t_sample of each key: None for 1 everywhere, (B,), (B, Tk) or (B, Tq, Tk). Its unit is the caller's.
        context: Inputs of the keys and values, (B, Tk, F'). None stands for x.
        causal: Whether a query sees only its own position and those before it.
        window: Number of positions a query sees, its own included; implies `causal`. None means all.
        valid: (B, Tk) bool, False for padding. Padding is read as zeros and never attended to.

    Returns:
        (B, Tq, d). A query without an allowed key gives the bias of the output projection.

    Raises:
        ValueError: The layer selects keys by blocks.
    """
    if layer.selection == "block":
        raise ValueError("layer: selection 'block' has no naive form; use 'topk', 'learned' or 'pairwise'.")
    if valid is not None:
        padding = ~valid.unsqueeze(2)  # (B, Tk, 1)
        if context is None:
            x = x.masked_fill(padding, 0.0)
        else:
            context = context.masked_fill(padding, 0.0)
    context = x if context is None else context
    (batch, queries, _), keys, heads = x.shape, context.shape[1], layer.num_heads

    # the queries are the last Tq of the Tk positions
    query_position = torch.arange(keys - queries, keys, device=x.device).unsqueeze(1)  # (Tq, 1)
    key_position = torch.arange(keys, device=x.device)  # (Tk,)
    allowed = torch.ones(batch, queries, keys, dtype=torch.bool, device=x.device)
    if causal or window is not None:
        allowed = allowed & (key_position <= query_position)
    if window is not None:
        allowed = allowed & (key_position > query_position - window)
    if valid is not None:
        allowed = allowed & valid.unsqueeze(1)

    t_sample = x.new_ones(batch) if times is None else times
    while t_sample.dim() < 3:
        t_sample = t_sample.unsqueeze(1)  # (B,) -> (B, 1, 1), (B, Tk) -> (B, 1, Tk)
    t_sample = t_sample.expand(batch, queries, keys)

    y = x.new_zeros(batch, queries, heads, layer.value_size)  # (B, Tq, H, D)
    for b in range(batch):
        q = sensory_gate(layer.query_gate, 0, x[b]).unflatten(1, (heads, -1))  # (Tq, H, D)
        k = sensory_gate(layer.context_gate, 0, context[b]).unflatten(1, (heads, -1))  # (Tk, H, D)
        if layer.gated:
            v = sensory_gate(layer.context_gate, 1, context[b]).unflatten(1, (heads, -1))  # (Tk, H, D)
        else:
            v = context[b].unsqueeze(1).expand(-1, heads, -1)  # (Tk, H, F): beyond the paper
        for h in range(heads):
            for i in range(queries):
                j = allowed[b, i].nonzero().squeeze(1)  # (J,) positions of the allowed keys
                if len(j):
                    behind = (query_position[i] - key_position[j]) / (window or keys)  # (J,)
                    y[b, i, h] = attend(layer, h, q[i, h], k[j, h], v[j, h], t_sample[b, i, j], behind)
    return y.flatten(2) @ layer.out.weight.T + layer.out.bias  # (B, Tq, d)


def attend(layer: NAC, head: int, q: Tensor, k: Tensor, v: Tensor, t_sample: Tensor, behind: Tensor) -> Tensor:
    """Attend with one query of one head to its keys.

    q (D,), k and v (J, D), t_sample and behind (J,) -> (D,).

    `behind` is how many positions a key stands before the query, over the window (or all Tk positions without one).
    """
    probe = q if layer.score_weight is None else q.detach() @ layer.score_weight[head]  # selection "learned": q M k
    score = k.detach() @ probe  # (J,)
    if layer.selection != "pairwise":  # keep the K best keys (earlier paper, Algorithm 2)
        tie = TIE * (probe.norm() + FLOOR) * (k.norm(dim=1) + FLOOR) * behind  # (J,) of equal keys keep the youngest
        kept = (score - tie).topk(min(layer.top_k, len(k))).indices  # (K,)
        score, k, v, t_sample = score[kept], k[kept], v[kept], t_sample[kept]

    u = torch.cat((q.expand_as(k), k), dim=1)  # (K, 2D): u = [q; k]
    motor = backbone(layer.backbone, head, u)  # (K, 2)
    phi = PHI_ACTIVATIONS[layer.phi_activation](motor[:, 0])  # Eq. 15
    omega = F.softplus(motor[:, 1]) + OMEGA_FLOOR  # Eq. 16
    t_a, t_b = (u @ layer.time_weight[head] + layer.time_bias[head]).unbind(dim=1)
    t = torch.sigmoid(t_a * t_sample + t_b)
    a = logit(layer, phi, omega, t)  # (K,)
    if layer.log_gain is not None:  # beyond the paper
        a = layer.log_gain[head].exp() * a
    if layer.slope is not None:
        a = a - F.softplus(layer.slope[head]) * t_sample
    if layer.scored:
        a = a + k @ probe / len(q) ** 0.5
    if layer.score_weight is not None:  # adds 0: the gradient of the logit goes straight through to the score
        a = a + (score - score.detach())

    alpha = torch.softmax(a, dim=0)
    if layer.output == "quadrature":
        return (alpha * t) @ v  # Eq. 19: sum_i alpha_i v_i t_i
    return layer.delta_t * (alpha @ v)  # Riemann sum of the earlier paper: delta_t sum_i alpha_i v_i


def logit(layer: NAC, phi: Tensor, omega: Tensor, t: Tensor) -> Tensor:
    """Solve da/dt = phi - omega a from a(0) = 0 (Eq. 1).

    The mode of `layer` decides how. All tensors are (K,).
    """
    a_star = phi / omega
    if layer.mode == "steady":
        return a_star  # Eq. 18
    if layer.mode == "exact":
        return a_star + (0.0 - a_star) * torch.exp(-omega * t)  # Eq. 3 with a_0 = 0, which is Eq. 17
    steps = torch.clamp((omega * t).detach().floor() + 1.0, min=layer.euler_steps)  # omega dt < 1, see Theorem 1
    a, dt = torch.zeros_like(phi), t / steps
    for n in range(int(steps.max())):
        a = torch.where(n < steps, a + dt * (-omega * a + phi), a)  # Eq. 2
    return a


def sensory_gate(gate: SensoryGate, p: int, u: Tensor) -> Tensor:
    """Run the NCP cell of Eq. 13 (Alg. 1): u (T, F) -> (T, d). `p` picks one of the projections of `gate`.

    Only sensory neurons are active and no synapse joins them, so r_t = 0 and each time step stands alone.
    """
    u = u * gate.in_scale[:, p, 0] + gate.in_shift[:, p, 0]
    s = u @ (gate.weight[:, p] * gate.mask[:, p])  # (T, d)
    x = torch.tanh(s + gate.bias[p])
    return x * gate.out_scale[p] + gate.out_shift[p]


def backbone(cell: Backbone, head: int, u: Tensor) -> Tensor:
    """Run the NCP cell of Eq. 14 (Alg. 1) from x = 0.

    u (K, 2D) is held; motor outputs are (K, 2).

    A signal needs one step per group to pass from inter to command to motor neurons, so the cell takes several steps.
    The disabled sensory neurons stay at 0 and are left out.
    """
    u = u * cell.in_scale[head].T + cell.in_shift[head].T
    s = u @ (cell.in_weight[head] * cell.in_mask)  # (K, n of the input group)
    x = {group: u.new_zeros(len(u), bias.shape[2]) for group, bias in cell.bias.items()}  # (K, n) each
    for _ in range(cell.steps):
        z = {group: bias[head].expand_as(x[group]) for group, bias in cell.bias.items()}
        z[cell.input_group] = z[cell.input_group] + s
        for synapses, weight in cell.weight.items():  # "inter_command" and so on
            source, target = synapses.split("_")
            z[target] = z[target] + x[source] @ (weight[head] * cell.get_buffer(f"mask_{synapses}"))
        x = {group: torch.tanh(z[group]) for group in x}
    return x[cell.output_group] * cell.out_scale[head] + cell.out_shift[head]
