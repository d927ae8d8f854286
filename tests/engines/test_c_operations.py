"""Every operation in C computes what torch's computes."""

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import grad
from torch.nn import functional as F

from fedbraid.engines.codegen.c_code import generate_c
from fedbraid.engines.codegen.c_operations import OPERATIONS
from fedbraid.engines.codegen.libraries import library
from fedbraid.engines.codegen.machine import CompiledTraining
from fedbraid.engines.codegen.trace import record

# x, y [5, 7]; long [3, 130]; many [20, 40]; i whole numbers [4, 2] below 5; m a mask [5, 7]
FUNCTIONS = {
    "arithmetic": lambda x, y, **_: x + y * 2 - x / (y.abs() + 1) + torch.sub(x, y, alpha=3) - (1 - x),
    "negated and scaled by others": lambda x, y, **_: torch.addcmul(-x, x, y, value=2) + torch.addcdiv(x, y, x.exp()),
    "reversed and scaled": lambda x, y, **_: torch.rsub(x, y, alpha=2) + torch.add(x, y, alpha=-0.5),
    "whole numbers divided": lambda i, **_: i / 3 + i.sum() / 7,
    "broadcast": lambda x, y, **_: x[:, :1] * y[0] + x[2, 3],
    "transposed": lambda x, y, **_: (x.T * y.T + x.T[3]).T,
    "exp log sqrt": lambda x, **_: x.exp() + (x.abs() + 0.1).log() + x.abs().sqrt() + x.expm1() + x.abs().log1p(),
    "powers": lambda x, **_: x**2 + x**3 + (x.abs() + 1) ** 0.5 + (x.abs() + 1) ** -1 + (x.abs() + 1) ** 1.7 + 2**x,
    "powers of tensors": lambda x, y, **_: (x.abs() + 0.1) ** y,
    "rsqrt reciprocal": lambda x, **_: (x.abs() + 1).rsqrt() + (x.abs() + 1).reciprocal(),
    "clamped": lambda x, **_: (
        x.clamp(-0.5, 0.5) + x.clamp(min=0.1) + x.clamp(max=0.2) + x.clamp_min(0.3) - x.clamp_max(0.4)
    ),
    "clamped by tensors": lambda x, y, **_: torch.clamp(x, min=y) + torch.clamp(x, max=y),
    "extremes": lambda x, y, **_: torch.maximum(x, y) * 2 + torch.minimum(x, y),
    "comparisons": lambda x, y, **_: sum((f(x, y) * k for k, f in enumerate(COMPARED, 1)), torch.zeros_like(x)),
    "compared to numbers": lambda x, **_: (x > 0.1) * 1.0 + (x <= -0.1) * 2.0 + (x == 0) * 4.0,
    "whole numbers compared": lambda i, **_: ((i > 2) & (i != 4)).to(torch.int64) + (i == 1) * 5,
    "chosen": lambda x, y, m, **_: torch.where(m, x, y) + torch.where(m, 1.0, x) + x.masked_fill(m, -3.0),
    "logic": lambda x, y, m, **_: (
        (m & (x > 0)) * 1.0
        + (m | (y > 0)) * 2.0
        + (~m) * 4.0
        + m.logical_not() * 8.0
        + m.logical_and(x > 0).logical_or(y > 0)
    ),
    "bits": lambda i, **_: (((i * 77777 ^ (i >> 1)) * 0x45D9F3B) & 0xFFFFFFFF | 5) ^ (i & 3),
    "activations": lambda x, **_: F.relu(x) + x.sigmoid() + x.tanh() + F.softplus(x) + F.softplus(x, 30),
    "their derivatives": lambda x, **_: grad(lambda x: (F.relu(x) + x.sigmoid() + x.tanh() + F.softplus(x)).sum())(x),
    "sums": lambda x, long, **_: x.sum() + long.sum() + x.sum(0, keepdim=True) + x.sum(1, keepdim=True),
    "sums of long rows": lambda long, **_: torch.cat([long.sum(1), long.T.sum(0), long[:, ::2].sum(1)]),
    "sums of long columns": lambda long, **_: long.T.contiguous().sum(0) + long.sum(),
    "counted": lambda m, i, **_: m.sum(0)[:2] + i.sum(0),
    "means": lambda x, long, **_: x.mean() + long.mean(1).sum() + x.mean(0),
    "largest": lambda x, long, **_: x.amax(1, keepdim=True) + x.amin(0) + long.amax(),
    "where the largest is": lambda x, i, **_: x.argmax(1, keepdim=True) + x.T.argmax(1) + i.argmax(0).sum(),
    "where the largest of equal ones is": lambda x, **_: (x > 0).to(x.dtype).argmax(1),
    "where no number is": lambda x, **_: torch.where(x > 0.5, torch.nan, x).argmax(1),
    "norms": lambda x, long, **_: x.norm() + long.norm(dim=1).sum() + torch.linalg.vector_norm(x, dim=0),
    "logsumexp": lambda x, long, **_: (
        x.logsumexp(1).sum() + x.logsumexp(0, keepdim=True) + (900 * long).logsumexp(1)[0]
    ),
    "logsumexp of nothing": lambda x, **_: torch.where(x > 0, x, -torch.inf)[:, :1].logsumexp(1),
    "softmax": lambda x, **_: x.softmax(1) + x.log_softmax(0) + (500 * x).log_softmax(1),
    "softmax backward": lambda x, y, **_: grad(lambda x: (y * (x.softmax(1) + x.log_softmax(0))).sum())(x),
    "small products": lambda x, y, **_: x @ y.T + x[:, :5] @ x[:, 2:],
    "products by a vector": lambda x, y, **_: x @ y[0] + x[0] @ y[1] + (x[:, :1] @ y[:1, :1])[:, 0],
    "large products": lambda many, **_: many @ many.T,
    "large products of transposed ones": lambda many, **_: many.T @ many + (many[:, :30].T @ many)[0, 0],
    "large products with gaps": lambda many, **_: many[:, 5:25] @ many[:, 10:30].T + many[:, ::2] @ many[:, 1::2].T,
    "large products of large ones": lambda many, **_: (many.T @ many).T @ (many.T @ many),
    "added products": lambda x, y, many, **_: F.linear(x, y, y[:, 0]) + F.linear(many, many, many[:, 0])[:5, :5],
    "products in batches": lambda x, y, **_: torch.bmm(x.expand(3, 5, 7), y.T.expand(3, 7, 5)),
    "joined": lambda x, y, **_: torch.cat([x, y[:, 1:], x.T[:5, :2]], 1),
    "stacked": lambda x, y, **_: torch.stack([x, y, x * y], 1),
    "indexed": lambda x, i, **_: x[i] + x[i, i].unsqueeze(-1),
    "indexed from the end": lambda x, i, **_: x[i - 5],
    "selected": lambda x, i, **_: x.index_select(0, i[:, 0]) + x.T.index_select(1, i[:, 1]).T,
    "gathered": lambda x, i, **_: x.gather(1, i[:, :1].expand(4, 2)) + x.gather(0, i),
    "embedded": lambda x, i, **_: F.embedding(i, x),
    "embedded backward": lambda x, i, **_: grad(lambda x: F.embedding(i, x, padding_idx=1).square().sum())(x),
    "diagonal": lambda x, **_: x.diagonal() * 2 + grad(lambda x: x.diagonal(1).square().sum())(x)[:, 1],
    "parts": lambda x, **_: grad(lambda x: x[1].square().sum() + x[:, 2:6:2].exp().sum() + x[3, 4])(x),
    "filled": lambda x, **_: torch.zeros_like(x) + torch.ones_like(x) * 2 + torch.full_like(x, 3) + x.new_zeros(7),
    "written in place": lambda x, y, **_: in_place(x, y),
    "kinds of numbers": lambda x, i, **_: x[:4, :2].to(torch.int64) * i + (x[:4, :2] > 0).to(x.dtype),
    "not finite": lambda x, **_: (x / 0).clamp(-2, 2) + (x * torch.nan).relu() + torch.where(x > 0, torch.inf, 0.0),
}
COMPARED = [torch.lt, torch.le, torch.gt, torch.ge, torch.eq, torch.ne]


def in_place(x: Tensor, y: Tensor) -> Tensor:
    z = x.clone()
    z += y
    z[0].mul_(3).clamp_(min=-1)
    z[:, 1:3].zero_()
    z.masked_fill_(z > 2, 5)
    table = torch.zeros(5, 7, dtype=x.dtype)
    table[1].copy_(x[0])
    return z + table


def inputs(dtype: torch.dtype) -> dict[str, Tensor]:
    torch.manual_seed(1)
    x, y, long, many = (torch.randn(*shape, dtype=dtype) for shape in ((5, 7), (5, 7), (3, 130), (20, 40)))
    return {"x": x, "y": y, "long": long, "many": many, "i": torch.randint(5, (4, 2)), "m": torch.rand(5, 7) > 0.5}


@cache
def by_both(dtype: torch.dtype) -> dict[str, tuple[Tensor, Tensor]]:
    """What C and torch make of every function, in one library."""
    given = inputs(dtype)
    expected = {name: f(**given) for name, f in FUNCTIONS.items()}
    state = [torch.zeros_like(t, memory_format=torch.contiguous_format) for t in expected.values()]

    def step(*tensors: Tensor) -> list[Tensor]:
        named = dict(zip(given, tensors[len(state) + 1 :], strict=True))
        return [f(**named) for f in FUNCTIONS.values()]

    every = [*state, torch.zeros(1), *given.values()]
    source = generate_c(record(step, every), len(state), 1, OPERATIONS)
    order = [*source.carried, *source.planned, *source.fixed]
    memory = [*(every[i] for i in order), *source.constants]
    run = CompiledTraining(library(source.text, 120), source.scratch, 1)
    run(np.array([0]), np.array([1]), np.array([[t.data_ptr() for t in memory]]))
    return {name: (got, want) for (name, want), got in zip(expected.items(), state, strict=True)}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "single"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_operation(name, dtype):
    got, expected = by_both(dtype)[name]
    rtol = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(got, expected, rtol=rtol, atol=rtol, equal_nan=True)


def test_every_operation_that_is_written_as_c_is_tried_here():
    given = inputs(torch.float64)
    writer = record(
        lambda *tensors: [f(**dict(zip(given, tensors, strict=True))) for f in FUNCTIONS.values()], [*given.values()]
    )
    names = {call.function._schema.name.removeprefix("aten::") for call in writer.calls}
    asked = names | {name.removesuffix("_") for name in names}
    others = {"fill", "full", "ones", "new_ones", "new_full"}  # written as those are that are tried
    assert {name for name in OPERATIONS if "empty" not in name} - asked <= others
