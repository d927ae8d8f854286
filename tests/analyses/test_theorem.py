"""FedDisco's bound and its minima, beside a general solver, the conditions of optimality and Disco itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedbraid.analyses.discrepancy import discrepancies
from fedbraid.analyses.theorem import Bound, Constants, onto_simplex
from fedbraid.errors import UserError
from fedbraid.strands.disco import disco_weights
from fedbraid.studies.calculations import CALCULATIONS
from fedbraid.studies.theorem_bound import bound

STRONG = Constants(local_steps=10, lr=0.03, dissimilarity=0.5, gap=0.2, lam=0.2)
"""Constants for which clients of great discrepancy matter: A = 0.16."""


def clients(seed: int, constants: Constants = STRONG, count: int = 8) -> Bound:
    rng = np.random.default_rng(seed)
    n, d = rng.dirichlet(np.full(count, 3.0)), rng.gamma(1.0, 0.6, count)
    return Bound(n, d, constants)


def some_weights(rng: np.random.Generator, count: int = 8) -> np.ndarray:
    return rng.dirichlet(np.ones(count))


def solved(value: Any, start: np.ndarray) -> np.ndarray:
    """The minimum over the simplex by SciPy's SLSQP, which knows nothing of the closed form."""
    from scipy.optimize import minimize

    found = minimize(
        value,
        start,
        method="SLSQP",
        bounds=[(0, 1)] * len(start),
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    point: np.ndarray = found.x
    return point


def test_the_bound_term_by_term() -> None:
    """Two clients by hand: tau 2, eta 0.1, L 1 give A = 0.04; p differs from n by 0.1, so W = 2 · 2 · 0.02 = 0.08."""
    two = Bound(np.array([0.6, 0.4]), np.array([1.0, 0.5]), Constants(2, 0.1, 1.0, 3.0, 2.0, 5.0, 10, 0.7))
    p = np.array([0.5, 0.5])
    t1 = 2 * 0.96 * 5.0 / (2 * 0.1 * 10)
    t2 = 0.96 * 0.08 * 2.0 / 2 * 1.5
    t3 = 2 * 0.96 * 1.0 * 0.1 * 3.0 * 0.5
    t4 = 2 * 1 * 3.0 * 1.0 * 0.01
    t5 = 2 * 0.04 * 2.0 * (0.5 + 0.25)
    t0 = 1 - 3 * 0.04 - 0.08 * 0.96
    assert two.original(p) == pytest.approx((t1 + t2 + t3 + t4 + t5) / t0, rel=1e-13)
    assert two.reformulated(p) == pytest.approx(t1 + t2 + t3 + t4 + t5 - 0.7 * t0, rel=1e-13)


def test_the_printed_theorem_has_less_deviation_by_the_number_of_clients() -> None:
    proven = clients(0)
    printed = replace(proven, constants=replace(STRONG, deviation="theorem"))
    p = some_weights(np.random.default_rng(0))
    assert proven.deviation(p) == pytest.approx(8 * printed.deviation(p))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("deviation", ["appendix", "theorem"])
def test_equation_54_is_the_reformulations_minimum(seed: int, deviation: Any) -> None:
    """The conditions of optimality: where weights are above zero the slope is -μ, elsewhere it is no less."""
    theorem = clients(seed, replace(STRONG, deviation=deviation))
    p = theorem.least_reformulated()
    assert p.min() >= 0 and p.sum() == pytest.approx(1, abs=1e-14)
    slope, used = theorem.slope(p), p > 0
    level = slope[used].mean()
    np.testing.assert_allclose(slope[used], level, atol=1e-12)
    assert (slope[~used] >= level - 1e-12).all()


def test_equation_54_as_it_is_printed() -> None:
    theorem = clients(1)
    p, n, d, c = theorem.least_reformulated(), theorem.n, theorem.d, STRONG
    a, b, k = c.drift, c.dissimilarity, len(n)
    assert (p > 0).all()  # so that all ν are 0
    own = 4 * b * (1 - a) * d.sum() + 4 * k * c.lam * (1 - a)
    below = own + 4 * (1 - a) * c.smoothness * c.lr * c.noise
    unsettled = (own * n - 2 * a * b * d) / below
    mu = (unsettled.sum() - 1) * below / k
    np.testing.assert_allclose(p, unsettled - mu / below, atol=1e-13)


def test_some_weights_are_zero_where_discrepancies_are_great() -> None:
    theorem = Bound(np.full(4, 0.25), np.array([0.0, 0.1, 0.1, 9.0]), replace(STRONG, deviation="theorem", lam=0.0))
    p = theorem.least_reformulated()
    assert p[3] == 0 and (p[:3] > 0).all() and p[0] > p[1] == p[2]


@pytest.mark.parametrize("seed", range(3))
def test_no_general_solver_finds_less(seed: int) -> None:
    theorem, rng = clients(seed, replace(STRONG, deviation="theorem")), np.random.default_rng(seed)
    best, closed = theorem.least(), theorem.least_reformulated()
    found = {theorem.original: theorem.original(best), theorem.reformulated: theorem.reformulated(closed)}
    for value, least in found.items():
        starts = [theorem.n, *(0.7 * theorem.n + 0.3 * some_weights(rng) for _ in range(3))]
        others = [value(onto_simplex(solved(value, start))) for start in starts]
        assert min(others) >= least - 1e-12
        assert min(others) == pytest.approx(least, abs=1e-7)
        drawn = [value(0.9 * theorem.n + 0.1 * some_weights(rng)) for _ in range(200)]
        assert min(drawn) > least


@pytest.mark.parametrize("seed", range(3))
def test_with_lambda_the_least_bound_both_forms_have_one_minimum(seed: int) -> None:
    theorem = clients(seed)
    best = theorem.least()
    np.testing.assert_allclose(theorem.least_reformulated(theorem.original(best)), best, atol=1e-12)
    assert theorem.reformulated(best, theorem.original(best)) == pytest.approx(0, abs=1e-12)
    assert theorem.original(best) < theorem.original(theorem.n)


@pytest.mark.parametrize("seed", range(3))
def test_the_best_weights_are_discos(seed: int) -> None:
    """Equation 55: p ∝ ReLU(n − a d + b), with the strand's own function."""
    theorem = clients(seed, replace(STRONG, deviation="theorem", lam=0.01))
    best = theorem.least()
    a, b = theorem.as_disco(theorem.original(best))
    assert a > 0
    n, d = torch.from_numpy(theorem.n), torch.from_numpy(theorem.d)
    np.testing.assert_allclose(disco_weights(n, d, a, b).numpy(), best, atol=1e-12)


def test_without_drift_the_sizes_are_best() -> None:
    """One local step: A = 0, discrepancy costs nothing, and without noise nothing else pulls away from n."""
    theorem = clients(0, Constants(local_steps=1, noise=0.0))
    np.testing.assert_allclose(theorem.least(), theorem.n, atol=1e-15)
    noisy = clients(0, Constants(local_steps=1, noise=100.0, gap=0.0))
    assert noisy.least().std() < noisy.n.std()  # noise asks for equal weights


def test_the_slope_is_the_derivative() -> None:
    theorem, rng = clients(2), np.random.default_rng(2)
    p, v, step = some_weights(rng), rng.normal(size=8), 1e-6
    difference = (theorem.reformulated(p + step * v) - theorem.reformulated(p - step * v)) / (2 * step)
    assert float(theorem.slope(p) @ v) == pytest.approx(difference, rel=1e-6)


def test_descent_ends_at_the_closed_form() -> None:
    theorem = clients(3)
    p = theorem.descended(some_weights(np.random.default_rng(3)), 2000, 0.02)
    np.testing.assert_allclose(p, theorem.least_reformulated(), atol=1e-10)


def test_the_point_of_the_simplex_that_is_next() -> None:
    np.testing.assert_allclose(onto_simplex(np.array([0.2, 0.3, 0.5])), [0.2, 0.3, 0.5])
    np.testing.assert_allclose(onto_simplex(np.array([1.2, 1.3, 1.5])), [0.2, 0.3, 0.5])
    np.testing.assert_allclose(onto_simplex(np.array([3.0, 0.0, -9.0])), [1, 0, 0])
    rng = np.random.default_rng(0)
    q = rng.normal(size=8)
    p = onto_simplex(q)
    assert all(((q - p) ** 2).sum() <= ((q - some_weights(rng)) ** 2).sum() for _ in range(200))


def test_nothing_is_bounded_far_from_the_sizes() -> None:
    theorem = clients(0)
    all_to_one = np.eye(8)[theorem.n.argmin()]
    assert theorem.denominator(all_to_one) < 0 and theorem.original(all_to_one) == np.inf


def test_constants_for_which_there_is_no_bound_are_refused() -> None:
    with pytest.raises(UserError, match=r"at most 1 / \(2 \* local_steps\) = 0.025, not 0.1"):
        Constants(local_steps=20, lr=0.1)
    with pytest.raises(UserError, match="below 1/3"):
        Constants(local_steps=20, lr=0.024)
    with pytest.raises(UserError, match="deviation must be"):
        Constants(deviation="other")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="noise must be"):
        Constants(noise=-1.0)


def test_discrepancies_are_discos() -> None:
    """One class of two is log 2 (KL), 1 (L1), √½ (L2) and 1 − √½ (cosine) from both; equal shares are 0 from them."""
    counts = np.array([[4.0, 0.0], [3.0, 3.0]])
    for metric, value in {"kl": np.log(2), "l1": 1.0, "l2": 0.5**0.5, "cosine": 1 - 0.5**0.5}.items():
        np.testing.assert_allclose(discrepancies(metric, counts), [value, 0], atol=1e-15)
    with pytest.raises(UserError, match="did you mean 'l2'"):
        discrepancies("l22", counts)


# --- table 6


def test_table_6_falls_in_both_forms() -> None:
    assert CALCULATIONS["bound"] is bound
    settings = {"distance": "l2", "deviation": "theorem"}
    along = {
        form: [bound(settings | {"form": form, "steps": steps}, 0) for steps in (0, 100, 400)]
        for form in ("reformulated", "original")
    }
    assert along["reformulated"][0] > along["reformulated"][1] > along["reformulated"][2]
    assert along["original"][0] > max(along["original"][1:])
    assert bound({}, 0) == bound({"weights": "sizes"}, 0)


def test_table_6_of_all_weights() -> None:
    least, closed, sizes = (bound({"weights": w, "lam": 0.0}, 0) for w in ("least", "reformulated", "sizes"))
    assert least < closed and least < sizes
    reformulated = {w: bound({"weights": w, "form": "reformulated"}, 0) for w in ("least", "reformulated", "disco")}
    assert reformulated["reformulated"] < min(reformulated["least"], reformulated["disco"])
    assert bound({}, 0) != bound({}, 1)  # a seed draws the clients


def test_table_6_refuses_what_it_does_not_know() -> None:
    for wrong in ({"stepps": 3}, {"form": "new"}, {"weights": "some"}, {"start": "end"}, {"distance": "far"}):
        with pytest.raises(UserError):
            bound(wrong, 0)
