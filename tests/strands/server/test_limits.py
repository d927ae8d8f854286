"""Where corrections lead in the end: least squares, three unlike clients of unequal size and unequal work.

A client's loss is half its mean squared error, so optima are solutions of linear equations.
"""

import numpy as np
import pytest
import torch
from helpers import federation
from plain_loops import far

from fedbraid.data.dataset import Dataset, Partition, Split

SIZES = (4, 8, 18)


def problem():
    """Inputs, labels and owners; every client has a slope of its own."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(sum(SIZES), 2))
    owner = np.repeat(np.arange(3), SIZES)
    y = (2.0 * owner - 1) * x[:, 0] + owner + rng.normal(size=len(x))
    x[:, 1] += 0.5 * owner
    return x, y, owner


def optimum(weights):
    x, y, owner = problem()
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    per_sample = np.asarray(weights)[owner] / np.asarray(SIZES)[owner]
    return torch.as_tensor(np.linalg.solve(x.T @ (per_sample[:, None] * x), x.T @ (per_sample * y)))


UNIFORM = optimum([1 / 3] * 3)
BY_SIZE = optimum(np.array(SIZES) / sum(SIZES))


def path(method, clients, rounds, local=None, **optimizer):
    """The models that are handed out round by round; a client takes one to three steps on its whole data in each."""
    x, y, owner = problem()
    split, parts = Split(x, y), tuple(np.flatnonzero(owner == k) for k in range(3))
    simulation = federation(
        method,
        data=(Dataset("lines", split, split, 1, "regression"), Partition(parts)),
        model={"name": "logistic"},
        local=local or {"batch": 0, "steps": 3, "least": 1},
        sampling={"clients": clients},
        optimizer={"lr": 0.2} | optimizer,
        engine={"kind": "loop"},
        rounds=rounds,
        evaluate={"every": rounds},
    )
    for _ in range(rounds):
        simulation.advance()
        yield simulation.deployed()[0]


def limit(*args, **settings):
    return list(path(*args, **settings))[-1]


@pytest.mark.parametrize(
    ("method", "clients", "rounds"),
    [
        ("scaffold", 3, 80),
        ("scaffold", 2, 80),
        pytest.param("scaffold(option=1)", 3, 80, marks=pytest.mark.slow),
        ("scaffold(option=1)", 2, 80),
        pytest.param("scaffold(server_lr=0.5)", 2, 160, marks=pytest.mark.slow),
        ("sizes+scaffold", 2, 80),
        pytest.param("drift(alpha=1.0)", 3, 90, marks=pytest.mark.slow),
        ("drift(alpha=1.0)", 2, 130),
        pytest.param("scaffold+drift(alpha=0.5)", 3, 100, marks=pytest.mark.slow),
        ("scaffold+drift(alpha=0.5)", 2, 110),
        pytest.param("sam(rho=0)+drift(alpha=1.0)", 2, 130, marks=pytest.mark.slow),
    ],
)
def test_corrections_reach_the_uniform_optimum(method, clients, rounds):
    assert far(limit(method, clients, rounds), UNIFORM) < 1e-9


@pytest.mark.parametrize(("clients", "rounds"), [(3, 90), pytest.param(2, 150, marks=pytest.mark.slow)])
def test_feddyn_by_size_reaches_the_weighted_optimum(clients, rounds):
    assert far(limit("drift(alpha=1.0, by_size=True)", clients, rounds), BY_SIZE) < 1e-9


@pytest.mark.parametrize("clients", [3, 2])
def test_scaffold_by_size_reaches_the_weighted_optimum(clients):
    assert far(limit("sizes+scaffold(by_size=True)", clients, 80), BY_SIZE) < 1e-9


def test_the_cohorts_own_drift_is_the_same_for_everybody_and_does_not_settle_for_some():
    everybody, cohort = (f"drift(alpha=1.0{more})" for more in ("", ", added=cohort"))
    assert far(limit(everybody, 3, 40), limit(cohort, 3, 40)) < 1e-12
    assert min(far(w, UNIFORM) for w in list(path(cohort, 2, 100))[80:]) > 1e-2


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.9, False), pytest.param(0.5, True, marks=pytest.mark.slow)])
def test_scaffold_reaches_it_under_momentum(momentum, nesterov):
    assert far(limit("scaffold", 3, 130, lr=0.1, momentum=momentum, nesterov=nesterov), UNIFORM) < 1e-9


def test_optima_differ():
    assert far(UNIFORM, BY_SIZE) > 0.1


UNEQUAL = {"batch": 4, "epochs": 2}
"""Two, four and ten steps in a round."""


def settled(method):
    """The mean of the models of many late rounds."""
    return torch.stack(list(path(method, 3, 60, local=UNEQUAL, lr=0.05))[20:]).mean(0)


def test_averaging_alone_does_not_arrive_and_fednova_comes_nearer():
    plain, pulled, normalised = (far(settled(method), BY_SIZE) for method in ("fedavg", "prox(mu=0.1)", "nova"))
    assert plain > 0.2
    assert pulled > 0.2
    assert normalised < 0.5 * plain


@pytest.mark.parametrize(("method", "goal"), [("fedavg", BY_SIZE), ("uniform", UNIFORM)])
def test_averaging_unlike_clients_is_off_however_long_it_goes_on(method, goal):
    late = list(path(method, 2, 60))[40:]
    assert min(far(w, goal) for w in late) > 1e-2


@pytest.mark.slow
def test_fedspeed_that_looks_ahead_stops_short():
    assert 1e-6 < far(limit("sam(rho=0.1)+drift(alpha=1.0)", 3, 90), UNIFORM) < 0.5
