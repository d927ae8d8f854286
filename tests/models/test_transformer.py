"""The vision transformer against torch's own layers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import conv2d

from fedbraid.models import build
from fedbraid.models.transformer import EncoderBlock, patch_size, patches


def test_a_block_is_torchs_pre_norm_encoder_layer():
    block = EncoderBlock(12, 3).double()
    layer = nn.TransformerEncoderLayer(
        12, 3, 48, dropout=0.0, activation="gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=True
    ).double()
    pairs = {
        "qkv.": "self_attn.in_proj_",
        "out.": "self_attn.out_proj.",
        "up.": "linear1.",
        "down.": "linear2.",
        "norm1.": "norm1.",
        "norm2.": "norm2.",
    }
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randn_like(p) / 3)
    theirs = layer.state_dict()
    block.load_state_dict({f"{a}{kind}": theirs[f"{b}{kind}"] for a, b in pairs.items() for kind in ("weight", "bias")})
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    torch.testing.assert_close(block(x), layer(x))


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 4))
def test_patches_are_embedded_as_by_a_convolution(colours, rows, columns, size):
    x = torch.randn(2, colours, rows * size, columns * size, dtype=torch.float64)
    weight = torch.randn(5, colours, size, size, dtype=torch.float64)
    convolved = conv2d(x, weight, stride=size).flatten(2).mT
    torch.testing.assert_close(patches(x, size) @ weight.flatten(1).T, convolved)


def test_the_network_step_by_step():
    network, x = build("vit-tiny", (3, 8, 12), 5, patch=4, depth=2), torch.randn(2, 3, 8, 12)
    h = network.embed(patches(x, 4))
    h = torch.cat([network.token.repeat(2, 1, 1), h], 1) + network.positions
    h = network.blocks[1](network.blocks[0](h))
    torch.testing.assert_close(network(x).features, nn.functional.layer_norm(h, (192,), eps=1e-6)[:, 0])
    assert network.positions.shape == (1, 7, 192)
    assert [block.heads for block in network.blocks] == [3, 3]
    assert build("vit-small", (3, 8, 8), 5, depth=1).blocks[0].heads == 6


def test_weights_start_from_deits_distribution():
    network = build("vit-tiny", (3, 32, 32), 10, depth=2)
    weights = [p for key, p in network.blocks.named_parameters() if key.endswith("weight") and p.dim() == 2]
    for p in (*weights, network.head.weight, network.positions, network.token):
        assert p.std().item() == pytest.approx(0.02, rel=0.2)
    assert not any(p.any() for key, p in network.blocks.named_parameters() if key.endswith("bias"))


@pytest.mark.parametrize(
    ("side", "patch"),
    [(4, 1), (8, 1), (16, 2), (28, 4), (30, 2), (31, 1), (32, 4), (56, 8), (64, 8), (96, 8), (224, 16)],
)
def test_patches_are_as_large_as_leaves_seven_a_side(side, patch):
    assert patch_size((3, side, side), None) == patch
    assert patch_size((3, side, 2 * side), None) == patch
