"""Triton programs for convolutions of few channels to few outputs: unrolled sums on the ordinary cores.

Six outs leave most of a tensor core idle, and patches must be moved about before it takes them. Here every thread has
a window of its own (without POOL, a pixel): it reads each number under it once, for all outs and all corners of the
window, and neighbours read neighbouring numbers. Products are of float32; without FINE, of numbers in bfloat16.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fedbraid.engines.kernels.programs import NONE, _place


@triton.jit
def _number(value, FINE: tl.constexpr):
    if FINE:
        return value
    else:
        return value.to(tl.bfloat16).to(tl.float32)


@triton.jit
def _plus(totals, at: tl.constexpr, value):
    """The tuple with `value` added at one position (Triton has no indexed assignment to registers)."""
    return totals[:at] + (totals[at] + value,) + totals[at + 1 :]


@triton.constexpr_function
def _tap(row, column, corner, SIDE, STRIDE, KH, KW):
    """The tap of the patch of `corner` at this row and column of the window; -1 if it lies outside."""
    i, j = row - (corner // SIDE) * STRIDE, column - (corner % SIDE) * STRIDE
    return i * KW + j if 0 <= i < KH and 0 <= j < KW else -1


@triton.jit
def convolve(
    x,
    w,
    bias,
    y,
    chosen,
    M,
    x_client,
    x_batch,
    x_channel,
    x_row,
    x_column,
    w_client,
    b_client,
    b_out,
    N: tl.constexpr,
    C: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    STRIDE: tl.constexpr,
    BM: tl.constexpr,
    POOL: tl.constexpr,
    BIASED: tl.constexpr,
    FINE: tl.constexpr,
):
    """y and chosen [client, window, out] of inputs that are padded already; w [client, out, channel, tap]."""
    client = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    sample, row, column = _place(tl.minimum(m, M - 1), OH, OW, False)
    SIDE: tl.constexpr = 2 if POOL else 1
    CORNERS: tl.constexpr = SIDE * SIDE
    x += client * x_client + sample * x_batch + (SIDE * STRIDE) * (row * x_row + column * x_column)
    w += client * w_client
    totals = (tl.zeros((BM,), dtype=tl.float32),) * (N * CORNERS)
    for _ in range(C):  # unrolled, it would take the compiler long
        for r in tl.static_range(KH + (SIDE - 1) * STRIDE):
            for s in tl.static_range(KW + (SIDE - 1) * STRIDE):
                value = _number(tl.load(x + (r * x_row + s * x_column)), FINE)
                for corner in tl.static_range(CORNERS):
                    if _tap(r, s, corner, SIDE, STRIDE, KH, KW) >= 0:
                        for n in tl.static_range(N):
                            weight = tl.load(w + (n * C * KH * KW + _tap(r, s, corner, SIDE, STRIDE, KH, KW)))
                            totals = _plus(totals, n * CORNERS + corner, value * _number(weight, FINE))
        x += x_channel
        w += KH * KW
    real = m < M
    place = (client * M + m) * N
    for n in tl.static_range(N):
        best = totals[n * CORNERS]
        if POOL:
            which = tl.zeros((BM,), dtype=tl.int8)
            for corner in tl.static_range(1, CORNERS):
                which = tl.where(totals[n * CORNERS + corner] > best, corner, which)
                best = tl.maximum(best, totals[n * CORNERS + corner])
        if BIASED:
            best += tl.load(bias + client * b_client + n * b_out)
        if POOL:
            tl.store(chosen + place + n, tl.where(best > 0, which, NONE).to(tl.int8), mask=real)
            best = tl.maximum(best, 0.0)
        tl.store(y + place + n, best, mask=real)


@triton.jit
def weight_gradient(
    x,
    d,
    chosen,
    out,
    M,
    KP,
    share,
    x_client,
    x_batch,
    x_channel,
    x_row,
    x_column,
    d_client,
    d_batch,
    d_channel,
    d_row,
    d_column,
    N: tl.constexpr,
    C: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    STRIDE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    SPLITS: tl.constexpr,
    POOL: tl.constexpr,
    ONES: tl.constexpr,
    FINE: tl.constexpr,
):
    """As `few_programs.weight_gradient`; a program has one channel of the inputs and BN of the outs."""
    c = tl.program_id(0)
    first = tl.program_id(1) * BN
    client = (tl.program_id(2) // SPLITS).to(tl.int64)
    split = tl.program_id(2) % SPLITS
    begin, end = split * share, tl.minimum(M, (split + 1) * share)
    x += client * x_client + c * x_channel
    d += client * d_client
    chosen += client * M * N
    SIDE: tl.constexpr = 2 if POOL else 1
    CORNERS: tl.constexpr = SIDE * SIDE
    TAPS: tl.constexpr = KH * KW
    totals = (tl.zeros((BM,), dtype=tl.float32),) * (BN * (TAPS + 1))
    for start in range(begin, end, BM):
        m = start + tl.arange(0, BM)
        real = m < end
        sample, row, column = _place(tl.minimum(m, M - 1), OH, OW, False)
        place = d + (sample * d_batch + row * d_row + column * d_column)
        slopes = ()
        for n in tl.static_range(BN):
            out_n = tl.minimum(first + n, N - 1)
            w_gradient = _number(tl.load(place + out_n * d_channel, mask=real, other=0.0), FINE)
            if POOL:
                corner_n = tl.load(chosen + (m * N + out_n), mask=real, other=NONE)
                for corner in tl.static_range(CORNERS):
                    slopes = slopes + (tl.where(corner_n == corner, w_gradient, 0.0),)
                w_gradient = tl.where(corner_n == NONE, 0.0, w_gradient)
            else:
                slopes = slopes + (w_gradient,)
            totals = _plus(totals, n * (TAPS + 1) + TAPS, w_gradient)
        patch = x + (sample * x_batch + (SIDE * STRIDE) * (row * x_row + column * x_column))
        for r in tl.static_range(KH + (SIDE - 1) * STRIDE):
            for s in tl.static_range(KW + (SIDE - 1) * STRIDE):
                value = _number(tl.load(patch + (r * x_row + s * x_column)), FINE)
                for corner in tl.static_range(CORNERS):
                    if _tap(r, s, corner, SIDE, STRIDE, KH, KW) >= 0:
                        for n in tl.static_range(BN):
                            totals = _plus(
                                totals,
                                n * (TAPS + 1) + _tap(r, s, corner, SIDE, STRIDE, KH, KW),
                                value * slopes[n * CORNERS + corner],
                            )
    clients = tl.num_programs(2) // SPLITS
    for n in tl.static_range(BN):
        row_n = out + ((split * clients + client) * N + first + n) * KP
        for tap in tl.static_range(TAPS):
            tl.store(row_n + tap * C + c, tl.sum(totals[n * (TAPS + 1) + tap]), mask=first + n < N)
        if ONES:  # of every channel's program alike
            tl.store(row_n + TAPS * C, tl.sum(totals[n * (TAPS + 1) + TAPS]), mask=(first + n < N) & (c == 0))
