"""Convolutions of a stack by kernels of our own: which layers take them, and on a GPU that they are right."""

from dataclasses import replace
from statistics import median

import pytest
import torch
from helpers import advanced, federation, toy
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import conv2d, group_norm, linear, max_pool2d, relu

from fedbraid.engines.kernels.convolution_spec import Convolution
from fedbraid.engines.kernels.gradient_buffer import GradientTarget
from fedbraid.engines.kernels.norm import GroupNormSpec
from fedbraid.engines.kernels.stacked_layers import (
    ClientConv,
    ClientLinear,
    ClientNorm,
    StackConv2d,
    StackGroupNorm,
    StackLinear,
    for_stacks,
)
from fedbraid.models import build
from fedbraid.models.convolutional import PooledConv2d

on_a_gpu = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]


DEVICE = "cuda"


class Doubled(nn.Conv2d):
    """A layer that only looks like a convolution."""

    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (nn.Conv2d(3, 4, 3), Convolution(1, 0, False)),
        (nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False), Convolution(2, 1, False)),
        (PooledConv2d(3, 4, 5, padding=2), Convolution(1, 2, True)),
        (nn.Conv2d(4, 4, 3, groups=2), None),
        (nn.Conv2d(4, 4, 3, dilation=2), None),
        (nn.Conv2d(4, 4, 3, padding="same"), None),
        (nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), None),
        (nn.Conv2d(4, 4, 3, stride=(1, 2)), None),
        (nn.Conv2d(4, 4, (1, 3)), None),
        (nn.Conv2d(4, 4, 1, padding=1), None),
        (nn.Conv1d(4, 4, 3), None),
        (Doubled(3, 4, 3), None),
    ],
)
def test_which_layers_take_them(layer, kind):
    network = nn.Sequential(layer, nn.ReLU())
    before = {name: value.clone() for name, value in network.state_dict().items()}
    fast = for_stacks(network)
    assert type(network[0]) is type(layer), "the original stays as it is"
    assert isinstance(fast[0], StackConv2d) == (kind is not None)
    assert kind is None or fast[0].kind == kind
    assert fast.state_dict().keys() == before.keys()
    assert all(torch.equal(fast.state_dict()[name], value) for name, value in before.items())


@pytest.mark.parametrize(("name", "layers"), [("lenet", 2), ("cnn", 2), ("tiny-cnn", 3), ("resnet20", 19)])
def test_all_convolutions_of_our_networks_take_them(name, layers):
    fast = for_stacks(build(name, (3, 32, 32), 10))
    assert sum(isinstance(layer, StackConv2d) for layer in fast.modules()) == layers


def test_which_norms_take_them():
    shared = nn.GroupNorm(2, 4)
    network = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4, eps=1e-3), nn.ReLU()),
        nn.Sequential(shared, nn.ReLU(), shared),
        nn.GroupNorm(2, 4, affine=False),
        nn.LayerNorm(4),
    )
    fast = for_stacks(network)
    assert fast[0][1].groups == GroupNormSpec(2, 1e-3, relu=True)
    assert type(fast[0][2]) is nn.Identity
    assert fast[1][0].groups == GroupNormSpec(2, 1e-5, relu=False), "it has no ReLU after it elsewhere"
    assert type(fast[1][1]) is nn.ReLU
    assert [type(layer) for layer in fast[2:]] == [nn.GroupNorm, nn.LayerNorm]
    assert fast.state_dict().keys() == network.state_dict().keys()
    assert type(network[0][1]) is nn.GroupNorm, "the original stays as it is"


def test_norms_of_other_than_images_stay_with_the_library():
    network = nn.Sequential(nn.GroupNorm(2, 4), nn.ReLU())
    x = torch.randn(5, 4, 7)
    assert torch.equal(for_stacks(network)(x), network(x))


@pytest.mark.parametrize(("name", "layers"), [("lenet", 3), ("mlp", 2), ("resnet18", 1)])
def test_all_fully_connected_layers_of_our_networks_take_them(name, layers):
    fast = for_stacks(build(name, (3, 32, 32), 10))
    assert sum(isinstance(layer, StackLinear) for layer in fast.modules()) == layers


def test_layers_that_get_more_than_batches_stay_with_the_library():
    network = nn.Linear(4, 3)
    x = torch.randn(5, 2, 4)
    assert torch.equal(for_stacks(network)(x), network(x))


@pytest.mark.parametrize(("name", "layers", "joined"), [("tiny-cnn", 3, 0), ("resnet20", 19, 10), ("resnet18", 20, 9)])
def test_all_norms_of_our_networks_take_them(name, layers, joined):
    norms = [layer for layer in for_stacks(build(name, (3, 32, 32), 10)).modules() if isinstance(layer, StackGroupNorm)]
    assert (len(norms), sum(norm.groups.relu for norm in norms)) == (layers, joined)


@pytest.mark.parametrize("fine", [True, False])
def test_how_fine_products_are_is_every_convolutions(fine):
    fast = for_stacks(build("cnn", (3, 32, 32), 10), fine)
    assert {layer.kind.fine for layer in fast.modules() if isinstance(layer, StackConv2d)} == {fine}


def plainly(x, w, b, kind):
    y = conv2d(x, w, b, kind.stride, kind.padding)
    return relu(max_pool2d(y, 2)) if kind.pooled else y


LAYERS = [  # clients, batch, channels, outs, height, width, kernel, kind
    (10, 64, 1, 6, 28, 28, 5, Convolution(1, 0, True)),
    (10, 64, 6, 16, 12, 12, 5, Convolution(1, 0, True)),
    (3, 50, 3, 64, 32, 32, 5, Convolution(1, 0, True)),
    (3, 50, 64, 64, 14, 14, 5, Convolution(1, 0, True)),
    (3, 20, 32, 64, 14, 14, 5, Convolution(1, 2, True)),
    (2, 7, 6, 16, 9, 8, 5, Convolution(1, 0, True)),
    (2, 7, 16, 32, 16, 12, 3, Convolution(1, 1, False)),
    (2, 7, 16, 32, 15, 16, 3, Convolution(2, 1, False)),
    (2, 7, 64, 128, 8, 8, 1, Convolution(2, 0, False)),
    (2, 5, 33, 17, 7, 9, 3, Convolution(2, 1, False)),
    (1, 1, 3, 200, 5, 5, 3, Convolution(1, 1, False)),
    (2, 2, 1, 6, 8, 10, 3, Convolution(1, 2, True)),
    (2, 3, 3, 6, 7, 5, 3, Convolution(2, 1, False)),
    (2, 2, 16, 6, 6, 7, 3, Convolution(1, 1, True)),
    (1, 1, 64, 16, 4, 4, 3, Convolution(1, 1, False)),
    (1, 1, 1, 1, 9, 12, 3, Convolution(1, 0, True)),
    (2, 1, 16, 16, 4, 4, 1, Convolution(1, 0, False)),
    (3, 2, 1, 3, 6, 6, 4, Convolution(1, 0, False)),  # a patch of 16 numbers leaves no room for the bias
]


def made(case, channels_last=False):
    """Inputs, weights that are views of one vector for each client, biases, and a gradient of the outputs."""
    clients, batch, channels, outs, height, width, kernel, kind = case
    torch.manual_seed(0)
    x = torch.randn(clients, batch, channels, height, width, device=DEVICE)
    if channels_last:
        x = x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    size = outs * channels * kernel**2
    vector = torch.randn(clients, 5 + size + outs, device=DEVICE)
    vector[:, 5 : 5 + size] /= (channels * kernel**2) ** 0.5
    w, b = vector[:, 5 : 5 + size].view(clients, outs, channels, kernel, kernel), vector[:, 5 + size :]
    t = torch.randn_like(vmap(lambda *a: plainly(*a, kind))(x, w, b))
    return (x, w, b), t.bfloat16().float()


def slopes(f, inputs, t):
    """The gradients of a client's loss, of all clients at once."""
    return vmap(grad(lambda a, t: (f(*a) * t).sum()))(inputs, t)


def ours(kind):
    return lambda *a: ClientConv.apply(*(a if len(a) == 3 else (*a, None)), kind, GradientTarget())[0]


def theirs(kind):
    return lambda *a: plainly(*(a if len(a) == 3 else (*a, None)), kind)


def rounded(x):
    """x in bfloat16, with the gradient of x."""
    return x + (x.detach().bfloat16().to(x.dtype) - x.detach())


@pytest.mark.parametrize("case", LAYERS, ids=str)
class TestOnAGpu:
    pytestmark = on_a_gpu

    @pytest.mark.parametrize("channels_last", [False, True])
    @pytest.mark.parametrize("biased", [False, True])
    def test_outputs_and_gradients(self, case, channels_last, biased):
        inputs, t = made(case, channels_last)
        inputs, kind = inputs if biased else inputs[:2], case[-1]
        exact = tuple(a.double() for a in inputs)
        assert far(vmap(ours(kind))(*inputs), vmap(theirs(kind))(*exact)) < 1e-5
        # A pixel within rounding of another, or of 0, sends a gradient elsewhere: that is as it must be.
        limit = 5e-3 if kind.pooled else 2e-5
        for got, want in zip(slopes(ours(kind), inputs, t), slopes(theirs(kind), exact, t.double()), strict=True):
            assert far(got, want) < limit

    def test_coarse_products_are_those_of_numbers_in_bfloat16(self, case):
        inputs, t = made(case)
        coarse = ours(replace(case[-1], fine=False))

        def exact(x, w, b):
            return plainly(rounded(x), rounded(w), b, case[-1])

        double = tuple(a.double() for a in inputs)
        assert far(vmap(coarse)(*inputs), vmap(exact)(*double)) < 1e-5
        limit = 5e-3 if case[-1].pooled else 2e-5
        for got, want in zip(slopes(coarse, inputs, t), slopes(exact, double, t.double()), strict=True):
            assert far(got, want) < limit

    def test_the_gradient_may_lie_in_any_order_and_be_shared(self, case):
        inputs, _ = made(case)
        kind = case[-1]
        sums = vmap(grad(lambda a: ours(kind)(*a).sum()))(inputs)
        ones = torch.ones_like(vmap(ours(kind))(*inputs))
        last = ones.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
        for t in (ones, last):
            for got, want in zip(slopes(ours(kind), inputs, t), sums, strict=True):
                assert torch.equal(got, want)

    def test_one_client_alone_is_a_client_of_a_stack(self, case):
        inputs, t = made(case)
        kind, first = case[-1], tuple(a[0] for a in inputs)
        assert far(ours(kind)(*first), vmap(ours(kind))(*inputs)[0]) < 1e-6
        alone = grad(lambda a: (ours(kind)(*a) * t[0]).sum())(first)
        for got, want in zip(alone, slopes(ours(kind), inputs, t), strict=True):
            assert far(got, want[0]) < 1e-5

    def test_the_same_bits_every_time(self, case):
        inputs, t = made(case)
        runs = [slopes(ours(case[-1]), inputs, t) for _ in range(2)]
        assert all(torch.equal(one, two) for one, two in zip(*runs, strict=True))


def test_weights_alone_have_gradients_where_inputs_are_data():
    case = LAYERS[-3]
    (x, w, b), t = made(case)
    both = slopes(ours(case[-1]), (x, w, b), t)[1:]
    alone = vmap(grad(lambda a, x, t: (ours(case[-1])(x, *a) * t).sum()))((w, b), x, t)
    assert all(torch.equal(one, two) for one, two in zip(alone, both, strict=True))


test_weights_alone_have_gradients_where_inputs_are_data.pytestmark = on_a_gpu


def far(got, want):
    return float((got.double() - want).norm() / want.norm())


NORMS = [  # clients, batch, channels, height, width, groups
    (10, 20, 64, 32, 32, 2),
    (3, 50, 512, 4, 4, 2),
    (2, 5, 512, 64, 64, 4),
    (2, 3, 16, 9, 7, 2),
    (1, 1, 6, 5, 33, 3),
    (2, 2, 12, 1, 1, 2),
    (3, 2, 10, 40, 30, 1),
    (1, 2, 4, 3, 3, 4),
]
LAYOUTS = {"contiguous": (0, 1, 2, 3, 4), "channels-last": (0, 1, 4, 2, 3), "turned": (0, 1, 2, 4, 3)}


def lying(shape, layout):
    """Random numbers of this shape, in memory in another order."""
    order = LAYOUTS[layout]
    lies = [shape[order.index(i)] for i in range(5)]
    return torch.randn(lies, device=DEVICE).permute(order)


def exactly(x):
    """In float64, and in the order that the library's norm wants under vmap."""
    return x.double().flatten().view(x.shape)


@pytest.mark.parametrize("case", NORMS, ids=str)
class TestNormsOnAGpu:
    pytestmark = on_a_gpu

    def made(self, case, layout="channels-last", other="channels-last"):
        clients, _, channels = case[:3]
        torch.manual_seed(0)
        x, t = (lying(case[:5], lies) for lies in (layout, other))
        vector = torch.randn(clients, 3 + 2 * channels, device=DEVICE)  # a client's parameters are views of its own
        return (x, vector[:, 3 : 3 + channels], vector[:, 3 + channels :]), t

    def pair(self, case, relu_after):
        def plain(x, w, b):
            y = group_norm(x, case[5], w, b)
            return relu(y) if relu_after else y

        groups = GroupNormSpec(case[5], 1e-5, relu_after)
        return lambda *a: ClientNorm.apply(*a, groups)[0], plain

    @pytest.mark.parametrize("relu_after", [False, True])
    @pytest.mark.parametrize(
        "layouts", [("contiguous", "channels-last"), ("channels-last", "contiguous"), ("turned", "turned")], ids=str
    )
    def test_outputs_and_gradients(self, case, layouts, relu_after):
        inputs, t = self.made(case, *layouts)
        ours, plain = self.pair(case, relu_after)
        exact = tuple(exactly(a) for a in inputs)
        y = vmap(ours)(*inputs)
        assert y.permute(0, 1, 3, 4, 2).is_contiguous(), "as convolutions want it"
        assert far(y, vmap(plain)(*exact)) < 1e-6
        for got, want in zip(slopes(ours, inputs, t), slopes(plain, exact, t.double()), strict=True):
            # One pixel: the deviation is within a channel's few numbers, and gradients cancel.
            assert far(got, want) < (2e-6 if case[3] > 1 else 1e-4)

    def test_a_large_mean_costs_no_accuracy_that_the_inputs_have(self, case):
        (x, w, b), _ = self.made(case)
        x = x + 100
        ours, plain = self.pair(case, False)
        assert far(vmap(ours)(x, w, b), vmap(plain)(*(exactly(a) for a in (x, w, b)))) < 1e-5

    def test_a_shared_gradient(self, case):
        inputs, t = self.made(case)
        ours, _ = self.pair(case, True)
        sums = vmap(grad(lambda a: ours(*a).mean((2, 3)).sum()))(inputs)
        ones = torch.ones_like(t) / (case[3] * case[4])
        for got, want in zip(slopes(ours, inputs, ones), sums, strict=True):
            assert torch.allclose(got, want, rtol=1e-4, atol=1e-5)

    def test_one_client_alone_and_the_same_bits_every_time(self, case):
        inputs, t = self.made(case)
        ours, _ = self.pair(case, True)
        runs = [slopes(ours, inputs, t) for _ in range(2)]
        assert all(torch.equal(one, two) for one, two in zip(*runs, strict=True))
        alone = grad(lambda a: (ours(*a) * t[0]).sum())(tuple(a[0] for a in inputs))
        for got, want in zip(alone, runs[0], strict=True):
            assert far(got, want[0].double()) < 1e-6


MATRICES = [(10, 64, 256, 120), (50, 10, 1251, 128), (3, 50, 84, 10), (2, 1, 3, 1), (1, 130, 70, 200)]


@pytest.mark.parametrize("case", MATRICES, ids=str)  # clients, batch, in, out
@pytest.mark.parametrize("biased", [False, True])
def test_outputs_and_gradients_of_fully_connected_layers(case, biased):
    clients, batch, into, outs = case
    torch.manual_seed(0)
    vector = torch.randn(clients, 3 + (into + 1) * outs, dtype=torch.float64)
    w, b = vector[:, 3:-outs].view(clients, outs, into), vector[:, -outs:]
    x, t = torch.randn(clients, batch, into).double(), torch.randn(clients, batch, outs).double()
    inputs = (x, w, b) if biased else (x, w)

    def ours(*a):
        return ClientLinear.apply(*a, *[None] * (3 - len(a)), GradientTarget())

    assert far(vmap(ours)(*inputs), vmap(linear)(*inputs)) < 1e-12
    assert far(ours(*(a[0] for a in inputs)), linear(*(a[0] for a in inputs))) < 1e-12
    for got, want in zip(slopes(ours, inputs, t), slopes(linear, inputs, t), strict=True):
        assert far(got, want) < 1e-12


@pytest.mark.parametrize("fine", [True, False])
class TestNetworksOnAGpu:
    pytestmark = on_a_gpu

    @pytest.mark.parametrize("name", ["resnet20", "tiny-cnn"])
    def test_losses_and_gradients_of_whole_networks(self, name, fine, monkeypatch):
        """The error of most networks: in a few of them it turns a ReLU on or off, which is a jump in the gradient."""
        monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
        errors = [self.error(name, fine, seed) for seed in range(5)]
        assert median(errors) < (1e-3 if fine else 0.3)

    def error(self, name, fine, seed):
        torch.manual_seed(seed)
        plain = build(name, (3, 8, 8), 4, seed=seed).to(DEVICE)
        fast = for_stacks(plain, fine)
        vectors = {n: torch.stack([p.detach(), p.detach() * 1.1]) for n, p in plain.named_parameters()}
        x = torch.randn(2, 3, 3, 8, 8, device=DEVICE)

        def loss(module, parameters, x):
            return functional_call(module, parameters, (x,)).logits.square().sum()

        exact = {n: p.double() for n, p in vectors.items()}
        want = vmap(grad(lambda p, x: loss(plain.double(), p, x)))(exact, x.double())
        got = vmap(grad(lambda p, x: loss(fast, p, x)))(vectors, x)
        norms = [(got[n].double() - want[n]).norm() / want[n].norm() for n in want if want[n].norm() > 1e-6]
        return float(max(norms))


@pytest.mark.parametrize("method", ["fedavg", "scaffold+disco", "asd+moon", "rfedavg_plus", "sam"])
class TestFederations:
    pytestmark = on_a_gpu

    def test_trained_with_them_is_trained_as_without(self, method):
        data = toy(shape=(1, 28, 28), pixels=True)
        settings = {"data": data, "model": {"name": "lenet"}, "optimizer": {"lr": 0.01}, "rounds": 2}
        engines = {"kind": "stack", "device": "cuda", "dtype": "float32", "precision": "high"}, {"kind": "loop"}
        fast, exact = (federation(method, engine=engine, **settings) for engine in engines)
        assert any(isinstance(layer, StackConv2d) for layer in fast.engine.stack.job.model.training.modules())
        start = exact.server.w.clone()
        ends = [advanced(simulation).server.w.double().cpu() for simulation in (fast, exact)]
        assert (ends[0] - ends[1]).norm() < 0.02 * (ends[1] - start).norm()
