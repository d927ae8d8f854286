"""The spectrum of a symmetric matrix that is known only by what it does to vectors.

The greatest eigenvalues come from SciPy's Lanczos, the trace from Hutchinson's estimator, the density of eigenvalues
from stochastic Lanczos quadrature.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedbraid.errors import UserError


@dataclass(frozen=True, eq=False)
class Matrix:
    """A symmetric matrix; `times` takes and gives vectors as the rows of [m, size]."""

    size: int
    times: Callable[[Tensor], Tensor]
    dtype: torch.dtype = torch.float64
    device: torch.device = torch.device("cpu")

    def signs(self, rows: int, rng: np.random.Generator) -> Tensor:
        """[rows, size] vectors of -1 and 1, each as likely."""
        drawn = torch.from_numpy(rng.integers(0, 2, (rows, self.size), dtype=np.int8))
        return drawn.to(self.device, self.dtype) * 2 - 1


@dataclass(frozen=True, eq=False)
class Top:
    """The greatest eigenvalues, descending, and their vectors."""

    values: np.ndarray  # [k]
    vectors: Tensor  # [k, size]


def top(matrix: Matrix, count: int, rng: np.random.Generator, tolerance: float = 1e-4) -> Top:
    """The `count` greatest eigenvalues.

    Lanczos stops when each vector's residual is below `tolerance` of its eigenvalue. For a symmetric matrix the
    eigenvalue is then right to about the square of that, unless others are closer.
    """
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    count = min(count, matrix.size - 1)
    if count < 1:
        raise UserError(f"a spectrum needs at least two parameters, not {matrix.size}")
    real = np.float64 if matrix.dtype == torch.float64 else np.float32

    def times(v: np.ndarray) -> np.ndarray:
        row = torch.from_numpy(np.ascontiguousarray(v.reshape(1, -1))).to(matrix.device, matrix.dtype)
        product: np.ndarray = matrix.times(row)[0].cpu().numpy().astype(real)
        return product

    operator = LinearOperator((matrix.size, matrix.size), matvec=times, dtype=real)
    start = rng.standard_normal(matrix.size).astype(real)
    try:
        values, vectors = eigsh(operator, count, which="LA", v0=start, tol=tolerance)
    except ArpackNoConvergence as error:
        raise UserError(f"the greatest eigenvalues were not found ({error}); ask for fewer of them") from None
    order = np.argsort(values)[::-1]
    columns = torch.from_numpy(np.ascontiguousarray(vectors[:, order].T))
    return Top(values[order].astype(np.float64), columns.to(matrix.device, matrix.dtype))


def without(matrix: Matrix, known: Top | None) -> Matrix:
    """PAP with P = I - QᵀQ, where the rows of Q are the eigenvectors that are known."""
    if known is None:
        return matrix
    return replace(matrix, times=lambda rows: _projected(matrix.times(_projected(rows, known)), known))


def _projected(rows: Tensor, known: Top | None) -> Tensor:
    return rows if known is None else rows - (rows @ known.vectors.T) @ known.vectors


@dataclass(frozen=True)
class Estimate:
    """A mean, and the standard error that it has."""

    value: float
    error: float


TOGETHER = 10
"""Probes that are multiplied in one go."""


def trace(matrix: Matrix, probes: int, rng: np.random.Generator, known: Top | None = None) -> Estimate:
    """The trace, as the mean of vᵀAv over random signs v.

    With eigenvalues that are known only the rest is estimated, and its spread is that of the eigenvalues in the rest.
    """
    if probes < 2:
        raise UserError(f"a trace's error needs at least two probes, not {probes}")
    rest, drawn = without(matrix, known), []
    for rows in _groups(probes, TOGETHER):
        v = matrix.signs(rows, rng)
        drawn.append((v * rest.times(v)).sum(1, dtype=torch.float64).cpu())
    each = torch.cat(drawn).numpy() + (0.0 if known is None else known.values.sum())
    return Estimate(float(each.mean()), float(each.std(ddof=1) / probes**0.5))


def _groups(count: int, size: int) -> list[int]:
    return [min(size, count - start) for start in range(0, count, size)]


@dataclass(frozen=True, eq=False)
class Density:
    """A distribution of eigenvalues: points, and the share of all eigenvalues that each stands for."""

    points: np.ndarray
    weights: np.ndarray

    def moment(self, power: int) -> float:
        """The mean of the eigenvalues' powers."""
        return float((self.weights * self.points**power).sum())

    def smoothed(self, at: np.ndarray, width: float) -> np.ndarray:
        """Return the density at some points, with each point spread into a Gaussian of this width."""
        bells = np.exp(-(((at[:, None] - self.points) / width) ** 2) / 2) / (width * (2 * np.pi) ** 0.5)
        density: np.ndarray = bells @ self.weights
        return density


def density(matrix: Matrix, starts: int, steps: int, rng: np.random.Generator, known: Top | None = None) -> Density:
    """The density of eigenvalues, by Lanczos quadrature from random signs.

    With k steps from v, the tridiagonal matrix T has e₁ᵀTⁿe₁ = vᵀAⁿv / vᵀv for all n < 2k, so the mean over v has the
    moments of the spectrum up to the spread of the starts. Eigenvalues that are known stand where they are, each with
    the share of one.
    """
    rest, found = without(matrix, known), 0 if known is None else len(known.values)
    rules = [quadrature(rest, _projected(matrix.signs(1, rng), known)[0], steps) for _ in range(starts)]
    points, weights = (np.concatenate(parts) for parts in zip(*rules, strict=True))
    weights = weights / starts * (1 - found / matrix.size)
    if known is not None:
        points, weights = np.append(points, known.values), np.append(weights, np.full(found, 1 / matrix.size))
    order = np.argsort(points, kind="stable")
    return Density(points[order], weights[order])


def quadrature(matrix: Matrix, start: Tensor, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """The points and weights with which Σ wᵢ f(θᵢ) = vᵀf(A)v / vᵀv, exactly for polynomials below degree 2 · steps."""
    from scipy.linalg import eigh_tridiagonal

    diagonal, beside = lanczos(matrix, start, steps)
    points, vectors = eigh_tridiagonal(diagonal, beside)
    return points, vectors[0] ** 2


def lanczos(matrix: Matrix, start: Tensor, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """The diagonals [k] and [k - 1] of T = QAQᵀ, where Q spans start, A start, …, Aᵏ⁻¹ start.

    k is `steps`, or less where these span no more. Every vector is made orthogonal to all before it, twice: rounding
    would otherwise let eigenvalues appear again and again.
    """
    basis = torch.zeros(min(steps, matrix.size), matrix.size, dtype=matrix.dtype, device=matrix.device)
    basis[0] = start / start.norm()
    diagonal, beside = [], []
    for k in range(len(basis)):
        ahead = matrix.times(basis[k : k + 1])[0]
        diagonal.append(float(ahead @ basis[k]))
        if k + 1 == len(basis):
            break
        scale = float(ahead.norm())
        for _ in range(2):
            ahead = ahead - basis[: k + 1].T @ (basis[: k + 1] @ ahead)
        length = float(ahead.norm())
        if length <= 100 * torch.finfo(matrix.dtype).eps * scale:  # nothing but rounding is left
            break
        basis[k + 1] = ahead / length
        beside.append(length)
    return np.array(diagonal), np.array(beside)
