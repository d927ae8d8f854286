"""Pooling and ReLU in one pass for the loop on a CPU: torch's numbers to the bit, or torch's functions."""

from itertools import product

import pytest
import torch
from covering import covering
from helpers import advanced, federation, held, identical, toy
from torch import nn
from torch.nn.functional import max_pool2d, relu

from fedbraid.engines.codegen.libraries import NotCompiled
from fedbraid.engines.kernels import pool
from fedbraid.engines.kernels.pool import LoopConv2d, MaxPoolReLU, Pool, for_loops
from fedbraid.models import build
from fedbraid.models.convolutional import PooledConv2d

CAP = 60.0
SPECIAL = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0])


def drawn(shape, dtype, *, special=False):
    """Images with their channels innermost, and with many equal numbers."""
    rng = torch.Generator().manual_seed(sum(shape))
    x = torch.randint(-3, 4, shape, generator=rng).to(dtype)
    if special:
        which = torch.randint(0, 2 * len(SPECIAL), shape, generator=rng)
        x = torch.where(which < len(SPECIAL), SPECIAL.to(dtype)[which.clamp(max=len(SPECIAL) - 1)], x)
    return x.contiguous(memory_format=torch.channels_last)


def there_and_back(f, x, dy):
    x = x.clone().requires_grad_()
    y = f(x)
    (dx,) = torch.autograd.grad(y, x, dy)
    return y.detach(), dx


SIZES = [(2, 2), (8, 8), (5, 8), (8, 7), (3, 9)]
NUMBERS = list(product((False, True), (torch.float32, torch.float64)))
"""Whether there are special ones among them, and their type."""


@pytest.mark.parametrize(("size", "channels", "numbers"), covering(SIZES, [1, 3, 6, 16, 64], NUMBERS))
def test_it_is_torchs_to_the_bit(size, channels, numbers):
    special, dtype = numbers
    x = drawn((3, channels, *size), dtype, special=special)
    f = Pool.of(channels, dtype, CAP)
    dy = torch.randn(3, channels, size[0] // 2, size[1] // 2, dtype=dtype, generator=torch.Generator().manual_seed(1))
    ours = there_and_back(lambda x: MaxPoolReLU.apply(x, f), x, dy)
    theirs = there_and_back(lambda x: relu(max_pool2d(x, 2)), x, dy)
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
        assert a.is_contiguous(memory_format=torch.channels_last)


def test_it_has_no_second_derivative():
    f, x = Pool.of(3, torch.float64, CAP), drawn((2, 3, 4, 4), torch.float64).requires_grad_()
    dy = torch.ones(2, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    (dx,) = torch.autograd.grad(MaxPoolReLU.apply(x, f), x, dy, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


class Doubled(PooledConv2d):
    """A layer that only looks like one."""

    def forward(self, x):
        return 2 * super().forward(x)


def test_which_layers_take_it():
    network = nn.Sequential(PooledConv2d(1, 6, 3), nn.Conv2d(6, 6, 3), Doubled(6, 6, 3), PooledConv2d(6, 2, 3).half())
    fast = for_loops(network, CAP)
    assert [type(layer) for layer in fast] == [LoopConv2d, nn.Conv2d, Doubled, PooledConv2d]
    assert type(network[0]) is PooledConv2d, "the original stays as it is"
    assert all(torch.equal(fast.state_dict()[name], value) for name, value in network.state_dict().items())


@pytest.mark.parametrize("last", [True, False], ids=["channels last", "channels first"])
def test_images_that_lie_otherwise_go_to_torch(last, monkeypatch):
    network = PooledConv2d(3, 6, 3).double()
    fast, x = for_loops(network, CAP), torch.randn(2, 3, 9, 9, dtype=torch.float64)
    if last:
        x, fast = x.contiguous(memory_format=torch.channels_last), fast.to(memory_format=torch.channels_last)
    asked = []
    monkeypatch.setattr(MaxPoolReLU, "apply", lambda x, f: asked.append(x) or relu(max_pool2d(x, 2)))
    assert torch.allclose(fast(x), network(x), rtol=0, atol=1e-12)
    assert len(asked) == last


def test_without_a_compiler_it_is_torchs(tmp_path, monkeypatch, caplog):
    caplog.set_level("DEBUG", logger="fedbraid")
    monkeypatch.setenv("FEDBRAID_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    assert not any(isinstance(layer, LoopConv2d) for layer in for_loops(build("lenet", (1, 28, 28), 10), CAP).modules())
    assert "pooling is torch's, it cannot be compiled: there is no C compiler" in caplog.text


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("v > m", "v < m"),
        ("m <= 0 ? BLOCKED : at", "at"),
        ("at == 3", "at == 2"),
        ("lower, 0", "lower, 1"),
        ("- 1) * w * C, 0", "- 1) * w * C, 1"),
    ],
)
def test_a_program_that_came_out_wrong_is_refused(right, wrong, monkeypatch):
    assert right in pool.PROGRAM
    monkeypatch.setattr(pool, "PROGRAM", pool.PROGRAM.replace(right, wrong))
    with pytest.raises(NotCompiled, match="wrong program"):
        Pool.of(6, torch.float64, CAP)


@pytest.mark.parametrize("method", ["fedavg", "moon"])
def test_a_federation_of_the_loop_is_the_same_with_and_without_it(method, tmp_path, monkeypatch):
    settings = {"model": {"name": "lenet"}, "data": toy((20, 7, 13), (1, 17, 19)), "local": {"batch": 8}}
    fast = federation(method, engine={"kind": "loop"}, **settings)
    monkeypatch.setenv("FEDBRAID_CACHE", str(tmp_path))  # where no library is
    plain = federation(method, engine={"kind": "loop", "compile_seconds": 0.0}, **settings)
    for simulation, layers in ((fast, 2), (plain, 0)):
        job = simulation.engine.loop.jobs.get()
        simulation.engine.loop.jobs.put(job)
        assert sum(isinstance(layer, LoopConv2d) for layer in job.model.training.modules()) == layers
    assert identical(held(advanced(fast, 2)), held(advanced(plain, 2)))
