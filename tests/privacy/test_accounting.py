"""The accountant against closed forms, another accountant, published numbers, and what really comes out of rounds."""

import math
from itertools import combinations, product

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from fedbraid.core.sampling import Drawn
from fedbraid.errors import UserError
from fedbraid.privacy.accounting import ORDERS, SOME, bernoulli, epsilon, fixed_size, gaussian, noise_for, price, spent

DELTA = 1e-5


def exact(noise, delta=DELTA):
    """ε of one Gaussian release: δ(ε) = Φ(1/2z − εz) − e^ε Φ(−1/2z − εz) (Balle & Wang, 2018, theorem 8)."""
    low, high = 0.0, 1e4
    for _ in range(200):
        e = (low + high) / 2
        at = norm.cdf(0.5 / noise - e * noise) - math.exp(e + norm.logcdf(-0.5 / noise - e * noise))
        low, high = (e, high) if at > delta else (low, e)
    return high


@pytest.mark.parametrize(("noise", "rounds"), [(0.6, 1), (1.0, 1), (2.0, 10), (5.0, 100), (40.0, 1000)])
def test_clients_in_every_round(noise, rounds):
    """T releases are one with noise z / √T: never less than its exact ε, and not much more."""
    bound, true = spent(noise, rounds, DELTA), exact(noise / math.sqrt(rounds))
    assert true <= bound <= 1.2 * true


OPACUS = {
    (0.6, 0.2): (0.472082483731, 9.27175351332, 87.2539043429, 709.498523614, 42.7664336873),
    (1.1, 0.01): (0.000128510081605, 0.00058407033552, 21.7680128663, 206.956065673, 0.956091098747),
    (4.0, 0.01): (6.44942509419e-06, 2.58991230124e-05, 0.000215209161618, 11.3858177393, 0.0896596944896),
    (2.0, 0.9): (0.207063426315, 0.901866584865, 7.89296711151, 63.8944332994, 30.8329737354),
    (1.0, 1.0): (1, 4, 32, 256, 96.1163084251),
}
"""Rényi divergence at orders 2, 8, 64 and 512 by noise and rate, and ε after 100 rounds: Opacus 1.6.0."""


@pytest.mark.parametrize(("noise", "rate"), OPACUS)
def test_bernoulli_as_opacus_has_it(noise, rate):
    *theirs, their_epsilon = OPACUS[noise, rate]
    orders = np.array([2.0, 8.0, 64.0, 512.0])
    assert bernoulli(noise, rate)(orders) / (orders - 1) == pytest.approx(theirs, rel=1e-9)
    ours = spent(noise, 100, DELTA, Drawn(10**6, "bernoulli", rate=rate))
    assert their_epsilon * (1 - 1e-9) <= ours <= 1.01 * their_epsilon  # between orders a line, which lies above


# --- the same questions to dp-accounting 0.6.0, whose answers for δ = 1e-5 are copied here

GOOGLE = {
    (0.6, 1): 8.603286599774938,
    (2.0, 10): 8.079406222420491,
    (5.0, 100): 10.725509696418232,
    (40.0, 1000): 3.617099772983339,
}
"""ε by noise and rounds: RdpAccountant of GaussianDpEvent, ADD_OR_REMOVE_ONE."""

GOOGLE_SAMPLED = {
    (0.6, 0.2, 100): 47.70077052320549,
    (1.0, 0.05, 100): 4.038913049449792,
    (1.1, 0.01, 100): 0.9560911044993916,
    (2.0, 0.9, 100): 30.832973735364686,
    (4.0, 0.01, 10_000): 1.0354900660362436,
    (8.0, 0.1, 1000): 1.6921977330208509,
}
"""ε by noise, rate and rounds: PoissonSampledDpEvent of GaussianDpEvent."""

GOOGLE_REPLACED = {
    (1.1, 1000, 50, 100): 22.908743375163795,
    (2.0, 100, 10, 100): 14.053750225346512,
    (4.0, 1000, 10, 1000): 1.445298242121019,
    (8.0, 100, 40, 200): 17.22813893988869,
}
"""ε by noise, clients, cohort and rounds: SampledWithoutReplacementDpEvent, REPLACE_ONE (the one relation that it has),
where a client's update may turn into its opposite: of GaussianDpEvent with half the noise."""


@pytest.mark.parametrize(("noise", "rounds"), GOOGLE)
def test_releases_as_dp_accounting_has_them(noise, rounds):
    assert spent(noise, rounds, DELTA) == pytest.approx(GOOGLE[noise, rounds], rel=1e-12)


@pytest.mark.parametrize(("noise", "rate", "rounds"), GOOGLE_SAMPLED)
def test_poisson_sampling_as_dp_accounting_has_it(noise, rate, rounds):
    """Lines between orders cost half a percent; at little noise, low orders that do not converge there win 10 %."""
    ours = spent(noise, rounds, DELTA, Drawn(10**6, "bernoulli", rate=rate))
    assert 0.89 < ours / GOOGLE_SAMPLED[noise, rate, rounds] < 1.006


@pytest.mark.parametrize(("noise", "population", "clients", "rounds"), GOOGLE_REPLACED)
def test_fixed_cohorts_are_between_poisson_sampling_and_replacement(noise, population, clients, rounds):
    """A client that turns to zero changes less than one that turns into its opposite, which bounds ours from above.

    From below it is held against Poisson sampling at the same rate, without the other client that a fixed cohort has in
    a missing one's place.
    """
    ours = spent(noise, rounds, DELTA, Drawn(population, "fixed", clients=clients))
    poisson = spent(noise, rounds, DELTA, Drawn(10**6, "bernoulli", rate=clients / population))  # never alone
    assert 0.99 * poisson < ours < 0.5 * GOOGLE_REPLACED[noise, population, clients, rounds]


def test_dp_accounting_still_answers_so():
    """The library itself, where it is installed."""
    dp = pytest.importorskip("dp_accounting")
    rdp = pytest.importorskip("dp_accounting.rdp")
    for (noise, rounds), expected in GOOGLE.items():
        accountant = rdp.RdpAccountant()
        accountant.compose(dp.GaussianDpEvent(noise), rounds)
        assert accountant.get_epsilon(DELTA) == pytest.approx(expected, rel=1e-9)
    for (noise, rate, rounds), expected in GOOGLE_SAMPLED.items():
        accountant = rdp.RdpAccountant()
        accountant.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise)), rounds)
        assert accountant.get_epsilon(DELTA) == pytest.approx(expected, rel=1e-9)


def test_as_published():
    """Abadi et al. (2016), section 3.2: q = 0.01, σ = 4, δ = 1e-5 give ε ≈ 1.26 after 10,000 steps."""
    prices = 10_000 * bernoulli(4.0, 0.01)(SOME)
    assert min((prices - math.log(DELTA)) / (SOME - 1)) == pytest.approx(1.26, abs=0.005)
    assert spent(4.0, 10_000, DELTA, Drawn(10**6, "bernoulli", rate=0.01)) < 1.26  # by a better conversion


@pytest.mark.parametrize("noise", [0.3, 1.0, 10.0])
def test_a_cohort_of_everybody_is_no_sample(noise):
    assert fixed_size(noise, 1.0)(SOME) == pytest.approx(gaussian(noise)(SOME), rel=1e-7)
    assert bernoulli(noise, 1.0)(SOME) == pytest.approx(gaussian(noise)(SOME), rel=1e-12)


# --- what really comes out

X = np.linspace(-60, 60, 24_001)


def log_moment(with_client, with_zero, noise, order):
    """log E_Q[(P/Q)^α] of mixtures {mean: probability}; the mean None is a round without a step."""

    def density(mixture):
        parts = [math.log(p) + norm.logpdf(X, mean, noise) for mean, p in mixture.items() if mean is not None and p]
        return logsumexp(parts, axis=0) if parts else np.full_like(X, -np.inf)

    p, q = density(with_client), density(with_zero)
    nothing = with_client.get(None, 0.0)
    assert nothing == pytest.approx(with_zero.get(None, 0.0))
    return math.log(np.trapezoid(np.exp(order * p - (order - 1) * q), X) + nothing)


def outcomes(drawn, updates):
    """{sum of updates: probability} of a round, by all cohorts and all that can be lost of them."""
    n, found = drawn.population, {}
    for size in range(1, n + 1):
        for cohort in combinations(range(n), size):
            if drawn.scheme == "fixed":
                chance = (size == drawn.clients) / math.comb(n, size)
            else:
                chance = drawn.rate**size * (1 - drawn.rate) ** (n - size) / (1 - (1 - drawn.rate) ** n)
            for came in product((True, False), repeat=size):
                kept = (1 - drawn.dropout) ** sum(came) * drawn.dropout ** (size - sum(came))
                total = sum(updates[k] for k, c in zip(cohort, came, strict=True) if c) if any(came) else None
                found[total] = found.get(total, 0.0) + chance * kept
    return {total: chance for total, chance in found.items() if chance}


SCHEMES = [
    Drawn(4, "fixed", clients=2),
    Drawn(5, "fixed", clients=1),
    Drawn(4, "fixed", clients=2, dropout=0.4),
    Drawn(1, "bernoulli", rate=0.1),
    Drawn(3, "bernoulli", rate=0.2),
    Drawn(4, "bernoulli", rate=0.5, dropout=0.5),
    Drawn(4, "everybody"),
]


@pytest.mark.parametrize("drawn", SCHEMES, ids=repr)
@pytest.mark.parametrize("noise", [0.7, 2.0])
def test_no_round_costs_more_than_its_price(drawn, noise):
    """The first client's update against zero, whatever the others have, in both directions."""
    others = [(1,) * (drawn.population - 1), (-1,) * (drawn.population - 1), (0,) * (drawn.population - 1)]
    prices = dict(zip(ORDERS, price(noise, drawn), strict=True))
    for rest, order in product(others, (1.5, 2.0, 3.0, 8.0)):
        one, zero = (outcomes(drawn, (mine, *rest)) for mine in (1, 0))
        cost = max(log_moment(one, zero, noise, order), log_moment(zero, one, noise, order))
        assert cost <= prices[order] * (1 + 1e-9), (rest, order)


@pytest.mark.parametrize("noise", [0.7, 1.0, 3.0])
@pytest.mark.parametrize("share", [0.02, 0.3])
def test_cohorts_of_a_fixed_size_are_not_charged_much_more_than_they_cost(noise, share):
    """The others' updates opposite to the client's are what its bound is made for."""
    for order in (2.0, 4.0):
        one, zero = ({-1: 1 - share, mine: share} for mine in (1, 0))
        cost = log_moment(one, zero, noise, order)
        assert cost <= fixed_size(noise, share)(np.array([order]))[0] <= 1.3 * cost


@pytest.mark.parametrize(
    "drawn", [Drawn(3, "fixed", clients=2, dropout=0.3), Drawn(3, "bernoulli", rate=0.4, dropout=0.3)], ids=repr
)
def test_the_chance_that_no_other_comes(drawn):
    """By all cohorts: the sum of the others' ones is 0, or nobody came."""
    others = outcomes(drawn, (0, 1, 1))
    nobody, alone = others.get(None, 0.0), others.get(0, 0.0)
    if drawn.scheme == "fixed":  # a place of the cohort is another's or the client's; its holder may be lost, too
        assert drawn.without_others == pytest.approx(drawn.dropout**drawn.clients)
        assert nobody == pytest.approx(drawn.without_others)
    else:
        assert drawn.without_others == pytest.approx(nobody + alone)


def test_a_rate_that_is_nearly_nothing_is_the_chance_to_be_the_only_one():
    assert Drawn(5, "bernoulli", rate=1e-17).without_others == pytest.approx(1 / 5)
    assert Drawn(5, "bernoulli", rate=1.0, dropout=0.5).without_others == pytest.approx(0.5**4)


# --- ε


def test_more_rounds_cost_more_and_more_noise_less():
    drawn = Drawn(100, "fixed", clients=10)
    assert spent(1.0, 0, DELTA, drawn) == 0.0 and spent(0.0, 3, DELTA, drawn) == math.inf
    by_round = [spent(1.0, rounds, DELTA, drawn) for rounds in (1, 2, 10, 100)]
    assert by_round == sorted(set(by_round))
    by_noise = [spent(noise, 10, DELTA, drawn) for noise in (0.1, 0.3, 1.0, 3.0, 100.0)]
    assert by_noise == sorted(set(by_noise), reverse=True)
    assert epsilon(np.zeros_like(ORDERS), 0.1) == 0.0


@pytest.mark.parametrize("drawn", [None, Drawn(1000, "bernoulli", rate=0.05)], ids=repr)
@pytest.mark.parametrize("target", [0.5, 4.0, 20.0])
def test_the_noise_that_an_epsilon_takes(target, drawn):
    noise = noise_for(target, 20, DELTA, drawn)
    assert 0.999 * target <= spent(noise, 20, DELTA, drawn) <= target


def test_what_cannot_be():
    with pytest.raises(UserError, match="less than these orders"):
        noise_for(1e-6, 1, DELTA)
    with pytest.raises(UserError, match="5 of 4"):
        Drawn(4, "fixed", clients=5)
    with pytest.raises(UserError, match="rate lies in"):
        Drawn(4, "bernoulli", rate=0.0)
