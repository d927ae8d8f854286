"""Convolutions of a stack by kernels of our own: which layers take them, and on a GPU that they are right."""

import pytest
import torch
from helpers import advanced, federation, toy
from torch import nn
from torch.func import grad_and_value, vmap
from torch.nn.functional import conv2d, max_pool2d, relu

from fedbraid.engines.kernels.conv import Kind
from fedbraid.engines.kernels.layers import ClientConv, StackConv2d, for_stacks
from fedbraid.models import build
from fedbraid.models.convolutional import PooledConv2d

on_a_gpu = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]


class Doubled(nn.Conv2d):
    """A layer that only looks like a convolution."""

    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (nn.Conv2d(3, 4, 3), Kind(1, 0, False)),
        (nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False), Kind(2, 1, False)),
        (PooledConv2d(3, 4, 5, padding=2), Kind(1, 2, True)),
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


def plainly(x, w, b, kind):
    y = conv2d(x, w, b, kind.stride, kind.padding)
    return relu(max_pool2d(y, 2)) if kind.pooled else y


LAYERS = [  # clients, batch, channels, outs, height, width, kernel, kind
    (10, 64, 1, 6, 28, 28, 5, Kind(1, 0, True)),
    (10, 64, 6, 16, 12, 12, 5, Kind(1, 0, True)),
    (3, 50, 3, 64, 32, 32, 5, Kind(1, 0, True)),
    (3, 50, 64, 64, 14, 14, 5, Kind(1, 0, True)),
    (3, 20, 32, 64, 14, 14, 5, Kind(1, 2, True)),
    (2, 7, 6, 16, 9, 8, 5, Kind(1, 0, True)),
    (2, 7, 16, 32, 16, 12, 3, Kind(1, 1, False)),
    (2, 7, 16, 32, 15, 16, 3, Kind(2, 1, False)),
    (2, 7, 64, 128, 8, 8, 1, Kind(2, 0, False)),
    (2, 5, 33, 17, 7, 9, 3, Kind(2, 1, False)),
    (1, 1, 3, 200, 5, 5, 3, Kind(1, 1, False)),
]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("case", LAYERS, ids=str)
class TestOnAGpu:
    pytestmark = on_a_gpu

    def test_outputs_and_gradients(self, case, channels_last):
        clients, batch, channels, outs, height, width, kernel, kind = case
        torch.manual_seed(0)
        x = torch.randn(clients, batch, channels, height, width, device="cuda")
        if channels_last:
            x = x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
        w = torch.randn(clients, outs, channels, kernel, kernel, device="cuda") / (channels * kernel**2) ** 0.5
        b = torch.randn(clients, outs, device="cuda")
        exact = [t.double() for t in (x, w, b)]
        want = vmap(lambda *a: plainly(*a, kind))(*exact)
        t = torch.randn_like(want)

        def loss(f):
            return vmap(grad_and_value(lambda a, t: (f(*a) * t).sum()))

        got, _ = loss(lambda *a: ClientConv.apply(*a, kind)[0])((x, w, b), t.float())
        truth, _ = loss(lambda *a: plainly(*a, kind))(tuple(exact), t)
        assert far(vmap(lambda *a: ClientConv.apply(*a, kind)[0])(x, w, b), want) < 1e-5
        # A pixel within rounding of another, or of 0, sends a gradient elsewhere: that is as it must be.
        limit = 5e-3 if kind.pooled else 2e-5
        for ours, theirs in zip(got, truth, strict=True):
            assert far(ours, theirs) < limit


def far(ours, theirs):
    return float((ours.double() - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("method", ["fedavg", "scaffold+disco", "asd+moon", "rfedavg_plus", "sam"])
class TestFederations:
    pytestmark = on_a_gpu

    def test_trained_with_them_is_trained_as_without(self, method):
        data = toy(shape=(1, 28, 28), pixels=True)
        settings = {"data": data, "model": {"name": "lenet"}, "optimizer": {"lr": 0.01}, "rounds": 2}
        engines = {"kind": "stack", "device": "cuda", "dtype": "float32", "tf32": True}, {"kind": "loop"}
        fast, exact = (federation(method, engine=engine, **settings) for engine in engines)
        assert any(isinstance(layer, StackConv2d) for layer in fast.engine.stack.job.model.training.modules())
        start = exact.server.w.clone()
        ends = [advanced(experiment).server.w.double().cpu() for experiment in (fast, exact)]
        assert (ends[0] - ends[1]).norm() < 0.02 * (ends[1] - start).norm()
