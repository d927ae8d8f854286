"""Accounting of Gaussian noise over rounds: Rényi differential privacy (Mironov, 2017), in float64.

A round adds noise of deviation `noise`, in units of the sensitivity: the most that one client can change a sum by. Its
price at order α is log E_α with E_α = E_Q[(P/Q)^α], where P and Q are the distributions of the released sum with a
client and with zero in its place, in the direction in which it is larger; log E_α = (α − 1) D_α. Prices of rounds add
up, because each holds for any outcome of the rounds before: cohorts are drawn anew, and clients train from what was
released. All rounds together are (ε, δ)-differentially private.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import simpson
from scipy.optimize import brentq
from scipy.special import erfcx, logsumexp

from fedbraid.core.sampling import Drawn
from fedbraid.errors import UserError

Floats = NDArray[np.float64]

ORDERS = np.array([1 + x / 10 for x in range(1, 100)] + [*range(12, 512)], dtype=np.float64)
"""The orders α; ε is the least over them."""
SOME = np.concatenate(
    [np.arange(11, 30) / 10, np.arange(6, 24) / 2, np.arange(12, 64, 2), np.arange(64, 128, 8), np.arange(128, 513, 64)]
)
"""Orders at which prices of drawn cohorts are computed; log E_α is convex in α: lines between them lie above it."""
PARTS = 1.0, 0.7, 0.5, 0.3, 0.1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-9
"""Of 1 − β: for each s the bound holds, and the best is taken at each place."""
MOST_NOISE = 1e6
LEAST_NOISE = 0.25
"""Below it cohorts are taken as if everybody were in them: ε is beyond all use."""


def spent(noise: float, rounds: int, delta: float, drawn: Drawn | None = None) -> float:
    """Return ε after `rounds` releases with noise of deviation `noise`, in units of the sensitivity.

    Args:
        noise: 0 gives infinity.
        rounds: releases; 0 gives 0.
        delta: δ, well below one over the number of clients.
        drawn: the sampling of clients; None = the client is in every round.
    """
    if not noise:
        return math.inf
    return epsilon(rounds * price(noise, drawn), delta) if rounds else 0.0


def epsilon(prices: Floats, delta: float) -> float:
    """Convert the sum of all prices, one for each of ORDERS, to ε at δ (Canonne, Kamath & Steinke, 2020, prop. 12)."""
    a = ORDERS
    return max(0.0, float(np.min((prices - math.log(delta) - np.log(a)) / (a - 1) + np.log1p(-1 / a))))


def noise_for(target: float, rounds: int, delta: float, drawn: Drawn | None = None) -> float:
    """Return the least noise, to a thousandth, with which ε stays at `target` or below.

    Raises:
        UserError: `target` is below what these orders can certify at any noise.
    """

    def over(log_noise: float) -> float:
        return spent(math.exp(log_noise), rounds, delta, drawn) - target

    bounds = [math.log(1.0), math.log(2.0)]
    while over(bounds[0]) <= 0:
        bounds = [bounds[0] - math.log(2), bounds[0]]
    while over(bounds[1]) > 0:
        bounds = [bounds[1], bounds[1] + math.log(2)]
        if bounds[1] > math.log(MOST_NOISE):
            raise UserError(f"epsilon {target:g} is less than these orders of Rényi divergence can tell; choose more")
    found = math.exp(brentq(over, *bounds, xtol=1e-4))
    while spent(found, rounds, delta, drawn) > target:  # on the safe side of where the two meet
        found *= 1.0001
    return found


@cache
def price(noise: float, drawn: Drawn | None = None) -> Floats:
    """Return log E_α of a round at each of ORDERS.

    With sampling it is computed at SOME orders and interpolated: log E_α is convex in α, so that the lines are upper
    bounds. A cohort may turn out to be the client alone (`without_others`): then nothing hides whether it took part,
    and the plain Gaussian is charged with that probability, since E_α is jointly convex.
    """
    plain = gaussian(noise)
    if drawn is None or drawn.scheme == "everybody" or drawn.clients == drawn.population or noise < LEAST_NOISE:
        return plain(ORDERS)
    if drawn.scheme == "fixed":
        among = fixed_size(noise, drawn.clients / drawn.population)
    else:
        among = bernoulli(noise, drawn.rate)
    alone = drawn.without_others
    both = np.logaddexp(_log(1 - alone) + among(SOME), _log(alone) + plain(SOME))  # E_α is jointly convex
    least: Floats = np.minimum(plain(ORDERS), np.interp(ORDERS, [1, *SOME], [0, *both]))
    return least


Price = Callable[[Floats], Floats]


def gaussian(noise: float) -> Price:
    """Return the price of N(1, z²) against N(0, z²): log E_α = α (α − 1) / 2 z²."""
    return lambda a: a * (a - 1) / (2 * noise**2)


def bernoulli(noise: float, rate: float) -> Price:
    """Return the price of the sampled Gaussian mechanism: (1 − q) N(0, z²) + q N(1, z²) against N(0, z²).

    E_α = ∫ N(x; 0, z²) (1 − q + q exp((2 x − 1) / 2 z²))^α dx; the other way round it is less (Mironov, Talwar & Zhang,
    2019).
    """

    def at(order: float) -> float:
        # a sum is the integral up to 1e-15 where the function is smooth, and nothing at both ends
        low, high, step = -14 * noise, order + 14 * noise, min(noise / 4, noise**2 / 2)
        x = np.linspace(low, high, math.ceil((high - low) / step) + 1)
        ratio = np.logaddexp(_log(1 - rate), math.log(rate) + (2 * x - 1) / (2 * noise**2))
        density = -((x / noise) ** 2) / 2 - math.log(noise * math.sqrt(2 * math.pi))
        return float(logsumexp(density + order * ratio)) + math.log(x[1] - x[0])

    return lambda orders: np.array([at(order) for order in orders])


def fixed_size(noise: float, share: float) -> Price:
    """Return the price of m of K clients without replacement, γ = m / K the share.

    Where client k is not in the cohort, let another one j be there instead: what comes out is
    P = (1 − γ) N(Δ_j) + γ N(Δ_k) with client k and Q = (1 − γ) N(Δ_j) + γ N(0) with zero in its place, of which Δ_j and
    Δ_k are at most 2 apart, others at most 1. With H_t the hockey-stick divergence, τ = 1 + (t − 1) / γ and β = t / τ,
    for t ≥ 1 and every s in [0, 1] (Balle, Barthe & Gaboardi, 2018, theorem 2, is s = 1 − β),

        H_t(P ‖ Q) = γ H_τ(N(Δ_k) ‖ (1 − β) N(Δ_j) + β N(0)) ≤ γ (s G₂(τ (1 − β) / s) + (1 − s) G₁(τ β / (1 − s))),
        H_t(Q ‖ P) = γ H_τ(N(0) ‖ (1 − β) N(Δ_j) + β N(Δ_k)) ≤ γ G₁(τ),   G_r(τ) = H_τ(N(r, z²) ‖ N(0, z²)),

    and E_α − 1 = α (α − 1) ∫₁^∞ t^{α−2} H_t(P ‖ Q) + t^{−α−1} H_t(Q ‖ P) dt, here over u = log τ.
    """
    most = SOME[-1] / noise**2 + 40 / noise  # log t: forty deviations beyond what the largest order looks at
    furthest = np.logaddexp(0.0, most + math.log(-math.expm1(-most)) - math.log(share))
    u = np.linspace(0, furthest, 2 * math.ceil(32 * furthest * noise) + 1)
    log_t = np.logaddexp(_log(1 - share), math.log(share) + u)
    log_beta = np.minimum(log_t - u, 0.0)
    with_client, with_zero = _log_gap(1 / noise, log_t), _log_gap(1 / noise, u)  # s = 0 to begin with
    for part in PARTS:
        log_s = _log1m(log_beta) + math.log(part)
        far = log_s + _log_gap(2 / noise, u - math.log(part))
        near = _log1m(log_s) + _log_gap(1 / noise, log_t - _log1m(log_s))
        with_client = np.minimum(with_client, np.logaddexp(far, near))
    measure = 2 * math.log(share) + u  # γ of the bounds, and dt = γ τ du

    def at(order: float) -> float:
        both = np.logaddexp((order - 2) * log_t + with_client, -(order + 1) * log_t + with_zero) + measure
        top = both.max()
        more = top + math.log(simpson(np.exp(both - top), x=u)) + math.log(order * (order - 1))
        return float(np.logaddexp(0.0, more))

    return lambda orders: np.array([at(order) for order in orders])


def _log_gap(r: float, u: Floats) -> Floats:
    """log H_τ of two Gaussians r deviations apart at log τ = u: of Φ(a) − τ Φ(a − r), a = r / 2 − u / r."""
    a = r / 2 - u / r
    upper, lower = erfcx(-a / math.sqrt(2)), erfcx((r - a) / math.sqrt(2))  # Φ(a) = e^{−a²/2} erfcx(−a / √2) / 2
    gap: Floats = np.log((upper - lower) / 2) - a**2 / 2
    return gap


def _log1m(log_x: Floats) -> Floats:
    """log(1 − x)."""
    with np.errstate(divide="ignore"):
        return np.log(-np.expm1(log_x))


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf
