"""The NAC layer once more, straight from the equations: float64 numpy, loops over heads and pairs, nothing shared.

Every pair is concatenated, every neuron (disabled ones too) is stepped, every mask is applied to a full matrix.
"""

from __future__ import annotations

import numpy as np

from policies.nac import NAC
from policies.wiring import GROUPS, Wiring


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def gate(layer: NAC, wiring: Wiring, which: int, x: np.ndarray) -> np.ndarray:
    """Algorithm 1 with input group = output group = sensory, scanned over time: x (T, F) -> (T, d)."""
    p = {name: value.detach().double().numpy() for name, value in layer.gate.named_parameters()}
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
    *,
    top_k: int,
    allowed: np.ndarray,
    t_sample: np.ndarray,
    steps: int = 3,
    mode: str = "exact",
    output: str = "quadrature",
) -> np.ndarray:
    """x (T, F), allowed and t_sample (T, T) -> y (T, d)."""
    length, heads, size = len(x), layer.num_heads, layer.head_size
    q, k, v = (gate(layer, wiring, i, x) for i, wiring in enumerate(gates))
    time_weight, time_bias = layer.time_weight.detach().double().numpy(), layer.time_bias.detach().double().numpy()
    y = np.zeros((length, layer.d_model))
    for h in range(heads):
        part = slice(h * size, (h + 1) * size)
        for i in range(length):
            keys = [j for j in range(length) if allowed[i, j]]
            keys = sorted(keys, key=lambda j: -(q[i, part] @ k[j, part]))[:top_k]
            logits, ts = [], []
            for j in keys:
                u = np.concatenate([q[i, part], k[j, part]])
                motor = backbone(layer, circuit, h, u, steps)
                phi, omega = sigmoid(motor[0]), np.log1p(np.exp(motor[1])) + 1e-3
                t_a, t_b = u @ time_weight[h] + time_bias[h, 0]
                t = sigmoid(t_a * t_sample[i, j] + t_b)
                logits.append(phi / omega * (1.0 - np.exp(-omega * t)) if mode == "exact" else phi / omega)
                ts.append(t)
            if keys:
                alpha = np.exp(logits) / np.exp(logits).sum()
                scale = np.array(ts) if output == "quadrature" else np.full(len(keys), layer.delta_t)
                y[i, part] = (alpha * scale) @ v[keys][:, part]
    return y @ layer.out.weight.detach().double().numpy().T + layer.out.bias.detach().double().numpy()
