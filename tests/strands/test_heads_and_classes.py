"""FedRS, FedETF and FedBABU: known numbers, and what of a network never moves."""

import pytest
import torch
import torch.nn.functional as F
from helpers import advanced, federation, toy
from torch import nn

import fedbraid as fb
from fedbraid.core.last_layer import last_layer
from fedbraid.core.outputs import Outputs
from fedbraid.strands import Babu, Etf, Rod, Rs


class Client:
    """A client of which a head's hooks see the labels alone."""

    def __init__(self, *counts):
        self.label_counts = torch.tensor(counts, dtype=torch.float64)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("alpha", "scale", "due"),
    [
        (1.0, "binary", 2.407605964),
        (0.5, "binary", 1.680269671),
        (0.5, "proportional", 1.369338084),
        (0.0, "binary", 1.407605964),
    ],
)
def test_fedrs_loss(alpha, scale, due):
    logits = Rs(alpha, scale).logits(tensor(1.0, 2.0, 3.0), None, Client(4, 1, 0))
    assert float(F.cross_entropy(logits, torch.tensor(0))) == pytest.approx(due, abs=1e-9)


def test_fedrs_of_a_client_that_has_all_classes_is_fedavg():
    logits = tensor(-1.0, 0.3, 2.0)
    assert torch.equal(Rs(0.1).logits(logits, None, Client(1, 9, 2)), logits)


class Net(nn.Module):
    def __init__(self, width=3, classes=3):
        super().__init__()
        self.body, self.head = nn.Identity(), nn.Linear(width, classes)

    def forward(self, x):
        features = self.body(x)
        return Outputs(self.head(features), features)


def test_fedetf_head_and_loss():
    net = Etf().model(Net().double())
    head = net.head
    corners = head.weight.detach().double()
    assert torch.allclose(corners.T @ corners, 1.5 * torch.eye(3).double() - 0.5, atol=1e-6)  # 1, and −1 / (C − 1)
    assert corners.sum(0).abs().max() < 1e-6
    assert corners[0].tolist() == pytest.approx([0.816496581, -0.40824829, -0.40824829], abs=1e-7)
    with torch.no_grad():
        head.projection.weight.copy_(torch.eye(3))
        head.projection.bias.zero_()
        logits = head.double()(tensor(2.0, 0.0, 0.0))
    assert float(F.cross_entropy(logits, torch.tensor(0))) == pytest.approx(0.46226458, abs=1e-7)
    balanced = Rod(missing=1.0, personal=False).logits(logits, None, Client(8, 1, 1))
    assert float(F.cross_entropy(balanced, torch.tensor(1))) == pytest.approx(3.375071779, abs=1e-6)


def test_two_classes_are_opposite():
    corners = Etf().model(Net(classes=2)).head.weight
    assert torch.allclose(corners[0], -corners[1]) and corners[0].norm() == pytest.approx(1.0)


def test_a_network_without_a_linear_last_layer_is_refused():
    for strand in (Etf(), Babu()):
        with pytest.raises(fb.UserError, match=rf"{strand.name} replaces the network's last layer"):
            strand.model(nn.Sequential(nn.Flatten(), nn.Conv1d(1, 1, 1)))
    with pytest.raises(fb.UserError, match="only one"):
        Etf().model(Net(classes=1))


@pytest.mark.parametrize("method", ["fedetf", "fedbabu"])
@pytest.mark.parametrize("optimizer", [{"momentum": 0.9, "weight_decay": 0.1}, {"name": "adamw", "lr": 0.01}], ids=str)
def test_the_head_stays_as_it_was_to_the_bit(method, optimizer):
    made = federation(method, optimizer=optimizer)
    start = made.setup.w
    advanced(made, 3)
    before, after = made.setup.layout.views(start), made.setup.layout.views(made.server.w)
    name = last_layer(made.model.training)
    fixed = [f"{name}.weight"] + ([f"{name}.bias"] if method == "fedbabu" else [])
    assert all(torch.equal(before[key], after[key]) for key in fixed)
    assert not any(torch.equal(before[key], after[key]) for key in before if key not in fixed)


def test_fedbabu_is_fedavg_with_a_head_that_is_not_trained():
    """One step of gradient descent on each client's body, averaged."""
    dataset, partition = toy()
    made = federation("babu+uniform", optimizer={"lr": 0.1}, local={"batch": 0, "epochs": 1}, data=(dataset, partition))
    w, frozen = made.setup.w, made.setup.frozen
    ends = []
    for rows in partition.clients:
        x, y = (torch.as_tensor(t[rows]) for t in (dataset.train.x, dataset.train.y))
        at = w.clone().requires_grad_()
        logits, _ = made.model.predict(at, made.setup.buffers, x.to(w))
        (g,) = torch.autograd.grad(F.cross_entropy(logits, y), at)
        ends.append(torch.where(frozen, w, w - 0.1 * g))
    made.advance()
    assert (made.server.w - torch.stack(ends).mean(0)).abs().max() < 1e-12
    name = last_layer(made.model.training)
    head = sum(v.numel() for k, v in made.setup.layout.views(w).items() if k.startswith(name))
    assert int(frozen.sum()) == head > 0
