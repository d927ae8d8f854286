"""What the papers' theorems say, on problems where it can be calculated."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers import federation
from local_world import a_client, one_hot
from local_world import objective as term_of
from torch import Tensor, nn

from fedbraid.analyses.adaptability import risks
from fedbraid.core.outputs import Outputs
from fedbraid.data.dataset import Dataset, Partition, Split
from fedbraid.strands.asd import Asd


class Weights(nn.Module):
    """Features x ⊙ u, whose sum is the output: a convex map of u, and a strongly convex loss."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.full((width,), 3.0))

    def forward(self, x: Tensor) -> Outputs:
        features = x * self.u
        return Outputs(features.sum(-1, keepdim=True), features)


def least_squares(method, x, y, owner, *, rounds, steps, lr, seed=0):
    """A federation of all clients whose losses are half their mean squared errors, with gradients of all their data."""
    split = Split(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64))
    parts = tuple(np.flatnonzero(owner == k) for k in range(owner.max() + 1))
    return federation(
        method,
        data=(Dataset("lines", split, split, 1, "regression"), Partition(parts)),
        module=Weights(split.x.shape[1]),
        local={"batch": 0, "steps": steps},
        optimizer={"lr": lr},
        rounds=rounds,
        evaluate={"every": rounds},
        seed=seed,
    )


def trained(*args, **settings):
    simulation = least_squares(*args, **settings)
    for _ in range(settings["rounds"]):
        simulation.advance()
    return simulation.deployed()[0].numpy()


# --- FedSkip, Theorem 1

SLOPES = np.linspace(1.0, 2.0, 6)
TARGETS = np.array([2.0, -1.0, 0.5, 3.0, -2.0, 1.0])
"""Client k has the loss ½ (a_k w − y_k)²."""


def skipped(every, T, steps=2, seeds=3):
    """The mean squared error after T steps at a rate of order log T / T, and the theorem's bound."""
    L, mu = SLOPES.max() ** 2, SLOPES.min() ** 2
    best = SLOPES @ TARGETS / (SLOPES @ SLOPES)
    lr = min(1 / (4 * L), 2 * np.log(T) / (mu * T))
    ends = [
        trained(
            f"skip(every={every})+uniform",
            SLOPES[:, None],
            TARGETS,
            np.arange(6),
            rounds=T // steps,
            steps=steps,
            lr=lr,
            seed=seed,
        )[0]
        for seed in range(seeds)
    ]
    gap = np.mean((SLOPES * best - TARGETS) ** 2) / 2  # Γ: every client's own minimum is 0
    path = np.array([min(TARGETS / SLOPES), max(TARGETS / SLOPES), 3.0])  # models stay between these
    G2 = np.max((SLOPES[:, None] * (SLOPES[:, None] * path - TARGETS[:, None])) ** 2)
    C = 6 * L * gap + 8 * every * steps**2 * G2  # full gradients: σ = 0
    start = (3.0 - best) ** 2
    bound = 32 * 4 * L / mu * start * np.exp(-mu * T / (8 * L)) + 36 * C / (mu**2 * T)
    return np.mean((np.array(ends) - best) ** 2), bound


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3])
def test_fedskip_is_within_its_theorems_bound_and_as_fast(every):
    """Lemma 4 takes rates up to 1/d, so d is 4 L for rates up to 1/(4 L); the theorem is printed with d = 1."""
    (short, its_bound), (long, longer_bound) = (skipped(every, T) for T in (120, 960))
    assert short < its_bound and long < longer_bound
    assert long < short / 4  # eight times as many steps: an eighth, but for the logarithm


def spreads(every, periods, clients):
    """Mean ‖w_k − w̄‖² before each average, in units of η² E² G²; half of the clients pull to either side.

    The models hardly move, so that the force stays as it is.
    """
    lr, steps, force = 1e-6, 2, 1e3
    x, y = np.ones((clients, 1)), force * np.tile([1.0, -1.0], clients // 2)
    rounds = every * periods
    simulation = least_squares(f"skip(every={every})", x, y, np.arange(clients), rounds=rounds, steps=steps, lr=lr)
    run, found = simulation.engine.run, []

    def seen(job, meanwhile):
        replies = run(job, meanwhile)
        models = replies.each("model")
        found.append(float((models - models.mean(0)).square().sum(-1).mean()))
        return replies

    simulation.engine.run = seen
    for _ in range(rounds):
        simulation.advance()
    return np.array(found[every - 1 :: every]) / (lr * steps * force) ** 2


def test_fedskips_divergence_grows_with_skips_and_not_with_their_square():
    """Lemma 3: mean ‖w_k − w̄‖² ≤ 4 Δ η² E² G². A model's way is Δ legs, dealt at random to either side."""
    few, many = spreads(2, 20, clients=8), spreads(6, 20, clients=8)
    assert few.mean() == pytest.approx(2, rel=0.3) and many.mean() == pytest.approx(6, rel=0.3)


def test_fedskips_lemma_holds_on_average_and_not_for_every_way():
    """Its proof adds up the legs' squares. A model that is dealt to the same side again and again goes further."""
    found = spreads(5, 40, clients=2)
    assert found.mean() < 4 * 5 < found.max()


# --- rFedAvg, Theorems 1 and 2

RNG = np.random.default_rng(5)
CLIENTS, EACH, LAM = 4, 6, 0.3
OWNER = np.repeat(np.arange(CLIENTS), EACH)
X = RNG.normal(size=(CLIENTS * EACH, 2)) + 0.7 * OWNER[:, None]
Y = X @ np.array([1.0, -2.0]) + OWNER + RNG.normal(size=len(X))
MEANS = np.stack([X[k == OWNER].mean(0) for k in range(CLIENTS)])


def objective(share):
    """Hessian and optimum of the mean of f_k + share λ r_k, with r_k the mean of ‖u ⊙ (x̄_k − x̄_j)‖² over j ≠ k."""
    apart = ((MEANS[:, None] - MEANS[None]) ** 2).sum((0, 1)) / (CLIENTS * (CLIENTS - 1))
    H = X.T @ X / len(X) + share * LAM * 2 * np.diag(apart)
    return H, np.linalg.solve(H, X.T @ Y / len(X))


def excess(method, T, steps):
    """F(u) − F* after T steps at a rate of order log T / T; F as the algorithm sees it."""
    H, best = objective(0.5)
    lr = min(1 / (4 * np.linalg.eigvalsh(H).max()), 3 * np.log(T) / (np.linalg.eigvalsh(H).min() * T))
    u = trained(f"{method}(lam={LAM})", X, Y, OWNER, rounds=T // steps, steps=steps, lr=lr)
    return (u - best) @ H @ (u - best) / 2


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rfedavg", "rfedavg_plus"])
def test_rfedavg_converges_at_the_rate_of_its_theorems(method):
    """F(w) − F* = O(1 / T): here even its square, since gradients are exact."""
    short, long = (excess(method, T, steps=5) for T in (300, 2400))
    assert long < short / 8 * 2


def test_rfedavgs_limit_has_half_the_strength_that_is_written():
    """Others' means are constants in a client's gradient, which leaves out half of the sum's slope."""
    (_, half), (_, full) = objective(0.5), objective(1.0)
    for method in ("rfedavg", "rfedavg_plus"):
        u = trained(f"{method}(lam={LAM})", X, Y, OWNER, rounds=150, steps=1, lr=0.1)
        assert np.abs(u - half).max() < 0.05 * np.abs(full - half).max()  # rFedAvg: means are a step old


@pytest.mark.slow
def test_a_smaller_bound_is_no_smaller_error():
    """C₂ < C₃ orders the bounds of rFedAvg+ and rFedAvg; on this problem rFedAvg is nearer, round by round alike."""
    for steps in (5, 20):
        assert excess("rfedavg", 600, steps) < excess("rfedavg_plus", 600, steps)


# --- ASD, Proposition 3.4

SHARES = np.array([[10, 4, 1, 1], [1, 10, 4, 1], [2, 2, 2, 10], [6, 1, 8, 1]], dtype=float)
"""Four clients' label counts."""


def dissimilarity(lam, sure):
    """G_d at a model that gives every class the same logits but for its name, with a teacher that is more or less sure.

    A sample's input is its class, so that gradients of two classes are at right angles and of one length: the
    assumption of the proposition, with one distribution of inputs given the class for all clients.
    """
    names = np.eye(4)
    gradients = []
    for counts in SHARES:
        y = np.repeat(np.arange(4), counts.astype(int))
        student, teacher = names[y], sure * names[y]
        client = a_client(y, counts, {"received": (teacher, names[y])})
        _, term, _ = term_of(Asd(lam=lam), student, names[y], one_hot(y), client)
        p = np.exp(student) / np.exp(student).sum(1, keepdims=True)
        slopes = (p - one_hot(y)) / len(y) + term
        gradients.append(one_hot(y).T @ slopes)  # of a linear layer on inputs that are classes
    gradients = np.array(gradients)
    return (gradients**2).sum((1, 2)).mean() / (gradients.mean(0) ** 2).sum()


@pytest.mark.parametrize("sure", [3.0, 0.2])
def test_asd_lowers_dissimilarity_from_some_strength_on(sure):
    """Also with a teacher that is less sure than the student, whose pull is against the task's at first."""
    plain = dissimilarity(0.0, sure)
    values = [dissimilarity(lam, sure) for lam in (1e2, 1e3, 1e4, 1e5)]
    assert plain > 1 and all(value < plain for value in values)
    assert all(a > b >= 1 for a, b in pairwise(values))
    assert values[-1] == pytest.approx(1, abs=1e-3)


def test_below_that_strength_it_may_be_higher():
    """b < 0 in eq. 53: λ_c = max(λ_b, −b / a) is above 0."""
    assert max(dissimilarity(lam, 0.2) for lam in (0.3, 1.0, 3.0, 10.0)) > dissimilarity(0.0, 0.2)
    assert dissimilarity(1.0, 3.0) < dissimilarity(0.0, 3.0)


# --- FedACD, Theorem 1


def test_uneven_error_rates_have_a_higher_risk_on_some_distributions():
    errors, clients, theta = np.array([0.1, 0.5, 0.2, 0.4]), 5, 0.1
    classes, mean = len(errors), errors.mean()
    own = np.array([0.4, 0.1, 0.3, 0.2])
    worst, least = errors.argmax(), errors.argmin()
    others = 1 / classes - (own - 1 / classes) / (clients - 1)
    others[worst] += theta / (clients - 1)
    others[least] -= theta / (clients - 1)
    assert (others > 0).all() and others.sum() == pytest.approx(1)
    counts = np.stack([own] + [others] * (clients - 1))
    (risk,) = risks(1 - errors[None], counts)
    assert risk == pytest.approx(mean + theta / clients * (errors[worst] - errors[least]))
    (even,) = risks(np.full((1, classes), 1 - mean), counts)
    assert risk > even == pytest.approx(mean)


def test_two_clients_can_be_too_few_for_that():
    """Eq. 5 asks the others to make up for the client's own distribution, which one client alone may not be able to."""
    errors, own = np.array([0.0, 0.5, 0.5]), np.array([1.0, 0.0, 0.0])
    reachable = [risks(1 - errors[None], np.stack([own, other]))[0] for other in np.eye(3)]  # linear in `other`
    assert max(reachable) == pytest.approx(0.25) and max(reachable) < errors.mean()
