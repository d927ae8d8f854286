"""Gradients that layers write where they belong are those that autograd would join."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from fedbraid.core.gradient import gradient
from fedbraid.core.model import Model
from fedbraid.core.outputs import Outputs
from fedbraid.engines.kernels.gradient_buffer import GradientBuffer, PassGradient


class Product(torch.autograd.Function):
    """x W' by hand, whose gradient of W is written where its home says."""

    @staticmethod
    def forward(x, w, target):
        return x @ w.T

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, w, ctx.target = inputs
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx, d):
        x, w = ctx.saved_tensors
        return d @ w, Slope.apply(d, x, w, ctx.target), None

    @staticmethod
    def vmap(info, dims, x, w, target):
        return x @ w.transpose(1, 2), 0


class Slope(torch.autograd.Function):
    @staticmethod
    def forward(d, x, w, target):
        raise AssertionError("a stack is batched")

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vmap(info, dims, d, x, w, target):
        d, x = (t.expand(info.batch_size, *t.shape) if dim is None else t for t, dim in zip((d, x), dims, strict=False))
        w_gradient = target.weight(w)
        w_gradient.copy_(d.transpose(1, 2) @ x)
        return w_gradient, 0


class Written(nn.Linear):
    name: str
    buffer: GradientBuffer

    def forward(self, x: Tensor) -> Tensor:
        made = Product.apply(x, self.weight, self.buffer.target(self.name))
        return made if self.bias is None else made + self.bias


class Network(nn.Module):
    def __init__(self, tied: bool, hidden: int = 3):
        super().__init__()
        self.first, self.middle = nn.Linear(5, hidden), nn.Linear(hidden, hidden, bias=False)
        self.unused, self.head = nn.Linear(2, 2), nn.Linear(hidden, 2)
        self.tied = tied

    def forward(self, x):
        x = self.middle(self.first(x).tanh()).tanh()
        x = self.middle(x) if self.tied else x
        return Outputs(self.head(x), x)


def written(model: Model, names: list[str]) -> Model:
    buffer = GradientBuffer()
    for name, layer in model.training.named_modules():
        if name in names:
            layer.__class__, layer.name, layer.buffer = Written, name, buffer
    return replace(model, parts=buffer.views)


def slopes(model: Model, w, x, evaluations=1):
    def one(w, x):
        def objective(at):
            return model.learn(at, w[:0], x)[0].logits.square().sum(), at

        return sum(gradient(objective, (k + 1) * w)[0] for k in range(evaluations))

    return vmap(one)(w, x)


EVERY = ["first", "middle", "head"]


@pytest.mark.parametrize("tied", [False, True], ids=["plain", "tied"])
@pytest.mark.parametrize("names", [EVERY, ["first"], ["middle"], []], ids="+".join)
@pytest.mark.parametrize("evaluations", [1, 2])
def test_gradients_are_autograds(tied, names, evaluations):
    torch.manual_seed(0)
    network = Network(tied).double()
    w, x = torch.randn(4, Model.of(network).layout.size).double(), torch.randn(4, 6, 5).double()
    want = slopes(Model.of(network), w, x, evaluations)
    got = slopes(written(Model.of(network), names), w, x, evaluations)
    assert torch.allclose(got, want, rtol=1e-12, atol=1e-12)


def test_what_lies_in_its_place_is_not_copied(monkeypatch):
    torch.manual_seed(0)
    model = written(Model.of(Network(False, hidden=30)), EVERY)
    returned, copied, joined = [], [], PassGradient.joined
    put = Tensor.copy_
    monkeypatch.setattr(
        PassGradient, "joined", lambda self, *a: returned.append((self, joined(self, *a))) or returned[-1][1]
    )
    monkeypatch.setattr(Tensor, "copy_", lambda self, other: copied.append(self.shape) or put(self, other))
    slopes(model, torch.randn(4, model.layout.size), torch.randn(4, 6, 5))
    ((gradient, vector),) = returned
    assert vector is gradient.vector
    assert set(gradient.placed) == {f"{name}.weight" for name in EVERY}
    parts = [shape for shape in copied if len(shape) == 2]
    assert sorted(shape[1] for shape in parts) == [2, 2, 4, 30], "biases, and a layer that is not used"
