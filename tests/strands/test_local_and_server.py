"""The strands that correct local gradients or the server's step, against NumPy."""

import numpy as np
import pytest
import torch
from by_hand import COHORT, LR, ROUNDS, World, far
from helpers import advanced, federation, held, identical, toy

from fedbraid.core.random import stream

NEUTRAL = [
    "prox(mu=0)",
    "avgm(beta=0)",
    "avgm(beta=0, nesterov=true)",
    "avgm(beta=0, dampened=true)",
    "disco(a=0, b=0)",
]


def delta(world, t, w, **local):
    """The server's step of FedAvg in round t."""
    cohort = world.cohort(t)
    models = [world.local(t, k, w, **local) for k in cohort]
    return np.average(models, axis=0, weights=world.sizes[cohort]) - w


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_prox_pulls_to_the_received_model_and_momentum_sees_it(rho):
    world, mu = World(), 0.4
    w = world.start
    for t in range(ROUNDS):
        w = w + delta(world, t, w, rho=rho, correct=lambda at, start=w: mu * (at - start))
    assert far(world.trained(f"prox(mu={mu})", {"momentum": rho}).server.w, w) < 1e-12


@pytest.mark.parametrize(("nesterov", "dampened"), [(False, False), (True, False), (False, True)])
def test_avgm_gives_the_server_momentum(nesterov, dampened):
    world, beta = World(), 0.7
    w, v = world.start, np.zeros_like(world.start)
    for t in range(ROUNDS):
        step = delta(world, t, w)
        v = beta * v + (1 - beta if dampened else 1) * step
        w = w + (step + beta * v if nesterov else v)
    simulation = world.trained(f"avgm(beta={beta}, nesterov={nesterov}, dampened={dampened})")
    assert far(simulation.server.w, w) < 1e-12
    assert far(simulation.server.kept["avgm"]["v"], v) < 1e-12


@pytest.mark.parametrize(
    ("work", "optimizer"),
    [
        ({"batch": 4, "epochs": 2}, {}),
        ({"batch": 4, "epochs": 2}, {"momentum": 0.9}),
        ({"batch": 4, "epochs": 2}, {"momentum": 0.9, "nesterov": True, "decay": 0.8}),
        ({"batch": 0, "steps": 5, "least": 1}, {"decay": 0.8}),
    ],
)
def test_scaffold_keeps_control_variates(work, optimizer):
    world = World(work)
    rho, nesterov = optimizer.get("momentum", 0.0), optimizer.get("nesterov", False)
    w, c, clients = world.start, 0 * world.start, np.zeros((len(world.sizes), len(world.start)))
    for t in range(ROUNDS):
        lr, models, changes = LR * optimizer.get("decay", 1.0) ** t, [], []
        for k in world.cohort(t):
            end = world.local(t, k, w, lr=lr, rho=rho, nesterov=nesterov, correct=c - clients[k])
            reach, v = 0.0, 0.0  # how far as many steps of a unit gradient at rate 1 go
            for _ in range(len(world.plan(t, k))):
                v = rho * v + 1
                reach += 1 + rho * v if nesterov else v
            new = clients[k] - c + (w - end) / (reach * lr)
            models.append(end)
            changes.append(new - clients[k])
            clients[k] = new
        w, c = np.mean(models, axis=0), c + np.sum(changes, axis=0) / len(world.sizes)
    simulation = world.trained("scaffold", optimizer)
    assert far(simulation.server.w, w) < 1e-10
    assert far(simulation.server.kept["scaffold"]["c"], c) < 1e-10
    assert far(held(simulation)["clients/scaffold/c"], clients) < 1e-10


@pytest.mark.parametrize("cohort", [3, 2])
def test_scaffold_finds_the_uniform_optimum_of_unlike_clients_and_fedavg_does_not(cohort):
    data = toy((6, 9, 20), (2,), task="regression", seed=3)
    (x, y), parts = (data[0].train.x, data[0].train.y), data[1].clients
    for k, part in enumerate(parts):
        x[part] += k - 1
        y[part] += 2 * k * x[part, 0]
    ones = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    hessian = np.mean([ones[p].T @ ones[p] / len(p) for p in parts], axis=0)
    optimum = np.linalg.solve(hessian, np.mean([ones[p].T @ y[p] / len(p) for p in parts], axis=0))
    settings = {
        "data": data,
        "model": {"name": "logistic"},
        "local": {"batch": 0, "steps": 4, "least": 1},
        "sampling": {"clients": cohort},
        "optimizer": {"lr": 0.2},
        "evaluate": {"every": 150},
        "rounds": 150,
    }
    assert far(advanced(federation("scaffold", **settings)).server.w, optimum) < 1e-9
    assert far(advanced(federation("uniform", **settings)).server.w, optimum) > 1e-2


@pytest.mark.parametrize(("rounds_each", "final"), [(2, True), (2, False), (3, True), (9, True), (9, False)])
def test_skip_lets_models_wander_and_weighs_them_by_the_samples_they_saw(rounds_each, final):
    world = World()
    w, models, seen = world.start, [world.start] * COHORT, np.zeros(COHORT)
    for t in range(ROUNDS):
        cohort = world.cohort(t)
        models = [world.local(t, k, m) for k, m in zip(cohort, models, strict=True)]
        seen = seen + world.sizes[cohort]
        if (t + 1) % rounds_each == 0 or (t + 1 == ROUNDS and final):
            w = np.average(models, axis=0, weights=seen)
            models, seen = [w] * COHORT, np.zeros(COHORT)
        else:
            order = stream(0, "server/skip", round=t).permutation(COHORT)
            models, seen = [models[i] for i in order], seen[order]
    simulation = world.trained(f"skip(every={rounds_each}, final_aggregate={final})")
    assert far(simulation.server.w, w) < 1e-12
    if final or ROUNDS % rounds_each == 0:
        assert simulation.server.kept["skip"] == {}
    else:
        assert far(simulation.server.kept["skip"]["model"], np.stack(models)) < 1e-12
        assert far(simulation.server.kept["skip"]["seen"], seen) < 1e-9


def test_models_that_wander_are_weighed_the_same_under_uniform_averaging():
    """Clients that count alike add the same to their slots, so slots stay alike: a plain mean."""
    world = World()
    w, models = world.start, [world.start] * COHORT
    for t in range(ROUNDS):
        models = [world.local(t, k, m) for k, m in zip(world.cohort(t), models, strict=True)]
        if t + 1 == ROUNDS:
            w = np.mean(models, axis=0)
        models = [models[i] for i in stream(0, "server/skip", round=t).permutation(COHORT)]
    assert far(world.trained("uniform+skip(every=9)").server.w, w) < 1e-12


@pytest.mark.parametrize("method", [*NEUTRAL, "skip(every=1)", "sizes"])
def test_neutral_hyper_parameters_are_fedavg_to_the_bit(method):
    world = World()
    assert torch.equal(world.trained(method).server.w, world.trained("fedavg").server.w)
    assert not torch.equal(world.trained("prox(mu=0.1)").server.w, world.trained("fedavg").server.w)


def test_scaffold_and_skip_commute():
    world = World()
    assert identical(held(world.trained("scaffold+skip(every=2)")), held(world.trained("skip(every=2)+scaffold")))


@pytest.mark.parametrize("method", ["skip(every=2)+avgm(beta=0.7)", "avgm(beta=0.7)+skip(every=2)"])
def test_momentum_acts_only_when_models_are_averaged(method):
    world, beta = World(), 0.7
    w, v, models, seen = world.start, 0 * world.start, [world.start] * COHORT, np.zeros(COHORT)
    for t in range(ROUNDS):
        models = [world.local(t, k, m) for k, m in zip(world.cohort(t), models, strict=True)]
        seen = seen + world.sizes[world.cohort(t)]
        order = stream(0, "server/skip", round=t).permutation(COHORT)
        models, seen = [models[i] for i in order], seen[order]
        if t % 2 or t + 1 == ROUNDS:
            v = beta * v + np.average(models, axis=0, weights=seen) - w
            w = w + v
            models, seen = [w] * COHORT, np.zeros(COHORT)
    assert far(world.trained(method).server.w, w) < 1e-12
