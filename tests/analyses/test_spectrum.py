"""Eigenvalues, trace and density of matrices whose spectrum is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedbraid.analyses.spectrum import Density, Matrix, density, lanczos, quadrature, top, trace
from fedbraid.errors import UserError


def known(eigenvalues: list[float] | np.ndarray, seed: int = 0) -> tuple[Matrix, Tensor]:
    """A dense matrix with these eigenvalues, turned at random, and as it is."""
    values = torch.as_tensor(np.asarray(eigenvalues, dtype=np.float64))
    turned, _ = torch.linalg.qr(torch.randn(len(values), len(values), generator=torch.manual_seed(seed)).double())
    dense = turned @ torch.diag(values) @ turned.T
    return Matrix(len(values), lambda rows: rows @ dense), dense


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_the_greatest_eigenvalues_are_found_not_those_of_greatest_size() -> None:
    spectrum = np.concatenate([np.linspace(-1, 1, 60), [7.0, 5.0, 3.0], [-20.0]])
    matrix, dense = known(spectrum)
    found = top(matrix, 3, rng())
    np.testing.assert_allclose(found.values, [7, 5, 3], rtol=1e-7)
    residual = found.vectors @ dense - torch.from_numpy(found.values.copy())[:, None] * found.vectors
    assert float(residual.norm()) < 1e-3
    torch.testing.assert_close(found.vectors @ found.vectors.T, torch.eye(3, dtype=torch.float64))


def test_more_eigenvalues_than_lanczos_can_find_are_as_many_as_it_can() -> None:
    matrix, _ = known([1.0, 2.0, 3.0])
    np.testing.assert_allclose(top(matrix, 10, rng()).values, [3, 2], rtol=1e-7)
    with pytest.raises(UserError, match="two parameters"):
        top(Matrix(1, lambda rows: rows), 1, rng())


def test_the_trace_of_a_diagonal_matrix_needs_one_probe() -> None:
    """vᵀAv = Σ aᵢ vᵢ² for any signs."""
    values = torch.arange(50, dtype=torch.float64)
    found = trace(Matrix(50, lambda rows: rows * values), 2, rng())
    assert found.value == pytest.approx(49 * 50 / 2, rel=1e-14)
    assert found.error == pytest.approx(0, abs=1e-10)


def test_the_traces_standard_error_is_the_one_that_theory_has() -> None:
    """Random signs have variance 2 (‖A‖² − Σ aᵢᵢ²)."""
    matrix, dense = known(np.linspace(-1, 3, 40))
    theory = (2 * (dense.square().sum() - dense.diagonal().square().sum())).sqrt() / 400**0.5
    found = trace(matrix, 400, rng())
    assert found.error == pytest.approx(float(theory), rel=0.15)
    assert abs(found.value - 40.0) < 4 * found.error


def test_known_eigenvectors_take_their_spread_out_of_the_trace() -> None:
    """With all that matters known, what is left of the trace is nearly certain; without, it is not."""
    matrix, _ = known([100.0, 50.0, *np.linspace(-0.1, 0.2, 60)])
    exact = 150 + 60 * 0.05
    plain, deflated = trace(matrix, 20, rng()), trace(matrix, 20, rng(), top(matrix, 2, rng()))
    assert plain.error > 5
    assert deflated.error < 0.2
    assert abs(deflated.value - exact) < 4 * deflated.error


def test_an_error_from_one_probe_is_refused() -> None:
    with pytest.raises(UserError, match="two probes"):
        trace(known([1.0, 2.0])[0], 1, rng())


def test_a_quadrature_of_as_many_steps_as_dimensions_has_the_eigenvalues_themselves() -> None:
    spectrum = np.sort(np.concatenate([np.linspace(-2, 2, 15), [30.0]]))
    matrix, dense = known(spectrum)
    start = torch.randn(16, generator=torch.manual_seed(1)).double()
    points, weights = quadrature(matrix, start, 50)
    np.testing.assert_allclose(points, spectrum, atol=1e-8)
    vectors = torch.linalg.eigh(dense)[1]
    np.testing.assert_allclose(weights, (vectors.T @ start).square() / start.square().sum(), atol=1e-8)


@pytest.mark.parametrize("steps", [1, 3, 6])
def test_a_quadrature_is_exact_below_degree_twice_its_steps(steps: int) -> None:
    matrix, dense = known(np.linspace(-1, 1.3, 40))
    start = torch.randn(40, generator=torch.manual_seed(1)).double()
    points, weights = quadrature(matrix, start, steps)
    power = start / start.norm()
    for n in range(2 * steps):
        assert float((weights * points**n).sum()) == pytest.approx(float(start @ power / start.norm()), abs=1e-12)
        power = dense @ power
    assert abs(float((weights * points ** (2 * steps)).sum()) - float(start @ power / start.norm())) > 1e-6


def test_the_density_has_the_moments_of_the_spectrum() -> None:
    """Signs that are orthogonal to each other (a Hadamard matrix) have no spread: the mean of vᵀf(A)v is tr f(A)."""
    from scipy.linalg import hadamard

    spectrum = np.concatenate([np.linspace(-1, 1, 30), [4.0, 9.0]])
    matrix, _ = known(spectrum)
    rows = iter(torch.from_numpy(hadamard(32).astype(np.float64)))

    class Orthogonal(Matrix):
        def signs(self, count: int, rng: np.random.Generator) -> Tensor:
            return next(rows)[None]

    found = density(Orthogonal(32, matrix.times), 32, 5, rng())
    for n in range(10):
        assert found.moment(n) == pytest.approx(float((spectrum**n).mean()), rel=1e-10)


def test_known_eigenvalues_stand_in_the_density_as_they_are() -> None:
    """Each with the share of one; a random start would give the outliers the shares that it happens to have."""
    spectrum = np.concatenate([np.linspace(-0.5, 0.5, 62), [50.0, 90.0]])
    matrix, _ = known(spectrum)
    plain = density(matrix, 1, 10, rng(2))
    exact = density(matrix, 1, 10, rng(2), top(matrix, 2, rng()))
    assert exact.weights[exact.points > 40].tolist() == [1 / 64, 1 / 64]
    np.testing.assert_allclose(exact.points[-2:], [50, 90], rtol=1e-7)
    assert exact.weights.sum() == pytest.approx(1)
    assert abs(exact.moment(1) - spectrum.mean()) < 0.1 < abs(plain.moment(1) - spectrum.mean())


def test_lanczos_stops_where_the_space_is_exhausted() -> None:
    """A start that two eigenvectors span gives a matrix of two rows, and no noise of a third."""
    matrix, dense = known(np.linspace(1, 20, 20))
    vectors = torch.linalg.eigh(dense)[1]
    diagonal, beside = lanczos(matrix, vectors[:, 3] + vectors[:, 8], 10)
    assert len(diagonal) == 2 and len(beside) == 1
    np.testing.assert_allclose(np.linalg.eigvalsh([[diagonal[0], beside[0]], [beside[0], diagonal[1]]]), [4, 9])


def test_no_eigenvalue_appears_twice() -> None:
    """Without orthogonalisation, rounding lets Lanczos find the outlier again and again."""
    matrix, _ = known([*np.linspace(0, 1, 199), 100.0])
    points, weights = quadrature(matrix, matrix.signs(1, rng())[0], 100)
    assert (points > 50).sum() == 1
    assert weights.sum() == pytest.approx(1)


def test_a_smoothed_density_is_a_density() -> None:
    at = np.linspace(-5, 5, 2001)
    smooth = Density(np.array([-1.0, 2.0]), np.array([0.25, 0.75])).smoothed(at, 0.1)
    assert np.trapezoid(smooth, at) == pytest.approx(1, abs=1e-6)
    assert smooth[np.abs(at - 2).argmin()] == pytest.approx(0.75 / (0.1 * (2 * np.pi) ** 0.5))


def test_the_same_seed_gives_the_same_numbers() -> None:
    matrix, _ = known(np.linspace(-1, 3, 40))
    one, again, other = (density(matrix, 2, 8, rng(seed)).points for seed in (0, 0, 1))
    assert (one == again).all() and (one != other).any()
