"""2x2 max pooling and ReLU in one pass, forward and backward, for the loop on a CPU.

torch pools, notes where from, writes zeros, scatters gradients into them, and runs ReLU on its own. Here one byte for
each output says which corner was the largest, and the way back writes each gradient once. Numbers are only picked, so
the outputs and gradients are torch's to the bit. Images must be channels-last; others go to torch.
"""

from __future__ import annotations

import copy
import ctypes
import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import max_pool2d, relu

from fedbraid.engines.codegen.libraries import NotCompiled, library
from fedbraid.models.convolutional import PooledConv2d

log = logging.getLogger("fedbraid")

TYPES = {torch.float32: ("float", "int32_t"), torch.float64: ("double", "int64_t")}
"""Each floating type in C, and an integer type of equal length, with which gradients are masked bit by bit."""

PROGRAM = """#include <stdint.h>
#include <string.h>
enum { C = %(channels)d, BLOCKED = 4 };
typedef %(real)s real;
typedef %(bits)s bits;

/* As torch has it: the first of equals, and the last that is not a number. */
#define CORNER(k, value) { real v = value; int more = v > m || v != v; m = more ? v : m; at = more ? k : at; }

void forward(int64_t n, int64_t h, int64_t w, const real *x, real *restrict y, uint8_t *restrict chosen) {
  for (int64_t i = 0; i < n; i++)
    for (int64_t r = 0; r < h / 2; r++) {
      const real *upper = x + (i * h + 2 * r) * w * C, *lower = upper + w * C;
      for (int64_t s = 0; s < w / 2; s++, upper += 2 * C, lower += 2 * C, y += C, chosen += C)
        for (int c = 0; c < C; c++) {
          real m = upper[c];
          bits at = 0;
          CORNER(1, upper[C + c])
          CORNER(2, lower[c])
          CORNER(3, lower[C + c])
          y[c] = m <= 0 ? 0 : m;
          chosen[c] = m <= 0 ? BLOCKED : at;
        }
    }
}

/* Gradients are only picked: with masks, since compilers are good at those. */
void backward(int64_t n, int64_t h, int64_t w, const bits *restrict dy, const uint8_t *restrict chosen, bits *dx) {
  for (int64_t i = 0; i < n; i++) {
    for (int64_t r = 0; r < h / 2; r++) {
      bits *upper = dx + (i * h + 2 * r) * w * C, *lower = upper + w * C;
      for (int64_t s = 0; s < w / 2; s++, upper += 2 * C, lower += 2 * C, dy += C, chosen += C)
        for (int c = 0; c < C; c++) {
          bits d = dy[c], at = chosen[c];
          upper[c] = d & -(at == 0);
          upper[C + c] = d & -(at == 1);
          lower[c] = d & -(at == 2);
          lower[C + c] = d & -(at == 3);
        }
      if (w %% 2) {
        memset(upper, 0, C * sizeof(bits));
        memset(lower, 0, C * sizeof(bits));
      }
    }
    if (h %% 2)
      memset(dx + (i * h + h - 1) * w * C, 0, w * C * sizeof(bits));
  }
}
"""


@dataclass(frozen=True, eq=False)
class Pool:
    """The compiled forward and backward functions for one number of channels and one type."""

    forward: Any
    backward: Any

    @staticmethod
    def of(channels: int, dtype: torch.dtype, cap: float) -> Pool:
        """Load the functions, compiling them within `cap` seconds if necessary. Raises NotCompiled."""
        real, bits = TYPES[dtype]
        path = library(PROGRAM % {"channels": channels, "real": real, "bits": bits}, cap)
        try:
            loaded = ctypes.CDLL(str(path))
        except OSError as error:
            raise NotCompiled(f"the library cannot be loaded ({error})") from error
        for f in (loaded.forward, loaded.backward):
            f.restype, f.argtypes = None, [*[ctypes.c_int64] * 3, *[ctypes.c_void_p] * 3]
        pool = Pool(loaded.forward, loaded.backward)
        if not pool.is_right(channels, dtype):
            raise NotCompiled("the compiler made a wrong program of it")
        return pool

    def is_right(self, channels: int, dtype: torch.dtype) -> bool:
        """Return whether the functions agree with torch on small images: some compilers miscompile such loops."""
        numbers = torch.randn(2, 7, 5, channels, dtype=dtype, generator=torch.Generator().manual_seed(0)) - 1
        x = numbers.permute(0, 3, 1, 2).requires_grad_()
        with torch.enable_grad():
            ours, theirs = MaxPoolReLU.apply(x, self), relu(max_pool2d(x, 2))  # type: ignore[no-untyped-call]
        slopes = [torch.autograd.grad(y, x, theirs.detach() + 1)[0] for y in (ours, theirs)]
        return torch.equal(ours, theirs) and torch.equal(*slopes)


class MaxPoolReLU(torch.autograd.Function):
    """(images, functions) -> pooled images. No second derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pool: Pool) -> Tensor:
        n, c, h, w = x.shape
        y = _like(x, (n, c, h // 2, w // 2))
        chosen = torch.empty(y.numel(), dtype=torch.uint8)
        pool.forward(n, h, w, x.data_ptr(), y.data_ptr(), chosen.data_ptr())
        ctx.pool, ctx.shape = pool, x.shape
        ctx.save_for_backward(chosen)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (chosen,) = ctx.saved_tensors
        n, _, h, w = ctx.shape
        dy = dy.contiguous(memory_format=torch.channels_last)
        dx = _like(dy, ctx.shape)
        ctx.pool.backward(n, h, w, dy.data_ptr(), chosen.data_ptr(), dx.data_ptr())
        return dx, None


def _like(images: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=images.dtype, memory_format=torch.channels_last)


class LoopConv2d(PooledConv2d):
    """A convolution with fused pooling and ReLU for channels-last images; others use torch's operations."""

    pool: Pool

    def forward(self, x: Tensor) -> Tensor:
        x = nn.Conv2d.forward(self, x)
        if x.dtype != self.weight.dtype or not x.is_contiguous(memory_format=torch.channels_last):
            return relu(max_pool2d(x, 2))
        made: Tensor = MaxPoolReLU.apply(x, self.pool)  # type: ignore[no-untyped-call]
        return made


def for_loops(module: nn.Module, cap: float) -> nn.Module:
    """Return a copy of `module` with fused pooling on a CPU, or with torch's own if there is no C compiler."""
    module = copy.deepcopy(module)
    for layer in module.modules():
        if type(layer) is PooledConv2d and layer.weight.dtype in TYPES:
            try:
                pool = Pool.of(layer.out_channels, layer.weight.dtype, cap)
            except NotCompiled as reason:
                log.debug("pooling is torch's, it cannot be compiled: %s", reason)
                continue
            layer.__class__ = LoopConv2d
            layer.pool = pool  # type: ignore[assignment]
    return module
