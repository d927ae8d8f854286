"""SCAFFOLD, FedDyn, FedDC and FedSpeed: each paper's algorithm once more as a plain loop."""

import pytest
import torch
from covering import ENGINES
from helpers import held
from plain_loops import COHORT, ROUNDS, SIZES, N, World, far


def zeros(like):
    return torch.zeros(N, len(like), dtype=like.dtype)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("option", [1, 2])
@pytest.mark.parametrize(
    ("hyper", "optimizer"),
    [
        ({}, {}),
        ({"server_lr": 0.6}, {"decay": 0.7, "weight_decay": 0.05}),
        ({"strength": 0.5}, {"momentum": 0.8, "decay": 0.7}),
        ({}, {"momentum": 0.8, "nesterov": True}),
    ],
)
def test_scaffold(kind, option, hyper, optimizer):
    world = World(optimizer=optimizer)
    x, strength = world.start, hyper.get("strength", 1.0)
    c, own = torch.zeros_like(x), zeros(x)
    for t in range(ROUNDS):
        models, changes = [], []
        for k in world.cohort(t):
            shift = strength * (c - own[k])
            y = world.local(t, k, x, lambda w, shift=shift: shift)
            new = world.slope(x, k) if option == 1 else (x - y) / (world.reach(t, k) * world.lr(t)) - shift
            models.append(y)
            changes.append(new - own[k])
            own[k] = new
        x = x + hyper.get("server_lr", 1.0) * (torch.stack(models).mean(0) - x)
        c = c + torch.stack(changes).sum(0) / N
    written = "".join(f", {name}={value}" for name, value in hyper.items())
    simulation = world.trained(f"scaffold(option={option}{written})", kind)
    assert far(simulation.server.w, x) < 1e-10
    assert far(simulation.server.kept["scaffold"]["c"], c) < 1e-10
    assert far(held(simulation)["clients/scaffold/c"], own) < 1e-10


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("by_size", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_feddyn_in_the_papers_own_units(kind, by_size, momentum):
    """Gradient memories g_i and the server's h as printed (Algorithm 1), α of each client over its relative size."""
    world, alpha = World(optimizer={"momentum": momentum, "decay": 0.9}), 0.3
    theta, sizes = world.start, torch.tensor(SIZES, dtype=torch.float64)
    relative = N * sizes / sizes.sum() if by_size else torch.ones(N, dtype=torch.float64)
    own, h = zeros(theta), torch.zeros_like(theta)
    for t in range(ROUNDS):
        models = []
        for k in world.cohort(t):
            a = alpha / relative[k]
            y = world.local(t, k, theta, lambda w, a=a, g=own[k], x=theta: a * (w - x) - g)
            own[k] = own[k] - a * (y - theta)
            models.append(y)
        mean = torch.stack(models).mean(0)
        h = h - alpha / N * (torch.stack(models) - theta).sum(0)
        theta = mean - h / alpha
    simulation = world.trained(f"drift(alpha={alpha}, by_size={by_size})", kind)
    assert far(simulation.server.w, theta) < 1e-10
    assert far(simulation.deployed()[0], mean) < 1e-10
    assert far(-alpha / relative[:, None] * held(simulation)["clients/drift/h"], own) < 1e-10
    assert far(-alpha * simulation.server.kept["drift"]["h"], h) < 1e-10


@pytest.mark.parametrize("kind", ENGINES)
def test_feddc(kind):
    """The authors' code: drifts h_i, control variates c_i, the mean of everybody's drift on the server."""
    world, alpha = World(optimizer={"decay": 0.9}), 0.3
    theta = world.start
    c, own_c, own_h = torch.zeros_like(theta), zeros(theta), zeros(theta)
    for t in range(ROUNDS):
        models, changes = [], []
        for k in world.cohort(t):

            def correct(w, h=own_h[k], shift=c - own_c[k], x=theta):
                return alpha * (w - (x - h)) + shift

            y = world.local(t, k, theta, correct)
            new = own_c[k] - c + (theta - y) / (len(world.plan(t, k)) * world.lr(t))
            models.append(y)
            changes.append(new - own_c[k])
            own_c[k], own_h[k] = new, own_h[k] + y - theta
        mean = torch.stack(models).mean(0)
        theta, c = mean + own_h.mean(0), c + torch.stack(changes).sum(0) / N
    simulation = world.trained(f"scaffold+drift(alpha={alpha})", kind)
    assert far(simulation.server.w, theta) < 1e-10
    assert far(simulation.deployed()[0], mean) < 1e-10
    assert far(held(simulation)["clients/scaffold/c"], own_c) < 1e-10
    assert far(held(simulation)["clients/drift/h"], own_h) < 1e-10


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("mix", [1.0, 0.75])
def test_fedspeed(kind, mix):
    """The authors' code, with the paper's mixing of both gradients; λ = 1 / α."""
    world, lamb, rho = World(), 5.0, 0.1
    x = world.start
    own = zeros(x)  # ĝ_i
    for t in range(ROUNDS):
        models = []
        for k in world.cohort(t):
            y, plan = x, world.plan(t, k)
            for row, count in zip(plan.positions, plan.counts, strict=True):
                at = torch.as_tensor(row[:count])
                g1 = world.slope(y, k, at)
                g2 = world.slope(y + rho * g1 / g1.norm(), k, at)
                y = y - world.lr(t) * ((1 - mix) * g1 + mix * g2 - own[k] + (y - x) / lamb)
            own[k] = own[k] - (y - x) / lamb
            models.append(y)
        mean = torch.stack(models).mean(0)
        x = mean - lamb * own.mean(0)
    simulation = world.trained(f"sam(rho={rho}, mix={mix})+drift(alpha={1 / lamb})", kind)
    assert far(simulation.server.w, x) < 1e-10
    assert far(simulation.deployed()[0], mean) < 1e-10


# --- identities


def test_fedspeed_that_looks_nowhere_is_feddyn():
    world = World()
    ours, theirs = world.trained("sam(rho=0)+drift(alpha=0.2)"), world.trained("drift(alpha=0.2)")
    assert far(ours.server.w, theirs.server.w) < 1e-15
    assert far(held(ours)["clients/drift/h"], held(theirs)["clients/drift/h"]) < 1e-15


def test_feddc_without_its_control_variates_is_feddyn():
    world = World()
    ours, theirs = world.trained("scaffold(strength=0)+drift(alpha=0.2)"), world.trained("drift(alpha=0.2)")
    assert far(ours.server.w, theirs.server.w) < 1e-14


def test_feddc_reads_the_same_from_either_side():
    world = World()
    assert far(world.trained("scaffold+drift").server.w, world.trained("drift+scaffold").server.w) < 1e-12


@pytest.mark.parametrize("method", ["drift", "scaffold+drift", "sam+drift"])
def test_the_mean_of_the_cohorts_models_is_handed_out(method):
    world = World()
    simulation = world.federation(method)
    for _ in range(ROUNDS):
        simulation.advance()
        mean = simulation.server.cohort_mean[0]
        assert far(simulation.deployed()[0], mean) < 1e-13
    assert far(simulation.server.w, mean) > 1e-3


def test_the_first_step_of_corrections_is_fedavgs():
    """With one local step and no state yet the corrections are 0, and FedDyn's server goes K / N further."""
    world = World(work={"batch": 0, "steps": 1})
    plain = world.trained("uniform", rounds=1).server.w
    for method in ("scaffold", "uniform+prox", "uniform+nova"):
        assert far(world.trained(method, rounds=1).server.w, plain) < 1e-15
    for method in ("drift", "scaffold+drift", "sam(rho=0)+drift"):
        simulation = world.trained(method, rounds=1)
        assert far(simulation.deployed()[0], plain) < 1e-15
        further = world.start + (1 + COHORT / N) * (plain - world.start)
        assert far(simulation.server.w, further) < 1e-14


@pytest.mark.parametrize("method", ["scaffold", "scaffold(option=1)", "drift", "scaffold+drift", "sam+drift"])
def test_clients_that_stay_away_keep_what_they_have(method):
    world = World()
    simulation = world.federation(method)
    before = held(simulation)
    for t in range(ROUNDS):
        simulation.advance()
        after = held(simulation)
        away = [k for k in range(N) if k not in world.cohort(t)]
        for key in (key for key in after if key.startswith("clients/")):
            assert torch.equal(before[key][away], after[key][away])
            assert not torch.equal(before[key][world.cohort(t)], after[key][world.cohort(t)])
        before = after
