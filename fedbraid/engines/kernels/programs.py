"""Triton programs for convolutions of many clients: one matrix product for each client.

A client's convolution is a product of patches [M, KD] and weights [KD, N]: a row for every output pixel, a column for
every output channel, and KD = taps x channels numbers in a patch. Patches are gathered on the way and never written;
the address of a number in a patch is its pixel's plus its tap's, since inputs are padded first. These programs are for
channels in multiples of 16, of which every step takes some of one tap; `few_programs` has those for the others.

Numbers are split into a bfloat16 and the bfloat16 of what is left, and three products of these give what float32 would
to about 4e-6: tensor cores multiply bfloat16 at twice the rate of TF32, and can read them along either axis. Without
FINE there is no second bfloat16 and one product.

With POOL the rows come in fours, the pixels of one 2x2 window, and only the largest of each four is written: the
convolution, max pooling and ReLU of most small networks in one go.

Launches are few, since on small networks they cost more than the arithmetic: whatever a product needs is read as it
lies (programs take strides) and written once, split, padded and in the product's order.
"""

from __future__ import annotations

import triton
import triton.language as tl

NONE = tl.constexpr(4)
"""The corner of a window that ReLU blocked: no pixel receives its gradient."""


@triton.jit
def _put(high, low, at, value, real, FINE: tl.constexpr):
    """Write `value` as high + low, or its high half alone."""
    one = value.to(tl.bfloat16)
    tl.store(high + at, one, mask=real)
    if FINE:
        tl.store(low + at, (value - one.to(tl.float32)).to(tl.bfloat16), mask=real)


@triton.jit
def _place(m, OH, OW, POOL: tl.constexpr):
    """Sample, row and column of each row of patches; OH and OW are the sides of the output."""
    if POOL:
        window, corner = m // 4, m % 4
        line = window // OW
        sample = line // OH
        row, column = 2 * (line - sample * OH) + corner // 2, 2 * (window - line * OW) + corner % 2
    else:
        line = m // OW
        sample = line // OH
        row, column = line - sample * OH, m - line * OW
    return sample, row, column


@triton.jit
def _pixels(m, OH, OW, s_batch, s_row, s_column, POOL: tl.constexpr):
    """Offset at which the patch of each row begins (64 bits: a batch may exceed 2**31 numbers)."""
    sample, row, column = _place(m, OH, OW, POOL)
    return sample.to(tl.int64) * s_batch + row * s_row + column * s_column


@triton.jit
def weights(
    w,
    high,
    low,
    N,
    KD,
    KP,
    C,
    TAPS,
    to_client,
    w_client,
    w_out,
    w_channel,
    w_tap,
    TURNED: tl.constexpr,
    BLOCK: tl.constexpr,
    FINE: tl.constexpr,
):
    """Weights [client, out, channel, tap], wherever they lie, as [client, out, tap, channel], split and zeros to KP.

    TURNED takes the taps from the last to the first, as the gradient of the inputs wants them.
    """
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = at // KP
    k = at - n * KP
    tap = k // C
    channel = k - tap * C
    if TURNED:
        tap = TAPS - 1 - tap
    real = n < N
    place = client * w_client + n.to(tl.int64) * w_out + channel.to(tl.int64) * w_channel + tap * w_tap
    value = tl.load(w + place, mask=real & (k < KD), other=0.0)
    _put(high, low, client * to_client + at, value, real, FINE)


@triton.jit
def images(
    x,
    chosen,
    high,
    low,
    M,
    N,
    OH,
    OW,
    HEIGHT,
    WIDTH,
    around,
    to_client,
    x_client,
    x_batch,
    x_channel,
    x_row,
    x_column,
    STRIDE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    POOL: tl.constexpr,
    FINE: tl.constexpr,
):
    """x [client, sample, n, OH, OW], wherever it lies, as [client, sample, HEIGHT, WIDTH, n], split.

    Its pixels lie STRIDE apart, `around` from the edges, with zeros between and around them. With POOL (and STRIDE 2)
    each is put at that corner of its 2x2 window which was chosen.
    """
    client = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    sample, row, column = _place(m, HEIGHT, WIDTH, False)
    row, column = row - around, column - around
    down, right = row // STRIDE, column // STRIDE
    inside = (row >= 0) & (column >= 0) & (down < OH) & (right < OW) & (m < M)
    if not POOL:
        inside = inside & (row % STRIDE == 0) & (column % STRIDE == 0)
    mine = inside[:, None] & (n < N)[None, :]
    if POOL:
        samples = M // (HEIGHT * WIDTH)
        window = ((client * samples + sample) * OH + down) * OW + right
        corner = tl.load(chosen + window[:, None] * N + n[None, :], mask=mine, other=NONE)
        mine = mine & (corner == (row % 2 * 2 + column % 2)[:, None])
    place = client * x_client + sample.to(tl.int64) * x_batch + down * x_row + right * x_column
    value = tl.load(x + place[:, None] + (n * x_channel)[None, :], mask=mine, other=0.0)
    place = client * to_client + m.to(tl.int64)[:, None] * N + n[None, :]
    _put(high, low, place, value, (m < M)[:, None] & (n < N)[None, :], FINE)


@triton.jit
def _finish(
    total,
    bias,
    y,
    chosen,
    m,
    n,
    M,
    N,
    client,
    b_client,
    b_out,
    BM: tl.constexpr,
    BN: tl.constexpr,
    POOL: tl.constexpr,
    BIASED: tl.constexpr,
):
    """Rows m and columns n of a convolution's outputs: the bias, and with POOL what pooling and ReLU leave of them."""
    if BIASED:
        total += tl.load(bias + client * b_client + tl.minimum(n, N - 1) * b_out)[None, :]
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
    w_client,
    b_client,
    b_out,
    STRIDE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,  # a divisor of C: every step stays within one tap
    POOL: tl.constexpr,
    BIASED: tl.constexpr,
    FINE: tl.constexpr,
):
    """y[client, m, n] = bias[client, n] + sum over k of patch[client, m, k] * w[client, n, k]; inputs channels-last."""
    client = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = tl.minimum(m, M - 1)  # rows beyond the last repeat it and are not written
    begins = client * x_client + _pixels(inside, OH, OW, x_batch, x_row * STRIDE, x_column * STRIDE, POOL)
    rows = client * w_client + tl.minimum(n, N - 1) * KD
    step = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    # BK divides C, so a step stays within one tap: its offset is a scalar, and no division per number is needed.
    for start in range(0, KD, BK):
        tap = start // C
        offset = (tap // KW) * x_row + (tap % KW) * x_column + (start - tap * C)
        at = begins[:, None] + (offset + step)[None, :]
        w_at = rows[:, None] + (start + step)[None, :]
        patch, w_gradient = tl.load(high + at), tl.trans(tl.load(w_high + w_at))
        if FINE:
            total = tl.dot(tl.load(low + at), w_gradient, total)
            total = tl.dot(patch, tl.trans(tl.load(w_low + w_at)), total)
        total = tl.dot(patch, w_gradient, total)
    _finish(total, bias, y, chosen, m, n, M, N, client, b_client, b_out, BM, BN, POOL, BIASED)


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
    KP,
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
    SUMMED: tl.constexpr,
    FINE: tl.constexpr,
):
    """out[split, client, n, k] = sum over the split's rows of d[m, n] * patch[m, k], in rows of KP.

    With SUMMED the programs after those of k < KD write the sums of d itself there: the gradient of the bias.
    """
    client = (tl.program_id(2) // SPLITS).to(tl.int64)
    split = tl.program_id(2) % SPLITS
    first = tl.program_id(0) * BK
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    columns = tl.arange(0, BK)
    begin, end = split * share, tl.minimum(M, (split + 1) * share)
    d_high += client * d_client
    d_low += client * d_client
    total = tl.zeros((BN, BK), dtype=tl.float32)
    if SUMMED:  # noqa: SIM102 (this one is decided by the compiler)
        if first >= KD:
            sums = tl.zeros((BN,), dtype=tl.float32)
            for start in range(begin, end, BM):
                m = start + tl.arange(0, BM)
                at = _pixels(tl.minimum(m, M - 1), OH, OW, d_batch, d_row, d_column, False)[:, None] + n[None, :]
                real = (m < end)[:, None] & (n < N)[None, :]
                value = tl.load(d_high + at, mask=real, other=0.0).to(tl.float32)
                if FINE:
                    value += tl.load(d_low + at, mask=real, other=0.0).to(tl.float32)
                sums += tl.sum(value, axis=0)
            total += sums[:, None]
            end = begin  # and no products
    tap = first // C
    offset = (tap // KW) * x_row + (tap % KW) * x_column + (first - tap * C) + client * x_client
    for start in range(begin, end, BM):
        m = start + tl.arange(0, BM)
        inside = tl.minimum(m, M - 1)
        begins = _pixels(inside, OH, OW, x_batch, x_row * STRIDE, x_column * STRIDE, False)
        slopes = _pixels(inside, OH, OW, d_batch, d_row, d_column, False)
        at = (begins + offset)[:, None] + columns[None, :]
        d_at = slopes[:, None] + n[None, :]
        real = (m < end)[:, None]
        if N % BN != 0:
            real = real & (n < N)[None, :]
        patch, big = tl.load(high + at), tl.trans(tl.load(d_high + d_at, mask=real, other=0.0))
        if FINE:
            total = tl.dot(tl.trans(tl.load(d_low + d_at, mask=real, other=0.0)), patch, total)
            total = tl.dot(big, tl.load(low + at), total)
        total = tl.dot(big, patch, total)
    clients = tl.num_programs(2) // SPLITS
    place = out + ((split * clients + client) * N + n) * KP
    real = (n < N)[:, None] & (first + columns < KP)[None, :]
    tl.store(place[:, None] + (first + columns)[None, :], total, mask=real)


@triton.jit
def combine(
    parts, w_gradient, bias, N, C, TAPS, KP, SPLITS, to_client, b_client, BLOCK: tl.constexpr, BIASED: tl.constexpr
):
    """The splits of `weight_gradient`, summed in their order: slope [client, n, channel, tap] and bias [client, n]."""
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    size = N * C * TAPS
    n = at // (C * TAPS)
    rest = at - n * C * TAPS
    channel = rest // TAPS
    k = (rest - channel * TAPS) * C + channel
    if BIASED:  # the last numbers of all
        n = tl.where(at < size, n, at - size)
        k = tl.where(at < size, k, C * TAPS)
    place = (client * N + n) * KP + k
    step = tl.num_programs(1).to(tl.int64) * N * KP
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, SPLITS, 8):  # eight loads under way at a time
        for j in tl.static_range(8):
            total += tl.load(parts + place + j * step, mask=(n < N) & (start + j < SPLITS), other=0.0)
        place += 8 * step
    tl.store(w_gradient + client * to_client + at, total, mask=at < size)
    if BIASED:
        tl.store(bias + client * b_client + (at - size), total, mask=(at >= size) & (n < N))
