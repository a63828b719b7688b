"""The NAC layer once more, straight from the equations: float64 numpy, loops over heads and pairs, nothing shared.

Every pair is concatenated, every neuron (disabled ones too) is stepped, every mask is applied to a full matrix.
"""

from __future__ import annotations

import numpy as np

from nac_drive.policies.nac.layer import NAC
from nac_drive.policies.wiring.wiring import GROUPS, Wiring


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def euler(phi: float, omega: float, t: float, steps: int = 6) -> float:
    steps, a = max(steps, int(omega * t) + 1), 0.0
    for _ in range(steps):
        a += t / steps * (phi - omega * a)
    return a


PHI_ACTIVATIONS = {"sigmoid": sigmoid, "tanh": np.tanh, "linear": lambda motor: motor}
MODES = {
    "exact": lambda phi, omega, t: phi / omega * (1.0 - np.exp(-omega * t)),
    "steady": lambda phi, omega, t: phi / omega,
    "euler": euler,
}


def gate(layer: NAC, wiring: Wiring, which: int, x: np.ndarray) -> np.ndarray:
    """Algorithm 1 with input group = output group = sensory, scanned over time: x (T, F) -> (T, d)."""
    module, which = (layer.query_gate, 0) if which == 0 else (layer.context_gate, which - 1)
    p = {name: value.detach().double().numpy() for name, value in module.named_parameters()}
    units, sensory = wiring.units, wiring.group("sensory")
    w_in, b = np.zeros((wiring.inputs, units)), np.zeros(units)
    w_in[:, sensory], b[sensory] = p["weight"][:, which], p["bias"][which]
    active = np.zeros(units)
    active[sensory] = 1.0
    state, out = np.zeros(units), []
    for u in x:
        u = u * p["in_scale"][:, which, 0] + p["in_shift"][:, which, 0]
        state = np.tanh(state @ (0.0 * wiring.recurrent_mask) + u @ (w_in * wiring.input_mask) + b) * active
        out.append(state[sensory] * p["out_scale"][which] + p["out_shift"][which])
    return np.array(out)


def backbone(layer: NAC, wiring: Wiring, head: int, u: np.ndarray, steps: int) -> np.ndarray:
    """Algorithm 1 with input group inter and output group motor, `steps` steps from zero: u (2D,) -> (2,)."""
    cell, units = layer.backbone, wiring.units
    p = {name: value.detach().double().numpy() for name, value in cell.named_parameters()}
    w_in, w_rec = np.zeros((wiring.inputs, units)), np.zeros((units, units))
    b, active = np.zeros(units), np.zeros(units)
    w_in[:, wiring.group(cell.entry)] = p["in_weight"][head]
    for target in wiring.active_groups:
        b[wiring.group(target)] = p[f"bias.{target}"][head, 0]
        active[wiring.group(target)] = 1.0
        for source in GROUPS:
            if f"weight.{source}_{target}" in p:
                w_rec[wiring.group(source), wiring.group(target)] = p[f"weight.{source}_{target}"][head]
    u = u * p["in_scale"][head, :, 0] + p["in_shift"][head, :, 0]
    x = np.zeros(units)
    for _ in range(steps):
        x = np.tanh(x @ (w_rec * wiring.recurrent_mask) + u @ (w_in * wiring.input_mask) + b) * active
    return x[wiring.group(cell.exit)] * p["out_scale"][head, 0] + p["out_shift"][head, 0]


def attend(
    layer: NAC,
    gates: list[Wiring],
    circuit: Wiring,
    x: np.ndarray,
    context: np.ndarray | None = None,
    *,
    top_k: int,
    allowed: np.ndarray,
    t_sample: np.ndarray,
    steps: int = 3,
    mode: str = "exact",
    output: str = "quadrature",
    phi_gate: str = "sigmoid",
) -> np.ndarray:
    """x (Tq, F), context (Tk, F') or None for x itself, allowed and t_sample (Tq, Tk) -> y (Tq, d)."""
    context = x if context is None else context
    length, heads, size = len(x), layer.num_heads, layer.head_size
    q, k, v = (
        gate(layer, wiring, i, source)
        for i, (wiring, source) in enumerate(zip(gates, (x, context, context), strict=True))
    )
    time_weight, time_bias = layer.time_weight.detach().double().numpy(), layer.time_bias.detach().double().numpy()
    y = np.zeros((length, layer.d_model))
    for h in range(heads):
        part = slice(h * size, (h + 1) * size)
        for i in range(length):
            keys = [j for j in range(len(context)) if allowed[i, j]]
            score = q[i, part] if layer.score_weight is None else q[i, part] @ layer.score_weight[h].detach().numpy()
            keys = sorted(keys, key=lambda j, score=score: -(score @ k[j, part]))[:top_k]
            logits, ts = [], []
            for j in keys:
                u = np.concatenate([q[i, part], k[j, part]])
                motor = backbone(layer, circuit, h, u, steps)
                phi, omega = PHI_ACTIVATIONS[phi_gate](motor[0]), np.log1p(np.exp(motor[1])) + 1e-3
                t_a, t_b = u @ time_weight[h] + time_bias[h, 0]
                t = sigmoid(t_a * t_sample[i, j] + t_b)
                logits.append(MODES[mode](phi, omega, t))
                ts.append(t)
            if keys:
                alpha = np.exp(logits) / np.exp(logits).sum()
                scale = np.array(ts) if output == "quadrature" else np.full(len(keys), layer.delta_t)
                y[i, part] = (alpha * scale) @ v[keys][:, part]
    return y @ layer.out.weight.detach().double().numpy().T + layer.out.bias.detach().double().numpy()


def block_keys(q: np.ndarray, k: np.ndarray, top_k: int) -> list[set[int]]:
    """Algorithm 2 for one head, line by line: the keys each query keeps; q (Tq, D), k (Tk, D)."""
    size = int(np.sqrt(len(k)))
    blocks = [range(start, min(start + size, len(k))) for start in range(0, len(k), size)]
    kept = []
    for query in q:
        coarse = [float(query @ k[list(block)].mean(axis=0)) for block in blocks]
        best = sorted(range(len(blocks)), key=lambda b, coarse=coarse: -coarse[b])[: -(-top_k // size)]
        candidates = [j for b in best for j in blocks[b]]
        kept.append(set(sorted(candidates, key=lambda j, query=query: -float(query @ k[j]))[:top_k]))
    return kept
