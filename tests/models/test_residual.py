"""Residual networks: blocks by formula, resolutions, the distribution they start from, and BatchNorm in the loop."""

import pytest
import torch
from helpers import advanced, federation, toy
from torch.nn.functional import conv2d, group_norm, relu

from fedbraid.models import build
from fedbraid.models.residual import Residual, basic, bottleneck, norm_of, padded, projected

X = torch.linspace(-2, 3, 2 * 4 * 6 * 6, dtype=torch.float64).sin().reshape(2, 4, 6, 6)


def block_of(branch, shortcut, stride):
    norm = norm_of("group", 2, 4)
    layers, out = branch(4, 6, stride, norm)
    block = Residual(layers, shortcut(4, out, stride, norm)).double()
    with torch.no_grad():
        for p in block.parameters():
            p.copy_(torch.randn_like(p))  # scales and shifts too
    return block


def conv_norm(x, conv, norm, stride=1):
    x = conv2d(x, conv.weight, None, stride, conv.weight.shape[-1] // 2)
    return group_norm(x, 2, norm.weight, norm.bias)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_basic_block(stride):
    block = block_of(basic, projected, stride)
    conv1, norm1, _, conv2, norm2 = block.layers
    long = conv_norm(relu(conv_norm(X, conv1, norm1, stride)), conv2, norm2)
    expected = relu(long + conv_norm(X, *block.shortcut, stride))
    assert conv1.weight.shape[-1] == conv2.weight.shape[-1] == 3
    torch.testing.assert_close(block(X), expected)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_bottleneck_block(stride):
    block = block_of(bottleneck, projected, stride)
    conv1, norm1, _, conv2, norm2, _, conv3, norm3 = block.layers
    narrow = relu(conv_norm(X, conv1, norm1))
    long = conv_norm(relu(conv_norm(narrow, conv2, norm2, stride)), conv3, norm3)
    assert [c.weight.shape[-1] for c in (conv1, conv2, conv3)] == [1, 3, 1]
    torch.testing.assert_close(block(X), relu(long + conv_norm(X, *block.shortcut, stride)))


def test_a_shortcut_without_parameters_takes_every_other_pixel_and_adds_empty_channels():
    short = padded(4, 6, 2, norm_of("group", 2, 4))
    out = short(X)
    assert out.shape == (2, 6, 3, 3)
    assert torch.equal(out[:, 1:5], X[:, :, ::2, ::2])
    assert not out[:, [0, 5]].any()
    assert not list(short.parameters())


@pytest.mark.parametrize("shortcut", [projected, padded])
def test_a_shortcut_is_the_input_itself_where_the_shape_stays(shortcut):
    assert shortcut(4, 4, 1, norm_of("group", 2, 4))(X) is X


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("resnet18", [(64, 16)] * 2 + [(128, 8)] * 2 + [(256, 4)] * 2 + [(512, 2)] * 2),
        ("resnet20", [(16, 16)] * 3 + [(32, 8)] * 3 + [(64, 4)] * 3),
        ("resnet50", [(256, 16)] * 3 + [(512, 8)] * 4 + [(1024, 4)] * 6 + [(2048, 2)] * 3),
    ],
)
def test_resolutions_halve_from_stage_to_stage_and_the_stem_keeps_them(name, stages):
    network, x = build(name, (3, 16, 16), 10), torch.randn(1, 3, 16, 16)
    seen, h = [], network.stem(x)
    for block in network.blocks:
        h = block(h)
        seen.append((h.shape[1], h.shape[2]))
    assert seen == stages
    torch.testing.assert_close(network(x).features, h.mean((2, 3)))


def test_resnet18_starts_with_the_length_that_its_distribution_implies():
    """He's normal by outputs: a convolution of n inputs has an expected square of 2 n; scales are 1, shifts 0."""
    w = torch.cat([p.detach().flatten() for p in build("resnet18", (3, 32, 32), 10).parameters()])
    inputs = 3 + 4 * 64 + (2 * 64 + 3 * 128) + (2 * 128 + 3 * 256) + (2 * 256 + 3 * 512)
    scales = 5 * (64 + 128 + 256 + 512)
    head = 10 * 513 / (3 * 512)
    assert float(w.norm()) == pytest.approx((2 * inputs + scales + head) ** 0.5, rel=1e-3)


def test_groups_say_which_channels_are_normalised_together():
    one, many = (build("resnet20", (3, 8, 8), 10, groups=g) for g in (1, 16))
    x = torch.randn(2, 3, 8, 8)
    assert not torch.allclose(one(x).logits, many(x).logits)
    h = many.stem[:2](x)
    torch.testing.assert_close(h.mean((2, 3)), torch.zeros(2, 16), rtol=0, atol=1e-5)


def test_batchnorm_is_trained_in_the_stack():
    data = toy((4, 4), (3, 8, 8))
    settings = {"model": {"name": "resnet20", "norm": "batch"}, "local": {"batch": 4, "epochs": 1}, "rounds": 1}
    simulation = federation(data=data, **settings)
    assert simulation.engine.kind == "stack"
    before = simulation.server.buffers
    advanced(simulation)
    assert not torch.equal(simulation.server.buffers, before)
    assert len(before) == 2 * (7 * 16 + 6 * 32 + 6 * 64)
