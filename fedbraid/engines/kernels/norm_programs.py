"""Triton programs for GroupNorm: one program for each group of each sample of each client.

Pixels of a group are read in tiles [pixels, channels] in place, and written channels-last, as convolutions expect
them. Statistics are sums about a number of each place's own, its first: sums of squares about 0 would lose what is left
of float32 where the mean is large.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def normalise(
    x,
    gamma,
    beta,
    y,
    stats,
    C,
    PIXELS,
    GROUPS,
    width,  # channels of a group: the compiler learns from it what can be read in one go
    eps,
    x_client,
    x_batch,
    x_channel,
    x_pixel,
    gamma_client,
    beta_client,
    BP: tl.constexpr,
    BC: tl.constexpr,
    RELU: tl.constexpr,
):
    """y = gamma * (x - mean) / deviation + beta (and ReLU); stats [client, sample, group] = mean, 1 / deviation."""
    group, client = tl.program_id(0) % GROUPS, tl.program_id(1).to(tl.int64)
    sample, samples = (tl.program_id(0) // GROUPS).to(tl.int64), tl.num_programs(0) // GROUPS
    c = tl.arange(0, BC)
    p = tl.arange(0, BP)
    x += client * x_client + sample * x_batch + group * width * x_channel
    offsets = p[:, None] * x_pixel + (c * x_channel)[None, :]
    real = (p < PIXELS)[:, None] & (c < width)[None, :]
    centre = tl.load(x + offsets, mask=real, other=0.0)
    total, squares = tl.zeros((BP, BC), dtype=tl.float32), tl.zeros((BP, BC), dtype=tl.float32)
    for start in range(BP, PIXELS, BP):
        mask = (start + p < PIXELS)[:, None] & (c < width)[None, :]
        value = tl.load(x + offsets + start * x_pixel, mask=mask, other=0.0)
        away = tl.where(mask, value - centre, 0.0)
        total += away
        squares += away * away
    # Each position of the tile has a mean and a sum of squares about it; combine these into the group's (Chan et al.):
    # the spread of the group is the spread within positions plus that of the positions' means.
    count = tl.where(p < PIXELS, (PIXELS - 1 - p) // BP + 1, 1).to(tl.float32)[:, None]
    shift = total / count
    own = tl.where(real, centre + shift, 0.0)
    size = width * PIXELS
    mean = tl.sum(tl.where(real, own * (count / size), 0.0))
    spread = tl.where(real, squares - total * shift + count * (own - mean) * (own - mean), 0.0)
    rate = 1.0 / tl.sqrt(tl.sum(spread) / size + eps)
    place = stats + ((client * samples + sample) * GROUPS + group) * 2
    tl.store(place, mean)
    tl.store(place + 1, rate)
    channel = group * width + c
    scale = tl.load(gamma + client * gamma_client + channel, mask=c < width, other=0.0)[None, :] * rate
    level = tl.load(beta + client * beta_client + channel, mask=c < width, other=0.0)[None, :]
    y += (client * samples + sample) * PIXELS * C
    for start in range(0, PIXELS, BP):
        mask = (start + p < PIXELS)[:, None] & (c < width)[None, :]
        value = tl.load(x + offsets + start * x_pixel, mask=mask, other=0.0)
        made = (value - mean) * scale + level
        if RELU:
            made = tl.maximum(made, 0.0)
        tl.store(y + (start + p)[:, None] * C + channel[None, :], made, mask=mask)


@triton.jit
def _received(d, value, mean, rate, gamma, beta, mask, RELU: tl.constexpr):
    """The gradient that reaches the norm's outputs, and its inputs with mean 0 and deviation 1."""
    w_gradient = tl.load(d, mask=mask, other=0.0)
    unit = tl.where(mask, (value - mean) * rate, 0.0)
    if RELU:
        w_gradient = tl.where((value - mean) * (gamma * rate) + beta > 0, w_gradient, 0.0)
    return w_gradient, unit


@triton.jit
def slopes(
    d,
    x,
    gamma,
    beta,
    stats,
    dx,
    sums,
    C,
    PIXELS,
    GROUPS,
    width,  # channels of a group: the compiler learns from it what can be read in one go
    d_client,
    d_batch,
    d_channel,
    d_pixel,
    x_client,
    x_batch,
    x_channel,
    x_pixel,
    gamma_client,
    beta_client,
    BP: tl.constexpr,
    BC: tl.constexpr,
    RELU: tl.constexpr,
):
    """dx, and each sample's part of the gradients of gamma and beta: sums [gamma or beta, client, sample, C]."""
    group, client = tl.program_id(0) % GROUPS, tl.program_id(1).to(tl.int64)
    sample, samples = (tl.program_id(0) // GROUPS).to(tl.int64), tl.num_programs(0) // GROUPS
    c = tl.arange(0, BC)
    p = tl.arange(0, BP)
    channel = group * width + c
    x += client * x_client + sample * x_batch + group * width * x_channel
    d += client * d_client + sample * d_batch + group * width * d_channel
    x_at = p[:, None] * x_pixel + (c * x_channel)[None, :]
    d_at = p[:, None] * d_pixel + (c * d_channel)[None, :]
    scale = tl.load(gamma + client * gamma_client + channel, mask=c < width, other=0.0)
    level = tl.load(beta + client * beta_client + channel, mask=c < width, other=0.0)
    place = stats + ((client * samples + sample) * GROUPS + group) * 2
    mean, rate = tl.load(place), tl.load(place + 1)
    for_gamma, for_beta = tl.zeros((BP, BC), dtype=tl.float32), tl.zeros((BP, BC), dtype=tl.float32)
    for start in range(0, PIXELS, BP):
        mask = (start + p < PIXELS)[:, None] & (c < width)[None, :]
        value = tl.load(x + x_at + start * x_pixel, mask=mask, other=0.0)
        at = d + d_at + start * d_pixel
        w_gradient, unit = _received(at, value, mean, rate, scale[None, :], level[None, :], mask, RELU)
        for_gamma += w_gradient * unit
        for_beta += w_gradient
    gammas, betas = tl.sum(for_gamma, axis=0), tl.sum(for_beta, axis=0)
    place = sums + (client * samples + sample) * C + channel
    tl.store(place, gammas, mask=c < width)
    tl.store(place + tl.num_programs(1).to(tl.int64) * samples * C, betas, mask=c < width)
    size = width * PIXELS
    along, level_of_all = tl.sum(gammas * scale) / size, tl.sum(betas * scale) / size
    dx += (client * samples + sample) * PIXELS * C
    for start in range(0, PIXELS, BP):
        mask = (start + p < PIXELS)[:, None] & (c < width)[None, :]
        value = tl.load(x + x_at + start * x_pixel, mask=mask, other=0.0)
        at = d + d_at + start * d_pixel
        w_gradient, unit = _received(at, value, mean, rate, scale[None, :], level[None, :], mask, RELU)
        made = rate * (w_gradient * scale[None, :] - level_of_all - unit * along)
        tl.store(dx + (start + p)[:, None] * C + channel[None, :], made, mask=mask)
