"""Convolution for many clients as Triton programs: one matrix product for each client.

A client's convolution is a product of patches [M, KD] and weights [KD, N]: a row for every output pixel, a column for
every output channel, and KD = taps x channels numbers in a patch. Where channels are many, patches are gathered on the
way and never written; the address of a number in a patch is its pixel's plus its tap's, since inputs are padded first.
Where channels are few, `gather` writes the patches out, because short runs of memory would be read at a crawl.

Numbers are split into a bfloat16 and the bfloat16 of what is left, and three products of these give what float32 would
to about 4e-6: tensor cores multiply bfloat16 at twice the rate of TF32, and can read them along either axis.

With POOL the rows come in fours, the pixels of one 2x2 window, and only the largest of each four is written: the
convolution, max pooling and ReLU of most small networks in one go.
"""

from __future__ import annotations

import triton
import triton.language as tl

NONE = tl.constexpr(4)
"""Where ReLU let nothing through, no corner of a window receives a gradient."""


@triton.jit
def _split(value):
    high = value.to(tl.bfloat16)
    return high, (value - high.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def split(x, high, low, TOTAL, BLOCK: tl.constexpr):
    """x as high + low."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = at < TOTAL
    one, two = _split(tl.load(x + at, mask=real).to(tl.float32))
    tl.store(high + at, one, mask=real)
    tl.store(low + at, two, mask=real)


@triton.jit
def gather(
    x,
    high,
    low,
    M,
    KD,
    KP,
    C,
    KW,
    OH,
    OW,
    x_client,
    x_batch,
    x_channel,
    x_row,
    x_column,
    STRIDE: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    POOL: tl.constexpr,
):
    """Patches [client, M, KP] written out, split; numbers beyond KD are zero."""
    client = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    k = tl.arange(0, BK)
    begins = x + client * x_client + _pixels(m, OH, OW, x_batch, x_row * STRIDE, x_column * STRIDE, POOL)
    tap = k // C
    offsets = (k - tap * C) * x_channel + (tap // KW) * x_row + (tap % KW) * x_column
    value = tl.load(begins[:, None] + offsets[None, :], mask=(m < M)[:, None] & (k < KD)[None, :], other=0.0)
    one, two = _split(value.to(tl.float32))
    place = client * M * KP + m.to(tl.int64)[:, None] * KP + k[None, :]
    real = (m < M)[:, None] & (k < KP)[None, :]
    tl.store(high + place, one, mask=real)
    tl.store(low + place, two, mask=real)


@triton.jit
def _pixels(m, OH, OW, s_batch, s_row, s_column, POOL: tl.constexpr):
    """Where the patch of each row begins; OH and OW are the sides of the output."""
    if POOL:
        window, corner = m // 4, m % 4
        line = window // OW
        column, row, sample = window - line * OW, line % OH, line // OH
        row, column = 2 * row + corner // 2, 2 * column + corner % 2
    else:
        line = m // OW
        column, row, sample = m - line * OW, line % OH, line // OH
    return sample.to(tl.int64) * s_batch + row * s_row + column * s_column


@triton.jit
def convolve(
    high,
    low,
    w_high,
    w_low,
    bias,
    y,
    chosen,
    M,
    N,
    KD,
    C,
    KW,
    OH,
    OW,
    x_client,
    x_batch,
    x_row,
    x_column,
    STRIDE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,  # a divisor of C: every step stays within one tap
    POOL: tl.constexpr,
    GATHERED: tl.constexpr,  # whether patches were written out, in rows
    BIASED: tl.constexpr,
):
    """y[client, m, n] = bias[client, n] + sum over k of patch[client, m, k] * w[client, n, k]; inputs channels-last."""
    client = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = tl.minimum(m, M - 1)  # rows beyond the last repeat it and are not written
    if GATHERED:
        begins = client * x_client + inside.to(tl.int64) * C
    else:
        begins = client * x_client + _pixels(inside, OH, OW, x_batch, x_row * STRIDE, x_column * STRIDE, POOL)
    rows = client * N * KD + tl.minimum(n, N - 1) * KD
    step = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, KD, BK):
        tap = start // C
        offset = (tap // KW) * x_row + (tap % KW) * x_column + (start - tap * C)
        at = begins[:, None] + (offset + step)[None, :]
        patch, rest = tl.load(high + at), tl.load(low + at)
        at = rows[:, None] + (start + step)[None, :]
        weights, remainder = tl.trans(tl.load(w_high + at)), tl.trans(tl.load(w_low + at))
        total = tl.dot(rest, weights, total)
        total = tl.dot(patch, remainder, total)
        total = tl.dot(patch, weights, total)
    if BIASED:
        total += tl.load(bias + client * N + tl.minimum(n, N - 1)).to(tl.float32)[None, :]
    if POOL:
        best, corner = tl.max(
            tl.reshape(total, (BM // 4, 4, BN)), axis=1, return_indices=True, return_indices_tie_break_left=True
        )
        window = tl.program_id(0) * (BM // 4) + tl.arange(0, BM // 4)
        place = client * (M // 4) * N + window.to(tl.int64)[:, None] * N + n[None, :]
        real = (window < M // 4)[:, None] & (n < N)[None, :]
        tl.store(y + place, tl.maximum(best, 0.0), mask=real)
        tl.store(chosen + place, tl.where(best > 0, corner, NONE).to(tl.int8), mask=real)
    else:
        place = y + client * M * N + m.to(tl.int64)[:, None] * N + n[None, :]
        tl.store(place, total, mask=(m < M)[:, None] & (n < N)[None, :])


@triton.jit
def weight_gradient(
    high,
    low,
    d_high,
    d_low,
    out,
    M,
    N: tl.constexpr,
    KD,
    C,
    KW,
    OH,
    OW,
    share,
    x_client,
    x_batch,
    x_row,
    x_column,
    d_client,
    d_batch,
    d_row,
    d_column,
    STRIDE: tl.constexpr,
    BK: tl.constexpr,  # a divisor of C
    BN: tl.constexpr,
    BM: tl.constexpr,
    SPLITS: tl.constexpr,
    GATHERED: tl.constexpr,  # whether patches and gradients were written out, in rows
):
    """out[split, client, n, k] = sum over the split's rows of d[m, n] * patch[m, k]."""
    client = (tl.program_id(2) // SPLITS).to(tl.int64)
    split = tl.program_id(2) % SPLITS
    first = tl.program_id(0) * BK
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    tap = first // C
    offset = (tap // KW) * x_row + (tap % KW) * x_column + (first - tap * C) + client * x_client
    columns = tl.arange(0, BK)
    total = tl.zeros((BN, BK), dtype=tl.float32)
    end = tl.minimum(M, (split + 1) * share)
    for start in range(split * share, end, BM):
        m = start + tl.arange(0, BM)
        inside = tl.minimum(m, M - 1)
        if GATHERED:
            begins, slopes = inside.to(tl.int64) * C, inside.to(tl.int64) * N
        else:
            begins = _pixels(inside, OH, OW, x_batch, x_row * STRIDE, x_column * STRIDE, False)
            slopes = _pixels(inside, OH, OW, d_batch, d_row, d_column, False)
        at = (begins + offset)[:, None] + columns[None, :]
        patch, rest = tl.load(high + at), tl.load(low + at)
        at = (slopes + client * d_client)[:, None] + n[None, :]
        real = (m < end)[:, None]
        if N % BN != 0:
            real = real & (n < N)[None, :]
        big, small = tl.load(d_high + at, mask=real, other=0.0), tl.load(d_low + at, mask=real, other=0.0)
        total = tl.dot(tl.trans(small), patch, total)
        total = tl.dot(tl.trans(big), rest, total)
        total = tl.dot(tl.trans(big), patch, total)
    clients = tl.num_programs(2) // SPLITS
    place = out + ((split * clients + client) * N + n) * KD
    tl.store(place[:, None] + (first + columns)[None, :], total, mask=(n < N)[:, None])


@triton.jit
def expand(d, chosen, high, low, TOTAL, N, BLOCK: tl.constexpr, BN: tl.constexpr):
    """[window, corner, n], split: each window's gradient at its chosen corner."""
    window = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    real = (window < TOTAL)[:, None] & (n < N)[None, :]
    place = window[:, None] * N + n[None, :]
    corner = tl.load(chosen + place, mask=real, other=4)
    one, two = _split(tl.load(d + place, mask=real, other=0.0))
    for j in tl.static_range(4):
        at = (4 * window + j)[:, None] * N + n[None, :]
        tl.store(high + at, tl.where(corner == j, one, 0.0), mask=real)
        tl.store(low + at, tl.where(corner == j, two, 0.0), mask=real)


@triton.jit
def unpool(d, chosen, high, low, OH, OW, N, pad, HEIGHT, WIDTH, BW: tl.constexpr, BN: tl.constexpr):
    """[image, row, column, n], split: each window's gradient at its chosen corner, `pad` zeros around the image."""
    line = tl.program_id(0)  # one row of one image
    row, image = line % HEIGHT - pad, (line // HEIGHT).to(tl.int64)
    at = tl.arange(0, BW)
    column = at - pad
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (row >= 0) & (row < 2 * OH) & (column >= 0) & (column < 2 * OW)
    inside = inside[:, None] & (n < N)[None, :]
    place = image * OH * OW * N + ((row // 2) * OW + column // 2)[:, None] * N + n[None, :]
    corner = tl.load(chosen + place, mask=inside, other=4)
    mine = inside & (corner == ((row % 2) * 2 + column % 2)[:, None])
    one, two = _split(tl.load(d + place, mask=mine, other=0.0))
    place = (image * HEIGHT + line % HEIGHT) * WIDTH * N + at[:, None] * N + n[None, :]
    real = (at < WIDTH)[:, None] & (n < N)[None, :]
    tl.store(high + place, one, mask=real)
    tl.store(low + place, two, mask=real)
