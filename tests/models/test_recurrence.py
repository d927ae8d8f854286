"""LSTM layers, by torch's kernels and written out, against `nn.LSTM`."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from fedbraid.models.lstm import Lstm, Recurrence

SIZES = st.tuples(*(st.integers(1, 5) for _ in range(4)), st.integers(1, 3))  # batch, time, inputs, hidden, layers


def pair(inputs, hidden, layers, dtype):
    theirs = nn.LSTM(inputs, hidden, layers, batch_first=True).to(dtype)
    ours = Lstm(inputs, hidden, layers).to(dtype)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def derivatives(loss, network, x):
    """The gradients of `loss` by the network's parameters and its input."""
    x = x.clone().requires_grad_()
    result = torch.autograd.grad(loss(network(x)), [*network.parameters(), x])
    return dict(zip([*dict(network.named_parameters()), "x"], result, strict=True))


def by_transform(loss, network, x):
    """The same by function transforms, for a stack of one client."""

    def of(parameters, x):
        return loss(functional_call(network, parameters, (x,)))

    stacked = {key: p.detach()[None] for key, p in network.named_parameters()}
    by_parameters, by_input = vmap(grad(of, argnums=(0, 1)))(stacked, x[None])
    return {key: g[0] for key, g in by_parameters.items()} | {"x": by_input[0]}


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@given(sizes=SIZES)
@settings(max_examples=20)
def test_outputs_and_gradients_are_torchs(dtype, rounding, sizes):
    batch, time, inputs, hidden, layers = sizes
    ours, theirs = pair(inputs, hidden, layers, dtype)
    x, weights = torch.randn(batch, time, inputs, dtype=dtype), torch.randn(batch, time, hidden, dtype=dtype)

    def loss(h):
        return ((h[0] if isinstance(h, tuple) else h) * weights).sum()

    stacked = {key: p.detach()[None] for key, p in ours.named_parameters()}
    written_out = vmap(lambda parameters, x: functional_call(ours, parameters, (x,)))(stacked, x[None])[0]
    expected = derivatives(loss, theirs, x)
    for outputs in (ours(x), written_out):
        torch.testing.assert_close(outputs, theirs(x)[0], rtol=0, atol=rounding)
    for got in (derivatives(loss, ours, x), by_transform(loss, ours, x)):
        assert got.keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(got[key], value, rtol=rounding, atol=rounding)


@pytest.mark.parametrize(("time", "inputs", "hidden"), [(25, 300, 256), (80, 8, 100)])
def test_the_papers_sizes_agree_in_single_precision(time, inputs, hidden):
    ours, theirs = pair(inputs, hidden, 2, torch.float32)
    x = torch.randn(3, time, inputs)

    def loss(h):
        return (h[0] if isinstance(h, tuple) else h)[:, -1].sum()

    expected, got = derivatives(loss, theirs, x), by_transform(loss, ours, x)
    for key, value in expected.items():
        torch.testing.assert_close(got[key], value, rtol=1e-5, atol=1e-5)


def test_the_closed_form_is_the_derivative():
    inputs, weight = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((4, 2, 12), (12, 3)))
    assert torch.autograd.gradcheck(
        lambda a, w: Recurrence.apply(a, w)[0], (inputs, weight), check_undefined_grad=False
    )


def test_a_second_derivative_is_refused():
    network, x = Lstm(2, 3, 1), torch.randn(2, 4, 2)

    def slope(parameters):
        first = grad(lambda p: functional_call(network, p, (x,)).square().sum())(parameters)
        return first["weight_hh_l0"].square().sum()

    with pytest.raises(NotImplementedError, match="no second derivative"):
        grad(slope)({key: p.detach() for key, p in network.named_parameters()})


def test_stacked_clients_have_weights_of_their_own():
    networks = [Lstm(3, 4, 2).double() for _ in range(3)]
    stacked, _ = stack_module_state(networks)
    x = torch.randn(3, 2, 5, 3, dtype=torch.float64)
    together = vmap(lambda parameters, x: functional_call(networks[0], parameters, (x,)))(stacked, x)
    for k, network in enumerate(networks):
        torch.testing.assert_close(together[k], network(x[k]))


def kernels(call):
    """The names of the operations that a call asks for."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    return {event.key for event in profile.key_averages()}


def test_torchs_kernels_run_a_single_client_and_never_a_stack():
    network, x = Lstm(3, 4, 1), torch.randn(2, 5, 3)
    parameters = dict(network.named_parameters())
    stacked = {key: p.detach()[None] for key, p in parameters.items()}
    assert "aten::lstm" in kernels(lambda: network(x))
    assert "aten::lstm" in kernels(lambda: functional_call(network, parameters, (x,)))
    assert "aten::lstm" not in kernels(lambda: vmap(lambda p: functional_call(network, p, (x,)))(stacked))


def test_weights_start_as_torchs_do():
    torch.manual_seed(3)
    expected = nn.LSTM(5, 4, 2).state_dict()
    torch.manual_seed(3)
    ours = Lstm(5, 4, 2).state_dict()
    assert list(ours) == list(expected)
    assert all(torch.equal(ours[key], expected[key]) for key in expected)
