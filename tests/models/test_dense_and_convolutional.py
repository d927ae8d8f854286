"""Plain networks against their papers' formulas."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, cross_entropy, group_norm, max_pool2d, relu

from fedbraid.errors import UserError
from fedbraid.models import build

IMAGE, GREY = (3, 32, 32), (1, 28, 28)


@pytest.mark.parametrize(
    ("name", "shape"), [("lenet", GREY), ("cnn", IMAGE), ("fedavg-cnn", GREY), ("tiny-cnn", (3, 16, 16))]
)
def test_pooling_first_changes_neither_outputs_nor_gradients(name, shape):
    network, x = build(name, shape, 10).double(), torch.randn(4, *shape, dtype=torch.float64)

    def as_published(x):
        for layer in network.convs:
            conv, *rest = layer if isinstance(layer, nn.Sequential) else (layer,)
            x = conv2d(x, conv.weight, conv.bias, padding=conv.padding)
            if name == "tiny-cnn":
                x = group_norm(x, 4, rest[0].weight, rest[0].bias)
            x = max_pool2d(relu(x), 2)
        x = x.flatten(1)
        for layer in network.hidden:
            x = relu(layer(x))
        return network.head(x)

    def gradients(logits):
        return torch.autograd.grad(logits.square().sum(), list(network.parameters()))

    ours, published = network(x).logits, as_published(x)
    torch.testing.assert_close(ours, published)
    torch.testing.assert_close(gradients(ours), gradients(published))


@pytest.mark.parametrize(
    ("name", "channels", "widths"),
    [
        ("lenet", [6, 16], [400, 120, 84, 10]),
        ("cnn", [64, 64], [1600, 384, 192, 10]),
        ("fedavg-cnn", [32, 64], [4096, 512, 10]),
        ("tiny-cnn", [64, 64, 64], [1024, 512, 384, 10]),
    ],
)
def test_layers_are_the_papers(name, channels, widths):
    network = build(name, IMAGE, 10)
    assert [layer.out_channels for layer in network.modules() if isinstance(layer, nn.Conv2d)] == channels
    linear = [*network.hidden, network.head]
    assert [layer.in_features for layer in linear] + [network.head.out_features] == widths


def test_logistic_regression_starts_from_torchs_default_weights_on_the_flattened_input():
    torch.manual_seed(3)
    expected = nn.Linear(64, 10)
    network, x = build("logistic", (1, 8, 8), 10, seed=3), torch.randn(5, 1, 8, 8)
    assert torch.equal(network.head.weight, expected.weight)
    assert torch.equal(network.head.bias, expected.bias)
    assert torch.equal(network(x).features, x.flatten(1))


def test_the_papers_network_may_have_no_bias_in_its_head():
    plain, without = (build("cnn", (3, 32, 32), 10, **more) for more in ({}, {"head_bias": False}))
    assert plain.head.bias is not None and without.head.bias is None
    assert sum(p.numel() for p in plain.parameters()) - sum(p.numel() for p in without.parameters()) == 10
    with pytest.raises(UserError, match="head_bias must be true or false"):
        build("cnn", (3, 32, 32), 10, head_bias=0)


def test_moons_projection_head_stands_between_features_and_head():
    network, x = build("mlp", (60,), 10, projection=7), torch.randn(9, 60)
    first, _, second = network.project
    h = relu(network.hidden[0](x))
    assert (first.out_features, second.out_features, network.head.in_features) == (64, 7, 7)
    torch.testing.assert_close(network(x).features, relu(first(h)) @ second.weight.T + second.bias)


def test_hidden_features_are_not_negative():
    assert (build("mlp", (60,), 10)(torch.randn(9, 60)).features >= 0).all()


def test_the_perceptrons_logits_are_sigmoids_so_that_its_loss_has_a_floor():
    network, x = build("perceptron", (60,), 5).double(), torch.randn(9, 60, dtype=torch.float64)
    expected = 1 / (1 + (-(x @ network.head.weight.T + network.head.bias)).exp())
    torch.testing.assert_close(network(x).logits, expected)
    with torch.no_grad():
        network.head.bias.copy_(torch.tensor([1e3, -1e3, -1e3, -1e3, -1e3]))
    loss = cross_entropy(network(x).logits, torch.zeros(9, dtype=torch.int64))
    assert loss.item() == pytest.approx(math.log((math.e + 4) / math.e))


def test_a_perceptron_without_sigmoid_is_linear_from_the_same_initial_weights():
    plain, with_sigmoid = (build("perceptron", (60,), 5, sigmoid=s).double() for s in (False, True))
    x = torch.randn(9, 60, dtype=torch.float64)
    torch.testing.assert_close(plain(x).logits.sigmoid(), with_sigmoid(x).logits)
