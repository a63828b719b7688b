# type: ignore
"""Pairwise NAC attention and its gradients as GPU kernels. `nac.fused` calls them; they need triton.

A program of `attend` takes ROWS queries of one head and walks over the keys, COLUMNS at a time. The pairs of a tile
live in registers: drive, backbone, phi, omega, t and the logit. The softmax is online (Milakov & Gimelshein 2018), so
neither the logits nor the weights of all pairs are ever stored.

`attend_gradients` computes the pairs of a tile again from the same inputs, and their weights from the stored logarithm
of the softmax's sum (Dao et al. 2022). It runs three times: once its programs own queries and walk over keys, and twice
they own keys and walk over queries. So no two programs add to one number, and two runs give the same bits.

Shapes: B batch, H heads, Tq queries, Tk keys, D features of a head, E neurons of the input group, C of the layer after
it; EP, CP and DP are E, C and D padded to powers of two; R = ROWS, K = COLUMNS, P = R K pairs of a tile.
"""

from __future__ import annotations

import triton  # reads the functions of this file, whose values have its types
import triton.language as tl

SMALL = tl.constexpr(0.05)
"""Below this, 1 - exp(-z) is summed as a series: the difference would lose digits."""
SMALL_GRADIENT = tl.constexpr(0.1)
"""Below this, z exp(-z) - 1 + exp(-z) is summed as a series. It begins with z^2 and loses digits earlier."""


@triton.jit
def softplus(x):
    """Return ln(1 + e^x) without overflow."""
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def series(n, EULER: tl.constexpr):
    """Return coefficients of `approach` around 0.

    They are the second to the fifth. The first is 1, and signs alternate.
    """
    if EULER:
        second = 0.5 * (1.0 - 1.0 / n)
        third = second * (1.0 - 2.0 / n) / 3.0
        fourth = third * (1.0 - 3.0 / n) / 4.0
        fifth = fourth * (1.0 - 4.0 / n) / 5.0
    else:
        second, third, fourth, fifth = 1.0 / 2.0, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0
    return second, third, fourth, fifth


@triton.jit
def approach(z, n, EULER: tl.constexpr):
    """Return how near a logit is to its steady state.

    It is 1 - exp(-z), or 1 - (1 - z / n)^n by n Euler steps.
    """
    if EULER:
        n = tl.maximum(tl.floor(z) + 1.0, n)
        far = 1.0 - tl.exp(n * tl.log(1.0 - z / n))
    else:
        far = 1.0 - tl.exp(-z)
    second, third, fourth, _ = series(n, EULER)
    near = z * (1.0 - z * (second - z * (third - z * fourth)))
    return tl.where(z < SMALL, near, far)


@triton.jit
def approach_gradient(z, n, EULER: tl.constexpr):
    """Return f'(z) and z f'(z) - f(z) for f = `approach`."""
    if EULER:
        n = tl.maximum(tl.floor(z) + 1.0, n)
        slope = tl.exp((n - 1.0) * tl.log(1.0 - z / n))
        rest = slope * (1.0 - z / n)
    else:
        slope = tl.exp(-z)
        rest = slope
    second, third, fourth, fifth = series(n, EULER)
    near = -z * z * (second - z * (2.0 * third - z * (3.0 * fourth - z * 4.0 * fifth)))
    return slope, tl.where(z < SMALL_GRADIENT, near, z * slope - 1.0 + rest)


@triton.jit
def logit_inputs(row, inside, E: tl.constexpr, EP: tl.constexpr):
    """Load drive (N, EP), t_a and t_b (N,) of tokens. `row` holds their addresses."""
    e = tl.arange(0, EP)
    drive = tl.load(row[:, None] + e[None, :], mask=inside[:, None] & (e < E)[None, :], other=0.0)
    return drive, tl.load(row + E, mask=inside, other=0.0), tl.load(row + E + 1, mask=inside, other=0.0)


@triton.jit
def circuit(w_1_ptr, b_1_ptr, w_2_ptr, b_2_ptr, scale_ptr, shift_ptr, head, EP: tl.constexpr, CP: tl.constexpr):
    """Load the backbone of a head.

    It is (EP, CP), three times (CP,), and six numbers.
    """
    e, c = tl.arange(0, EP), tl.arange(0, CP)
    w_1 = tl.load(w_1_ptr + head * EP * CP + e[:, None] * CP + c[None, :])
    b_1 = tl.load(b_1_ptr + head * CP + c)
    w_phi, w_omega = tl.load(w_2_ptr + 2 * head * CP + c), tl.load(w_2_ptr + (2 * head + 1) * CP + c)
    b_phi, b_omega = tl.load(b_2_ptr + 2 * head), tl.load(b_2_ptr + 2 * head + 1)
    scale_phi, scale_omega = tl.load(scale_ptr + 2 * head), tl.load(scale_ptr + 2 * head + 1)
    shift_phi, shift_omega = tl.load(shift_ptr + 2 * head), tl.load(shift_ptr + 2 * head + 1)
    return w_1, b_1, w_phi, w_omega, b_phi, b_omega, scale_phi, scale_omega, shift_phi, shift_omega


@triton.jit
def allowed_pairs(
    query, key, valid_ptr, batch, queries, keys, window,
    VALID: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Return which queries (R,) may see which keys (K,): (R, K)."""
    in_columns = key < keys
    allowed = (query < queries)[:, None] & in_columns[None, :]
    if CAUSAL:
        position = query + keys - queries  # of each query among the keys
        allowed = allowed & (key[None, :] <= position[:, None])
        if WINDOW:
            allowed = allowed & (key[None, :] > position[:, None] - window)
    if VALID:
        allowed = allowed & (tl.load(valid_ptr + batch * keys + key, mask=in_columns, other=0) != 0)[None, :]
    return allowed


@triton.jit
def neurons(
    q_drive, k_drive, w_1, b_1, w_phi, w_omega, b_phi, b_omega,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, EP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Settle the backbones of a tile.

    Return s of the inputs (P, EP), of the hidden neurons (P, CP) and of the two motor neurons (P,).
    """
    inputs = tl.sigmoid(q_drive[:, None, :] + k_drive[None, :, :])  # (R, K, EP)
    inputs = tl.reshape(inputs, (ROWS * COLUMNS, EP))
    hidden = tl.sigmoid(tl.dot(inputs, w_1, input_precision=PRECISION) + b_1[None, :])  # (P, CP)
    s_phi = tl.sigmoid(tl.sum(hidden * w_phi[None, :], axis=1) + b_phi)
    s_omega = tl.sigmoid(tl.sum(hidden * w_omega[None, :], axis=1) + b_omega)
    return inputs, hidden, s_phi, s_omega


@triton.jit
def weighted_sum(weight, value, AXIS: tl.constexpr):
    """Sum values (K, DP) or (R, DP), weighted.

    The weights are (R, K); AXIS 1 sums over K, 0 over R. Either is too small for `tl.dot`, which takes 16 before triton
    3.7. The order of the factors matters: triton 3.6 turns weight times value into a `tl.dot` in TF32.
    """
    value = value[None, :, :] if AXIS == 1 else value[:, None, :]
    return tl.sum(value * weight[:, :, None], axis=AXIS)


@triton.jit
def activate(phi, PHI: tl.constexpr):
    """Return phi after its activation."""
    if PHI == "sigmoid":
        phi = tl.sigmoid(phi)
    elif PHI == "tanh":
        phi = 2.0 * tl.sigmoid(2.0 * phi) - 1.0
    return phi


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
    sum_ptr,  # (B, H, Tq): logarithm of the softmax's sum
    heads, queries, keys, window, euler_steps, delta_t, omega_floor,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    E: tl.constexpr, EP: tl.constexpr, CP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    TIMES: tl.constexpr, VALID: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    MODE: tl.constexpr, PHI: tl.constexpr, QUADRATURE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the outputs of ROWS queries of one head."""
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    query = tl.program_id(1) * ROWS + tl.arange(0, ROWS)  # (R,)
    d = tl.arange(0, DP)
    in_rows = query < queries
    q_drive, q_a, q_c = logit_inputs(q_ptr + batch * q_b + head * q_h + query * q_t, in_rows, E, EP)
    w_1, b_1, w_phi, w_omega, b_phi, b_omega, scale_phi, scale_omega, shift_phi, shift_omega = circuit(
        w_1_ptr, b_1_ptr, w_2_ptr, b_2_ptr, scale_ptr, shift_ptr, head, EP, CP
    )
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    y = tl.zeros((ROWS, DP), tl.float32)

    start, stop = 0, keys
    if CAUSAL:  # keys before the first query's window and after the last query are skipped
        stop = tl.minimum(keys, tl.program_id(1) * ROWS + ROWS + keys - queries)
        if WINDOW:
            start = tl.maximum(0, tl.program_id(1) * ROWS + keys - queries - window + 1) // COLUMNS * COLUMNS
    for first in range(start, stop, COLUMNS):
        key = first + tl.arange(0, COLUMNS)  # (K,)
        in_columns = key < keys
        k_row = k_ptr + batch * k_b + head * k_h + key * k_t
        k_drive, k_a, k_c = logit_inputs(k_row, in_columns, E, EP)
        at = k_row[:, None] + (E + 2) + d[None, :]
        value = tl.load(at, mask=in_columns[:, None] & (d < D)[None, :], other=0.0)  # (K, DP)

        _, _, s_phi, s_omega = neurons(
            q_drive, k_drive, w_1, b_1, w_phi, w_omega, b_phi, b_omega, ROWS, COLUMNS, EP, PRECISION
        )
        phi = activate(tl.reshape(shift_phi + scale_phi * s_phi, (ROWS, COLUMNS)), PHI)
        omega = softplus(tl.reshape(shift_omega + scale_omega * s_omega, (ROWS, COLUMNS))) + omega_floor
        t = q_a[:, None] + k_a[None, :]  # (R, K)
        if TIMES:
            at = times_ptr + batch * times_b + query[:, None] * times_q + key[None, :] * times_k
            t = t * tl.load(at, mask=in_rows[:, None] & in_columns[None, :], other=0.0)
        t = tl.sigmoid(t + q_c[:, None] + k_c[None, :])
        a = phi / omega
        if MODE != "steady":
            a = a * approach(omega * t, euler_steps, MODE == "euler")

        allowed = allowed_pairs(query, key, valid_ptr, batch, queries, keys, window, VALID, CAUSAL, WINDOW)
        a = tl.where(allowed, a, float("-inf"))
        higher = tl.maximum(largest, tl.max(a, axis=1))  # (R,)
        base = tl.where(higher == float("-inf"), 0.0, higher)  # nothing was allowed yet
        shrink, weight = tl.exp(largest - base), tl.exp(a - base[:, None])
        total = total * shrink + tl.sum(weight, axis=1)
        weight = weight * (t if QUADRATURE else delta_t)
        y = y * shrink[:, None] + weighted_sum(weight, value, 1)
        largest = higher

    some = total > 0.0
    total = tl.where(some, total, 1.0)
    y = y / total[:, None]  # zeros where no key is allowed
    row = (batch * heads + head) * queries + query
    tl.store(y_ptr + row[:, None] * D + d[None, :], y, mask=in_rows[:, None] & (d < D)[None, :])
    tl.store(sum_ptr + row, tl.where(some, largest, 0.0) + tl.log(total), mask=in_rows)


@triton.jit
def attend_gradients(
    q_ptr, q_b, q_h, q_t, k_ptr, k_b, k_h, k_t, times_ptr, times_b, times_q, times_k, valid_ptr,
    w_1_ptr, b_1_ptr, w_2_ptr, b_2_ptr, scale_ptr, shift_ptr,  # as of `attend`
    sum_ptr,  # (B, H, Tq), from `attend`
    dy_ptr,  # (B, H, Tq, D): gradient of y
    dot_ptr,  # (B, H, Tq): y . dy
    dq_ptr,  # (B, H, Tq, E + 2)
    dk_ptr,  # (B, H, Tk, E + 2 + D)
    dw_ptr,  # (B, H, Tk / K, EP CP + 3 CP + 6): of w_1, b_1, w_2, b_2, scale, shift, a row for each program
    heads, queries, keys, window, euler_steps, delta_t, omega_floor,
    PASS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    E: tl.constexpr, EP: tl.constexpr, CP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    TIMES: tl.constexpr, VALID: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    MODE: tl.constexpr, PHI: tl.constexpr, QUADRATURE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of one head.

    PASS says whether they are of ROWS queries, of COLUMNS keys, or of the weights by COLUMNS keys. Three passes compute
    every pair three times. One for keys and weights would spill registers.
    """
    batch, head, block = tl.program_id(0) // heads, tl.program_id(0) % heads, tl.program_id(1)
    e, c, d = tl.arange(0, EP), tl.arange(0, CP), tl.arange(0, DP)
    w_1, b_1, w_phi, w_omega, b_phi, b_omega, scale_phi, scale_omega, shift_phi, shift_omega = circuit(
        w_1_ptr, b_1_ptr, w_2_ptr, b_2_ptr, scale_ptr, shift_ptr, head, EP, CP
    )
    offset = keys - queries
    if PASS == "queries":
        size: tl.constexpr = ROWS
        start, stop, step = 0, keys, COLUMNS
        if CAUSAL:  # as in `attend`
            stop = tl.minimum(keys, block * ROWS + ROWS + offset)
            if WINDOW:
                start = tl.maximum(0, block * ROWS + offset - window + 1)
    else:
        size: tl.constexpr = COLUMNS
        start, stop, step = 0, queries, ROWS
        if CAUSAL:  # queries before the first key and after the last key's window are skipped
            start = tl.maximum(0, block * COLUMNS - offset)
            if WINDOW:
                stop = tl.minimum(queries, block * COLUMNS + COLUMNS - 1 + window - offset)
    if PASS == "weights":
        d_w_1, d_b_1 = tl.zeros((CP, EP), tl.float32), tl.zeros((CP,), tl.float32)
        d_w_phi, d_w_omega = tl.zeros((CP,), tl.float32), tl.zeros((CP,), tl.float32)
        d_b_phi, d_b_omega, d_scale_phi, d_scale_omega, d_shift_phi, d_shift_omega = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    else:
        d_drive, d_value = tl.zeros((size, EP), tl.float32), tl.zeros((size, DP), tl.float32)
        d_a, d_c = tl.zeros((size,), tl.float32), tl.zeros((size,), tl.float32)

    for first in range(start, stop, step):
        if PASS == "queries":
            query, key = block * ROWS + tl.arange(0, ROWS), first + tl.arange(0, COLUMNS)
        else:
            query, key = first + tl.arange(0, ROWS), block * COLUMNS + tl.arange(0, COLUMNS)
        in_rows, in_columns = query < queries, key < keys
        q_drive, q_a, q_c = logit_inputs(q_ptr + batch * q_b + head * q_h + query * q_t, in_rows, E, EP)
        k_row = k_ptr + batch * k_b + head * k_h + key * k_t
        k_drive, k_a, k_c = logit_inputs(k_row, in_columns, E, EP)
        at = k_row[:, None] + (E + 2) + d[None, :]
        value = tl.load(at, mask=in_columns[:, None] & (d < D)[None, :], other=0.0)  # (K, DP)
        row = (batch * heads + head) * queries + query
        at = dy_ptr + row[:, None] * D + d[None, :]
        dy = tl.load(at, mask=in_rows[:, None] & (d < D)[None, :], other=0.0)  # (R, DP)
        total = tl.load(sum_ptr + row, mask=in_rows, other=0.0)
        y_dy = tl.load(dot_ptr + row, mask=in_rows, other=0.0)

        inputs, hidden, s_phi, s_omega = neurons(
            q_drive, k_drive, w_1, b_1, w_phi, w_omega, b_phi, b_omega, ROWS, COLUMNS, EP, PRECISION
        )
        motor = tl.reshape(shift_omega + scale_omega * s_omega, (ROWS, COLUMNS))
        phi = activate(tl.reshape(shift_phi + scale_phi * s_phi, (ROWS, COLUMNS)), PHI)
        omega = softplus(motor) + omega_floor
        time = tl.full((ROWS, COLUMNS), 1.0, tl.float32)
        if TIMES:
            at = times_ptr + batch * times_b + query[:, None] * times_q + key[None, :] * times_k
            time = tl.load(at, mask=in_rows[:, None] & in_columns[None, :], other=0.0)
        t = tl.sigmoid((q_a[:, None] + k_a[None, :]) * time + q_c[:, None] + k_c[None, :])
        if MODE == "steady":
            far, slope, bend = 1.0, 0.0, -1.0
        else:
            far = approach(omega * t, euler_steps, MODE == "euler")
            slope, bend = approach_gradient(omega * t, euler_steps, MODE == "euler")
        allowed = allowed_pairs(query, key, valid_ptr, batch, queries, keys, window, VALID, CAUSAL, WINDOW)
        alpha = tl.where(allowed, tl.exp(phi / omega * far - total[:, None]), 0.0)  # (R, K)

        d_weight = tl.dot(dy, tl.trans(value), input_precision=PRECISION)  # (R, K)
        factor = t if QUADRATURE else delta_t
        if PASS == "keys":
            d_value += weighted_sum(alpha * factor, dy, 0)
        d_logit = alpha * (d_weight * factor - y_dy[:, None])
        d_t = d_logit * phi * slope
        if QUADRATURE:
            d_t += alpha * d_weight
        d_t = d_t * t * (1.0 - t)  # of the sigmoid's argument
        d_phi = d_logit * far / omega
        if PHI == "sigmoid":
            d_phi = d_phi * phi * (1.0 - phi)
        elif PHI == "tanh":
            d_phi = d_phi * (1.0 - phi * phi)
        d_omega = d_logit * phi / omega * bend / omega * tl.sigmoid(motor)
        d_phi, d_omega = tl.reshape(d_phi, (ROWS * COLUMNS,)), tl.reshape(d_omega, (ROWS * COLUMNS,))
        m_phi, m_omega = d_phi * scale_phi * s_phi * (1.0 - s_phi), d_omega * scale_omega * s_omega * (1.0 - s_omega)
        d_hidden = m_phi[:, None] * w_phi[None, :] + m_omega[:, None] * w_omega[None, :]
        d_hidden = d_hidden * hidden * (1.0 - hidden)  # (P, CP)
        if PASS == "weights":
            d_w_1 += tl.dot(tl.trans(d_hidden), inputs, input_precision=PRECISION)
            d_b_1 += tl.sum(d_hidden, axis=0)
            d_w_phi += tl.sum(m_phi[:, None] * hidden, axis=0)
            d_w_omega += tl.sum(m_omega[:, None] * hidden, axis=0)
            d_b_phi += tl.sum(m_phi, axis=0)
            d_b_omega += tl.sum(m_omega, axis=0)
            d_scale_phi += tl.sum(d_phi * s_phi, axis=0)
            d_scale_omega += tl.sum(d_omega * s_omega, axis=0)
            d_shift_phi += tl.sum(d_phi, axis=0)
            d_shift_omega += tl.sum(d_omega, axis=0)
        else:
            d_inputs = tl.dot(d_hidden, tl.trans(w_1), input_precision=PRECISION) * inputs * (1.0 - inputs)
            d_inputs = tl.reshape(d_inputs, (ROWS, COLUMNS, EP))
            other: tl.constexpr = 1 if PASS == "queries" else 0  # the axis that is summed over
            d_drive += tl.sum(d_inputs, axis=other)
            d_a += tl.sum(d_t * time, axis=other)
            d_c += tl.sum(d_t, axis=other)

    if PASS == "weights":
        row = dw_ptr + (tl.program_id(0) * tl.num_programs(1) + block) * (EP * CP + 3 * CP + 6)
        tl.store(row + e[None, :] * CP + c[:, None], d_w_1)
        row += EP * CP
        tl.store(row + c, d_b_1)
        tl.store(row + CP + c, d_w_phi)
        tl.store(row + 2 * CP + c, d_w_omega)
        row += 3 * CP
        tl.store(row, d_b_phi)
        tl.store(row + 1, d_b_omega)
        tl.store(row + 2, d_scale_phi)
        tl.store(row + 3, d_scale_omega)
        tl.store(row + 4, d_shift_phi)
        tl.store(row + 5, d_shift_omega)
    else:
        token = block * size + tl.arange(0, size)
        if PASS == "queries":
            inside = token < queries
            row = dq_ptr + ((batch * heads + head) * queries + token) * (E + 2)
        else:
            inside = token < keys
            row = dk_ptr + ((batch * heads + head) * keys + token) * (E + 2 + D)
            tl.store(row[:, None] + (E + 2) + d[None, :], d_value, mask=inside[:, None] & (d < D)[None, :])
        tl.store(row[:, None] + e[None, :], d_drive, mask=inside[:, None] & (e < E)[None, :])
        tl.store(row + E, d_a, mask=inside)
        tl.store(row + E + 1, d_c, mask=inside)
