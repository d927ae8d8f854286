"""A traced program computes what the function computes, at every call."""

from dataclasses import dataclass

import pytest
import torch
from helpers import advanced, apart, federation, held
from networks import NETWORKS
from torch import Tensor
from torch.func import grad, vmap

from fedbraid.core.strand import Strand
from fedbraid.engines.codegen.trace import trace
from fedbraid.errors import UserError


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def assert_same_as_eager(function, *shapes) -> None:
    """Several calls with different values; results of earlier calls must not change later."""
    program = trace(function, [numbers(*shape) for shape in shapes])
    inputs = [[numbers(*shape) for shape in shapes] for _ in range(3)]
    traced = [program(*(t.clone() for t in tensors)) for tensors in inputs]
    for tensors, result in zip(inputs, traced, strict=True):
        for expected, got in zip(function(*tensors), result, strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_views_reductions_and_several_results():
    def function(x, y):
        a, b = x.unbind(0)
        values, order = y.sort(0)
        return [a * b, torch.stack([b, a]).mT, values[order], x, x.view(2, 3), (x + 0).expand(4, 2, 3)]

    assert_same_as_eager(function, (2, 3), (5,))


def test_constants_and_repeated_calls():
    def function(x):
        scale = torch.arange(3, dtype=x.dtype) + torch.tensor([1.0, 2.0, 3.0], dtype=x.dtype)
        return [x * scale, x * scale + x.exp() * x.exp()]

    assert_same_as_eager(function, (2, 3))


def test_inputs_that_alias_are_told_apart():
    x = numbers(3)
    program = trace(lambda a, b: [a - b], [x, x])
    a, b = numbers(3), numbers(3)
    torch.testing.assert_close(program(a, b)[0], a - b)


def test_gradients_under_a_client_axis():
    def loss(w, x):
        return (x @ w.view(3, 2)).log_softmax(-1)[:, 0].square().sum()

    assert_same_as_eager(lambda w, x: [vmap(grad(loss))(w, x)], (5, 6), (5, 4, 3))


def test_inputs_with_gaps_in_memory():
    program = trace(lambda x, y: [x @ y.mT, x.flatten()], [numbers(2, 3, 4), numbers(2, 5, 4)])
    x, y = numbers(2, 7, 3, 4)[:, 0], numbers(2, 5, 9, 4)[:, :, 1]
    for got, expected in zip(program(x, y), [x @ y.mT, x.flatten()], strict=True):
        torch.testing.assert_close(got, expected)


def two_fresh_tensors(x):
    a = torch.zeros_like(x)
    a.add_(x)
    return [a + torch.zeros_like(x)]


def fresh_tensors_before_a_write(x):
    a, b = torch.zeros_like(x), torch.zeros_like(x)
    a.add_(x)
    return [a, b + 1]


def the_same_call_before_and_after_a_write(x):
    y = x.clone()
    before = y.exp()
    y.add_(1)
    return [before + y.exp()]


def the_same_call_around_a_write_through_a_view(x):
    y = x * 2
    before = y.sum()
    y[0].zero_()
    return [before, y.sum()]


def a_write_through_a_view_of_a_constant(x):
    table = torch.zeros(4, *x.shape, dtype=x.dtype)
    table[0].add_(x)
    return [table * 1]


def a_constant_that_is_filled_in_and_returned(x):
    table = torch.zeros(4, *x.shape, dtype=x.dtype)
    table[0].copy_(x)
    return [table]


@pytest.mark.parametrize(
    "function",
    [
        two_fresh_tensors,
        fresh_tensors_before_a_write,
        the_same_call_before_and_after_a_write,
        the_same_call_around_a_write_through_a_view,
        a_write_through_a_view_of_a_constant,
        a_constant_that_is_filled_in_and_returned,
    ],
)
def test_writing_in_place_into_memory_of_its_own(function):
    """Networks do so (`h += shortcut`), and so do torch's own derivatives."""
    assert_same_as_eager(function, (3, 2))


@pytest.mark.parametrize("network", NETWORKS)
def test_every_kind_of_network_trains_in_the_stack_as_in_the_loop(network):
    module, settings = NETWORKS[network](), {"optimizer": {"momentum": 0.5}, "rounds": 2}
    stack, loop = (
        held(advanced(federation("prox", module=module, engine={"kind": kind}, **settings)))
        for kind in ("stack", "loop")
    )
    assert apart(stack, loop) < 1e-12


@dataclass(frozen=True)
class Branches(Strand):
    def grad(self, w, c, next):
        g = next(w)
        return -g if g.sum() > 0 else g


@dataclass(frozen=True)
class Reads(Strand):
    def loss(self, out, batch, c):
        return out.logits.square().sum() * float(c.lr)


@pytest.mark.parametrize("strand", [Branches(), Reads()])
def test_a_hook_that_looks_at_a_tensors_value_is_told_what_to_do_instead(strand):
    with pytest.raises(UserError, match=r"looked at a tensor's value.*use torch\.where, clamp or a mask"):
        federation(strand).advance()


def test_looking_at_a_value_outside_a_transform_is_refused_by_the_tracer():
    with pytest.raises(UserError, match=r"looked at a tensor's value.*use torch\.where, clamp or a mask"):
        trace(lambda x: [x * 2 if x.sum() > 0 else x], [numbers(3)])
