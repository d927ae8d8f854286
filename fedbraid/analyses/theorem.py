"""FedDisco's theorem 4.5: how far federated averaging with weights p may be from a stationary point.

min_t E‖∇F(w_t)‖² ≤ (T₁ + T₂ + T₃ + T₄ + T₅) / T₀ with

T₀ = 1 − 3A − W (1 − A)             A = 2τ(τ − 1)η²L²
T₁ = 2(1 − A)(F(w₀) − F_inf) / τηT  W = 2K Σ (n_k − p_k)²
T₂ = (1 − A) W B / K · Σ d_k
T₃ = 2(1 − A)Lησ² Σ p_k²
T₄ = 2(τ − 1)σ²L²η²
T₅ = 2AB Σ p_k d_k

Equation 1 reformulates it as T₁ + … + T₅ − λT₀. Its minimum has a closed form: with α = 2(1 − A)(B Σ d + Kλ) and
β = 2(1 − A)Lησ², all that depends on p is α‖p − n‖² + β‖p‖² + 2AB d·p = (α + β)‖p − q‖² up to a constant, where
q = (αn − ABd) / (α + β). So the minimum is the point of the simplex next to q, which is equation 54: ReLU(q − μ).

The bound itself is a convex function over a concave one, and Dinkelbach's method minimises it by a series of such
problems: for λ = the bound at p, the reformulation's minimum is the next p. Where it stands still, both forms have the
same minimum. So the reformulation loses nothing if λ is the least value of the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedbraid.config.registry import not_negative, positive, whole
from fedbraid.errors import UserError

Weights = NDArray[np.float64]
"""[K] clients' weights: none below zero, and 1 in all."""


@dataclass(frozen=True)
class Constants:
    """The constants that the theorem assumes. FedDisco gives no values for its table 6."""

    local_steps: int = 20  # τ
    lr: float = 0.01  # η
    smoothness: float = 1.0  # L
    noise: float = 1.0  # σ², the variance of a stochastic gradient
    dissimilarity: float = 1.0  # B: ‖∇F_k‖² ≤ ‖∇F‖² + B d_k
    gap: float = 1.0  # F(w₀) − F_inf
    horizon: int = 100  # T, rounds
    lam: float = 0.1  # λ
    deviation: Literal["appendix", "theorem"] = "appendix"
    """W = 2K Σ (n − p)², which the proof in appendix C has, or 2 Σ (n − p)², as the theorem is printed."""

    def __post_init__(self) -> None:
        if self.deviation not in ("appendix", "theorem"):
            raise UserError(f"deviation must be appendix or theorem, not {self.deviation!r}")
        for name in ("local_steps", "horizon"):
            whole(name, getattr(self, name))
        for name in ("lr", "smoothness"):
            positive(name, getattr(self, name))
        for name in ("noise", "dissimilarity", "gap", "lam"):
            not_negative(name, getattr(self, name))
        if self.lr * self.smoothness > 1 / (2 * self.local_steps):
            raise UserError(
                f"theorem 4.5 needs lr * smoothness of at most 1 / (2 * local_steps) = {0.5 / self.local_steps:g}, "
                f"not {self.lr * self.smoothness:g}"
            )
        if self.drift >= 1 / 3:
            raise UserError(
                f"the bound exists only for A = 2τ(τ − 1)η²L² below 1/3, not {self.drift:.3g}; "
                "choose a smaller lr or smoothness"
            )

    @property
    def drift(self) -> float:
        """A."""
        return 2 * self.local_steps * (self.local_steps - 1) * (self.lr * self.smoothness) ** 2


@dataclass(frozen=True, eq=False)
class Bound:
    """The theorem for clients of relative sizes n and discrepancies d, as a function of their weights."""

    n: Weights
    d: NDArray[np.float64]
    constants: Constants = Constants()

    def deviation(self, p: Weights) -> float:
        """W."""
        return float(self._factor * ((self.n - p) ** 2).sum())

    def numerator(self, p: Weights) -> float:
        """T₁ + T₂ + T₃ + T₄ + T₅."""
        c, a = self.constants, self.constants.drift
        t1 = 2 * (1 - a) * c.gap / (c.local_steps * c.lr * c.horizon)
        t2 = (1 - a) * self.deviation(p) * c.dissimilarity / len(p) * self.d.sum()
        t3 = 2 * (1 - a) * c.smoothness * c.lr * c.noise * (p**2).sum()
        t4 = 2 * (c.local_steps - 1) * c.noise * (c.smoothness * c.lr) ** 2
        t5 = 2 * a * c.dissimilarity * (p * self.d).sum()
        return float(t1 + t2 + t3 + t4 + t5)

    def denominator(self, p: Weights) -> float:
        """T₀; where it is not above zero, nothing is bounded."""
        a = self.constants.drift
        return 1 - 3 * a - self.deviation(p) * (1 - a)

    def original(self, p: Weights) -> float:
        below = self.denominator(p)
        return self.numerator(p) / below if below > 0 else math.inf

    def reformulated(self, p: Weights, lam: float | None = None) -> float:
        """Equation 1."""
        return self.numerator(p) - self._lam(lam) * self.denominator(p)

    def slope(self, p: Weights, lam: float | None = None) -> NDArray[np.float64]:
        """The reformulation's gradient."""
        pull, spread, cost = self._quadratic(lam)
        return 2 * pull * (p - self.n) + 2 * spread * p + cost

    # --- minima

    def least_reformulated(self, lam: float | None = None) -> Weights:
        """Equation 54: the reformulation's minimum."""
        pull, spread, cost = self._quadratic(lam)
        if pull + spread == 0:  # without noise, dissimilarity and λ all weights are as good
            return self.n
        return onto_simplex((pull * self.n - cost / 2) / (pull + spread))

    def least(self) -> Weights:
        """The bound's minimum, by Dinkelbach's method from p = n, where the bound is finite."""
        p, value = self.n, self.original(self.n)
        while True:
            ahead = self.least_reformulated(value)
            lower = self.original(ahead)
            if not lower < value:  # it falls until rounding is all that is left
                return p
            p, value = ahead, lower

    def as_disco(self, lam: float | None = None) -> tuple[float, float]:
        """The a and b for which ReLU(n_k − a d_k / Σ d + b), scaled to sum to 1, is the reformulation's minimum."""
        pull, spread, cost = self._quadratic(lam)
        p = self.least_reformulated(lam)
        level = (p * (pull + spread) + cost / 2) / pull - self.n  # the same for all whose weight is above zero
        return float(cost.sum()) / 2 / pull, float(level[p > 0].mean())

    def descended(self, p: Weights, steps: int, step: float) -> Weights:
        """`p` after so many steps of gradient descent on the reformulation, each projected onto the simplex."""
        for _ in range(steps):
            p = onto_simplex(p - step * self.slope(p))
        return p

    # --- parts

    @property
    def _factor(self) -> float:
        return 2.0 * len(self.n) if self.constants.deviation == "appendix" else 2.0

    def _lam(self, lam: float | None) -> float:
        return self.constants.lam if lam is None else lam

    def _quadratic(self, lam: float | None) -> tuple[float, float, NDArray[np.float64]]:
        """α, β and c of the part α‖p − n‖² + β‖p‖² + c·p that depends on p."""
        c, a = self.constants, self.constants.drift
        pull = (1 - a) * self._factor * (c.dissimilarity * float(self.d.sum()) / len(self.n) + self._lam(lam))
        return pull, 2 * (1 - a) * c.smoothness * c.lr * c.noise, 2 * a * c.dissimilarity * self.d


def onto_simplex(q: NDArray[np.float64]) -> Weights:
    """The weights next to q: ReLU(q − μ), with μ such that they sum to 1."""
    falling = np.sort(q)[::-1]
    levels = (np.cumsum(falling) - 1) / np.arange(1, len(q) + 1)  # μ, if so many of them stay above zero
    level = levels[np.flatnonzero(falling > levels)[-1]]
    weights: Weights = np.maximum(q - level, 0)
    return weights
