"""Which buffers go with which model, where a network has BatchNorm."""

import copy

import pytest
import torch
from helpers import advanced, federation, toy
from jobs import training_job, uploads
from networks import Normed
from torch.nn.functional import cross_entropy

from fedbraid.core.plan import make_plan
from fedbraid.errors import UserError

EVEN = toy((4, 8, 12, 6))  # no batch of a single sample, which BatchNorm cannot train on
WORK = {"batch": 4, "epochs": 2, "drop_last": True}
SHARES = torch.tensor([4, 8, 12, 6], dtype=torch.float64) / 30


def normed(method, **settings):
    return federation(method, data=EVEN, module=Normed(), **({"local": WORK, "engine": {"kind": "loop"}} | settings))


def module_of(simulation, w, buffers):
    """The network with these weights and statistics, as torch has it, in evaluation mode."""
    module = copy.deepcopy(simulation.model.training).double().eval()
    state = simulation.model.layout.views(w) | simulation.model.buffers.views(buffers)
    module.load_state_dict(state, strict=False)
    return module


def samples(client):
    dataset, partition = EVEN
    own = partition.clients[client]
    return torch.as_tensor(dataset.train.x[own]), torch.as_tensor(dataset.train.y[own])


def test_qfedavgs_losses_are_the_received_models():
    simulation = advanced(normed("qfair"), 2)
    received = module_of(simulation, simulation.server.w, simulation.server.buffers)
    expected = [cross_entropy(received(x).logits, y) for x, y in map(samples, range(4))]
    torch.testing.assert_close(uploads(simulation)["qfair.loss"], torch.stack(expected).detach(), rtol=0, atol=1e-12)


def test_scaffolds_first_option_is_the_received_models_gradient():
    simulation = advanced(normed("scaffold(option=1)"), 2)
    received = module_of(simulation, simulation.server.w, simulation.server.buffers)
    before = simulation.store.read(range(4))["scaffold"]["c"]
    for client, change in enumerate(uploads(simulation)["scaffold.change"]):
        x, y = samples(client)
        slopes = torch.autograd.grad(cross_entropy(received(x).logits, y), list(received.parameters()))
        flat = dict(zip(dict(received.named_parameters()), slopes, strict=True))
        expected = torch.cat([flat[name].flatten() for name in simulation.model.layout.views(simulation.server.w)])
        torch.testing.assert_close(change + before[client], expected, rtol=0, atol=1e-12)


def test_rfedavgs_newcomers_have_the_initial_statistics_too():
    simulation = advanced(normed("rfedavg", sampling={"clients": 2}, seed=3), 1)
    simulation.server.kept["rfedavg"]["known"][:] = 0
    told = training_job(simulation, range(4)).sent["rfedavg"]["others"]
    first = module_of(simulation, simulation.setup.w, simulation.setup.buffers)
    means = torch.stack([first(samples(client)[0]).features.mean(0) for client in range(4)]).detach()
    assert float((simulation.server.buffers - simulation.setup.buffers).abs().max()) > 0.01
    torch.testing.assert_close(told[0], means[1:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", ["nova", "qfair", "fedavg", "disco(a=0.5)"])
def test_buffers_are_averaged_by_what_models_count_in_the_mean(method):
    """FedNova and q-FedAvg scale updates; statistics are no updates."""
    simulation = normed(method, sampling={}, local={**WORK, "epochs": 3})
    each = uploads(simulation)["buffers"]
    got = advanced(simulation, 1).server.buffers
    by_size, evenly = (SHARES[:, None] * each).sum(0), each.mean(0)
    if method == "disco(a=0.5)":
        assert float((got - by_size).abs().max()) > 1e-6
    else:
        torch.testing.assert_close(got, evenly if method == "qfair" else by_size, rtol=0, atol=1e-12)


def test_both_passes_of_sam_move_the_statistics_as_in_torch():
    simulation = normed("sam(rho=0.3)", local={**WORK, "epochs": 1}, optimizer={"lr": 0.1})
    got = uploads(simulation)["buffers"]
    for client in range(4):
        module = module_of(simulation, simulation.setup.w, simulation.setup.buffers).train()
        x, y = samples(client)
        plan = make_plan(simulation.chain, simulation.config.local, len(y), 4, seed=0, round=0, client=client)
        for row, count in zip(plan.positions, plan.counts, strict=True):
            at = row[:count]
            slopes = torch.autograd.grad(cross_entropy(module(x[at]).logits, y[at]), list(module.parameters()))
            norm = torch.cat([s.flatten() for s in slopes]).norm()
            with torch.no_grad():
                for p, s in zip(module.parameters(), slopes, strict=True):
                    p += 0.3 * s / norm
            there = torch.autograd.grad(cross_entropy(module(x[at]).logits, y[at]), list(module.parameters()))
            with torch.no_grad():
                for p, s, g in zip(module.parameters(), slopes, there, strict=True):
                    p -= 0.3 * s / norm + 0.1 * g
        views = simulation.model.buffers.views(got[client])
        for name, value in module.named_buffers():
            if name in views:
                torch.testing.assert_close(views[name], value, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("sizes", "local", "sentence"),
    [
        (
            (4, 1, 6),
            {"batch": 4, "drop_last": True},
            "client 1 has one sample in all; give each client more, such as with",
        ),
        ((1,) * 7, {"batch": 4}, "clients 0, 1, 2, 3, 4, … have one sample in all"),
        ((4, 6), {"batch": 1}, r"local.batch is 1; set it to 2 or more"),
        ((4, 5, 9), {"batch": 4}, "clients 1, 2 have one left over; set local.drop_last=true"),
    ],
)
def test_a_batch_of_one_is_told_with_what_helps(sizes, local, sentence):
    simulation = federation(data=toy(sizes), module=Normed(), local=local, engine={"kind": "loop"})
    with pytest.raises(UserError, match=f"BatchNorm needs two samples or more in a batch, and {sentence}"):
        simulation.advance()
