"""The gradient from its parts is torch's own."""

import pytest
import torch
from torch.func import vmap

from fedbraid.core import gradient as module
from fedbraid.core.gradient import from_parts, from_torch, gradient
from fedbraid.core.outputs import Outputs

needs_parts = pytest.mark.skipif(not module.HAS_PARTS, reason="this torch has other names")
W = torch.linspace(-1, 1, 5, dtype=torch.float64)


def cubic(w):
    return (w**3).sum(), (Outputs(w * 2, w + 1), w.detach())


def constant(w):
    return torch.tensor(2.0, dtype=torch.float64), w


def frozen_part(w):
    with torch.no_grad():
        still = w**2
    return (w * still).sum(), still


def same(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@needs_parts
@pytest.mark.parametrize("objective", [cubic, constant, frozen_part], ids=lambda f: f.__name__)
@pytest.mark.parametrize("enabled", [True, False], ids=["grad", "no_grad"])
def test_the_parts_give_what_torch_gives(objective, enabled):
    with torch.set_grad_enabled(enabled):
        same(from_parts(objective, W), from_torch(objective, W))
        many = torch.stack([W, 2 * W, W - 1])
        same(vmap(lambda w: from_parts(objective, w))(many), vmap(lambda w: from_torch(objective, w))(many))


@needs_parts
def test_gradients_of_gradients():
    def slope(take):
        return lambda w: (take(cubic, w)[0].square().sum(), w)

    same(from_parts(slope(from_parts), W), from_torch(slope(from_torch), W))


@pytest.mark.parametrize("parts", [True, False])
def test_a_cubic_by_hand(parts, monkeypatch):
    monkeypatch.setattr(module, "HAS_PARTS", parts and module.HAS_PARTS)
    g, (loss, (out, at)) = gradient(cubic, W)
    torch.testing.assert_close(g, 3 * W**2)
    torch.testing.assert_close(loss, (W**3).sum())
    assert not any(t.requires_grad for t in (g, loss, at, out.logits, out.features))
    torch.testing.assert_close(out.features, W + 1)
    assert isinstance(out, Outputs)


@needs_parts
def test_a_failure_leaves_no_transform_behind():
    def fails(w):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        gradient(fails, W)
    same(from_parts(cubic, W), from_torch(cubic, W))
    assert not torch._C._are_functorch_transforms_active()
