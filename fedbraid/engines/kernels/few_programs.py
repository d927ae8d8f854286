"""Triton programs for convolutions of inputs with few channels: patches are read in place and never written.

A patch of few channels is a few short runs of memory, and patches of neighbouring pixels share most of it: read again
and again out of the caches it costs less than written out once. Tiles are split into bfloat16 on the way (`programs`
says why); sides and channels are compile-time constants, which makes divisions by them cheap, and offsets within a
client's tensors are numbers of 32 bits, of which registers hold more.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fedbraid.engines.kernels.programs import NONE, _finish, _place


@triton.jit
def _offsets(k, C: tl.constexpr, KW: tl.constexpr, x_channel, x_row, x_column):
    """Offsets of the numbers k of a patch from its beginning: tap by tap, and within a tap by channel."""
    tap = k // C
    return (k - tap * C) * x_channel + (tap // KW) * x_row + (tap % KW) * x_column


@triton.jit
def _rest(value, high):
    """The lower half: the remainder after `high`, as bfloat16."""
    return (value - high.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def convolve(
    x,
    w_high,
    w_low,
    bias,
    y,
    chosen,
    M,
    N,
    x_client,
    x_batch,
    x_channel,
    x_row,
    x_column,
    w_client,
    b_client,
    b_out,
    KD: tl.constexpr,
    KP: tl.constexpr,
    C: tl.constexpr,
    KW: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    STRIDE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    POOL: tl.constexpr,
    BIASED: tl.constexpr,
    FINE: tl.constexpr,
):
    """As `programs.convolve`; inputs are padded already, and weights lie in rows of KP."""
    client = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    sample, row, column = _place(tl.minimum(m, M - 1), OH, OW, POOL)  # rows beyond the last repeat it
    begins = sample * x_batch + STRIDE * (row * x_row + column * x_column)
    x += client * x_client
    rows = client * w_client + tl.minimum(n, N - 1) * KP
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in tl.static_range(0, KP, BK):
        k = start + tl.arange(0, BK)
        at = begins[:, None] + _offsets(k, C, KW, x_channel, x_row, x_column)[None, :]
        w_at = rows[:, None] + k[None, :]
        value = tl.load(x + at, mask=(k < KD)[None, :], other=0.0)
        patch, w_gradient = value.to(tl.bfloat16), tl.trans(tl.load(w_high + w_at))
        if FINE:
            total = tl.dot(_rest(value, patch), w_gradient, total)
            total = tl.dot(patch, tl.trans(tl.load(w_low + w_at)), total)
        total = tl.dot(patch, w_gradient, total)
    _finish(total, bias, y, chosen, m, n, M, N, client, b_client, b_out, BM, BN, POOL, BIASED)


@triton.jit
def weight_gradient(
    x,
    d,
    chosen,
    out,
    M,
    N,
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
    KD: tl.constexpr,
    C: tl.constexpr,
    KW: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    STRIDE: tl.constexpr,
    BK: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    SPLITS: tl.constexpr,
    POOL: tl.constexpr,
    ONES: tl.constexpr,
    FINE: tl.constexpr,
):
    """As `programs.weight_gradient`, of rows that are d's own: with POOL each stands for the chosen corner of a window.

    With ONES the number after a patch is one: the gradient of its weight is the gradient of the bias.
    """
    client = (tl.program_id(2) // SPLITS).to(tl.int64)
    split = tl.program_id(2) % SPLITS
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    begin, end = split * share, tl.minimum(M, (split + 1) * share)
    x += client * x_client
    d += client * d_client
    chosen += client * M * N
    columns = _offsets(k, C, KW, x_channel, x_row, x_column)
    total = tl.zeros((BK, BN), dtype=tl.float32)
    STEP: tl.constexpr = 2 if POOL else 1
    for start in range(begin, end, BM):
        m = start + tl.arange(0, BM)
        sample, row, column = _place(tl.minimum(m, M - 1), OH, OW, False)
        begins = sample * x_batch + (STEP * STRIDE) * (row * x_row + column * x_column)
        real = (m < end)[:, None] & (n < N)[None, :]
        place = sample * d_batch + row * d_row + column * d_column
        slopes = tl.load(d + (place[:, None] + (n * d_channel)[None, :]), mask=real, other=0.0)
        if POOL:
            corner = tl.load(chosen + (m[:, None] * N + n[None, :]), mask=real, other=NONE)
        for j in tl.static_range(STEP * STEP):
            pixel = begins + (j // STEP) * (STRIDE * x_row) + (j % STEP) * (STRIDE * x_column)
            value = tl.load(x + (columns[:, None] + pixel[None, :]), mask=(k < KD)[:, None], other=0.0)
            if ONES:
                value = tl.where((k == KD)[:, None], 1.0, value)
            w_gradient = slopes
            if POOL:
                w_gradient = tl.where(corner == j, slopes, 0.0)
            patch, big = value.to(tl.bfloat16), w_gradient.to(tl.bfloat16)
            if FINE:
                total = tl.dot(patch, _rest(w_gradient, big), total)
                total = tl.dot(_rest(value, patch), big, total)
            total = tl.dot(patch, big, total)
    clients = tl.num_programs(2) // SPLITS
    place = out + ((split * clients + client) * N + n) * KP
    tl.store(place[None, :] + k[:, None], total, mask=(n < N)[None, :] & (k < KP)[:, None])
