"""The pairwise NAC attention as one GPU kernel in Triton. `nac.fused` calls it; it needs the package triton.

Each program takes ROWS queries of one head and walks over the keys, COLUMNS at a time. The pairs of a tile live in
registers: drive, backbone, phi, omega, t and the logit. The softmax is online (Milakov & Gimelshein 2018), so neither
the logits nor the weights of all pairs are ever stored.

Shapes: B batch, H heads, Tq queries, Tk keys, D features of a head, E neurons of the input group, C of the layer after
it; EP, CP and DP are E, C and D padded to powers of two.
"""

from __future__ import annotations

import triton  # pyright: ignore[reportMissingImports]  # comes with CUDA builds of torch
import triton.language as tl  # pyright: ignore[reportMissingImports]

ROWS = tl.constexpr(16)
COLUMNS = tl.constexpr(16)
SMALL = tl.constexpr(0.05)
"""Below this, 1 - exp(-z) is summed as a series: the difference would lose digits."""


@triton.jit
def softplus(x):
    """Return ln(1 + e^x) without overflow."""
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def approach(z, n, EULER: tl.constexpr):
    """Return how far a logit has come to its steady state.

    It is 1 - exp(-z), or 1 - (1 - z / n)^n by n Euler steps.
    """
    if EULER:
        n = tl.maximum(tl.floor(z) + 1.0, n)
        x = z / n
        far = 1.0 - tl.exp(n * tl.log(1.0 - x))
        second, third = 0.5 * (1.0 - 1.0 / n), (1.0 - 1.0 / n) * (1.0 - 2.0 / n) / 6.0
        fourth = third * (1.0 - 3.0 / n) / 4.0
    else:
        far = 1.0 - tl.exp(-z)
        second, third, fourth = 1.0 / 2.0, 1.0 / 6.0, 1.0 / 24.0
    near = z * (1.0 - z * (second - z * (third - z * fourth)))
    return tl.where(z < SMALL, near, far)


@triton.jit
def attend(
    q_ptr, q_b, q_h, q_t,  # (B, H, Tq, E + 2): drive, t_a, t_b
    k_ptr, k_b, k_h, k_t,  # (B, H, Tk, E + 2 + D): drive, t_a, t_b, value
    times_ptr, times_b, times_q, times_k,  # (B, Tq, Tk)
    valid_ptr,  # (B, Tk)
    w_1_ptr, b_1_ptr,  # (H, EP, CP), (H, CP)
    w_2_ptr, b_2_ptr,  # (H, 2, CP), (H, 2)
    scale_ptr, shift_ptr,  # (H, 2)
    y_ptr,  # (B, H, Tq, D)
    heads, queries, keys, window, euler_steps, delta_t, omega_floor,
    E: tl.constexpr, EP: tl.constexpr, CP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    TIMES: tl.constexpr, VALID: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    MODE: tl.constexpr, PHI: tl.constexpr, QUADRATURE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the outputs of ROWS queries of one head."""
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    query = tl.program_id(1) * ROWS + tl.arange(0, ROWS)  # (ROWS,)
    position = query + keys - queries  # of each query among the keys
    e, c, d = tl.arange(0, EP), tl.arange(0, CP), tl.arange(0, DP)

    q_row = q_ptr + batch * q_b + head * q_h + query * q_t  # (ROWS,)
    in_rows = query < queries
    q_drive = tl.load(q_row[:, None] + e[None, :], mask=in_rows[:, None] & (e < E)[None, :], other=0.0)  # (ROWS, EP)
    q_a = tl.load(q_row + E, mask=in_rows, other=0.0)
    q_c = tl.load(q_row + E + 1, mask=in_rows, other=0.0)

    w_1 = tl.load(w_1_ptr + head * EP * CP + e[:, None] * CP + c[None, :])  # (EP, CP)
    b_1 = tl.load(b_1_ptr + head * CP + c)
    w_phi, w_omega = tl.load(w_2_ptr + 2 * head * CP + c), tl.load(w_2_ptr + (2 * head + 1) * CP + c)  # (CP,)
    b_phi, b_omega = tl.load(b_2_ptr + 2 * head), tl.load(b_2_ptr + 2 * head + 1)
    scale_phi, scale_omega = tl.load(scale_ptr + 2 * head), tl.load(scale_ptr + 2 * head + 1)
    shift_phi, shift_omega = tl.load(shift_ptr + 2 * head), tl.load(shift_ptr + 2 * head + 1)

    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    y = tl.zeros((ROWS, DP), tl.float32)

    start, stop = 0, keys
    if CAUSAL:  # keys before the first query's window and after the last query are skipped
        stop = tl.minimum(keys, tl.program_id(1) * ROWS + ROWS + keys - queries)
        if WINDOW:
            start = tl.maximum(0, tl.program_id(1) * ROWS + keys - queries - window + 1) // COLUMNS * COLUMNS
    for first in range(start, stop, COLUMNS):
        key = first + tl.arange(0, COLUMNS)  # (COLUMNS,)
        in_columns = key < keys
        k_row = k_ptr + batch * k_b + head * k_h + key * k_t
        k_drive = tl.load(k_row[:, None] + e[None, :], mask=in_columns[:, None] & (e < E)[None, :], other=0.0)
        k_a = tl.load(k_row + E, mask=in_columns, other=0.0)
        k_c = tl.load(k_row + E + 1, mask=in_columns, other=0.0)
        at = k_row[:, None] + (E + 2) + d[None, :]
        value = tl.load(at, mask=in_columns[:, None] & (d < D)[None, :], other=0.0)  # (COLUMNS, DP)

        inputs = tl.sigmoid(q_drive[:, None, :] + k_drive[None, :, :])  # (ROWS, COLUMNS, EP)
        inputs = tl.reshape(inputs, (ROWS * COLUMNS, EP))
        hidden = tl.sigmoid(tl.dot(inputs, w_1, input_precision=PRECISION) + b_1[None, :])  # (ROWS COLUMNS, CP)
        phi = shift_phi + scale_phi * tl.sigmoid(tl.sum(hidden * w_phi[None, :], axis=1) + b_phi)
        omega = shift_omega + scale_omega * tl.sigmoid(tl.sum(hidden * w_omega[None, :], axis=1) + b_omega)
        phi, omega = tl.reshape(phi, (ROWS, COLUMNS)), softplus(tl.reshape(omega, (ROWS, COLUMNS))) + omega_floor
        if PHI == "sigmoid":
            phi = tl.sigmoid(phi)
        elif PHI == "tanh":
            phi = 2.0 * tl.sigmoid(2.0 * phi) - 1.0

        t = q_a[:, None] + k_a[None, :]  # (ROWS, COLUMNS)
        if TIMES:
            at = times_ptr + batch * times_b + query[:, None] * times_q + key[None, :] * times_k
            t = t * tl.load(at, mask=in_rows[:, None] & in_columns[None, :], other=0.0)
        t = tl.sigmoid(t + q_c[:, None] + k_c[None, :])
        a = phi / omega
        if MODE != "steady":
            a = a * approach(omega * t, euler_steps, MODE == "euler")

        allowed = in_rows[:, None] & in_columns[None, :]
        if CAUSAL:
            allowed = allowed & (key[None, :] <= position[:, None])
            if WINDOW:
                allowed = allowed & (key[None, :] > position[:, None] - window)
        if VALID:
            allowed = allowed & (tl.load(valid_ptr + batch * keys + key, mask=in_columns, other=0) != 0)[None, :]
        a = tl.where(allowed, a, float("-inf"))
        higher = tl.maximum(largest, tl.max(a, axis=1))  # (ROWS,)
        base = tl.where(higher == float("-inf"), 0.0, higher)  # nothing was allowed yet
        shrink, weight = tl.exp(largest - base), tl.exp(a - base[:, None])
        total = total * shrink + tl.sum(weight, axis=1)
        weight = weight * (t if QUADRATURE else delta_t)
        y = y * shrink[:, None] + tl.dot(weight, value, input_precision=PRECISION)  # (ROWS, DP)
        largest = higher

    y = y / tl.where(total == 0.0, 1.0, total)[:, None]  # zeros where no key is allowed
    at = y_ptr + ((batch * heads + head) * queries + query[:, None]) * D + d[None, :]
    tl.store(at, y, mask=in_rows[:, None] & (d < D)[None, :])
