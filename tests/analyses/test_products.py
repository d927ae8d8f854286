"""The Hessian's products, beside the Hessian itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import hessian as exact

from fedbraid import models
from fedbraid.analyses import products, spectrum
from fedbraid.analyses.products import Loss, hessian
from fedbraid.core.model import Model
from fedbraid.core.outputs import Outputs
from fedbraid.core.task import Task, task_loss
from fedbraid.engines.samples import Samples

CPU = torch.device("cpu")


def loss_of(
    module: nn.Module, x: Tensor, y: Tensor, classes: int, task: Task = "classification", index: Any = None
) -> Loss:
    model = Model.of(module).to(torch.float64, CPU)
    w, buffers = model.initial(torch.float64, CPU)
    samples = Samples(x, y, classes, None, None, torch.float64, is_text=x.dtype == torch.int64)
    return Loss(model, w, buffers, samples, torch.arange(len(y)) if index is None else index, task)


def perceptron(samples: int = 150, index: Any = None) -> Loss:
    torch.manual_seed(0)
    x, y = torch.randn(samples, 4).double(), torch.randint(3, (samples,))
    return loss_of(models.build("mlp", (4,), 3, hidden=[6]), x, y, 3, index=index)


def dense(loss: Loss) -> Tensor:
    """The Hessian by torch, from all samples at once."""
    batch = loss.samples.batch(loss.index, torch.ones(len(loss.index), dtype=torch.float64))

    def value(w: Tensor) -> Tensor:
        return task_loss(loss.task, loss.model.predict(w, loss.buffers, batch.x).logits, batch)

    matrix: Tensor = exact(value, loss.w)
    return matrix


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_products_are_the_exact_hessians() -> None:
    loss = perceptron()  # two batches, the last one smaller
    times = hessian(loss).times(torch.eye(len(loss.w), dtype=torch.float64))
    torch.testing.assert_close(times, dense(loss), rtol=0, atol=1e-13)


def test_only_the_samples_that_are_named_count() -> None:
    some = torch.tensor([5, 7, 7, 140])  # one of them twice
    loss = perceptron(index=some)
    times = hessian(loss).times(torch.eye(len(loss.w), dtype=torch.float64))
    torch.testing.assert_close(times, dense(loss), rtol=0, atol=1e-13)
    assert (times - dense(perceptron())).abs().max() > 1e-3


def test_eigenvalues_trace_and_moments_are_the_exact_hessians() -> None:
    """Probes that are orthogonal to each other, as many as dimensions, leave nothing to chance."""
    loss = perceptron()
    itself = dense(loss)
    exactly = torch.linalg.eigvalsh(itself).numpy()
    matrix = hessian(loss)
    np.testing.assert_allclose(spectrum.top(matrix, 3, rng()).values, exactly[::-1][:3], rtol=1e-7)

    basis = iter(torch.eye(len(itself), dtype=torch.float64).repeat(2, 1) * len(itself) ** 0.5)

    class Orthogonal(spectrum.Matrix):
        def signs(self, rows: int, rng: np.random.Generator) -> Tensor:
            return torch.stack([next(basis) for _ in range(rows)])

    orthogonal = Orthogonal(matrix.size, matrix.times)
    assert spectrum.trace(orthogonal, matrix.size, rng()).value == pytest.approx(exactly.sum(), rel=1e-12)
    density = spectrum.density(orthogonal, matrix.size, 4, rng())
    for n in range(8):
        assert density.moment(n) == pytest.approx(float((exactly**n).mean()), rel=1e-10)


def test_random_probes_are_as_far_off_as_they_say() -> None:
    loss = perceptron()
    exactly = float(dense(loss).trace())
    matrix = hessian(loss)
    found = [spectrum.trace(matrix, 10, np.random.default_rng(seed)) for seed in range(20)]
    off = np.array([(trace.value - exactly) / trace.error for trace in found])
    assert abs(off.mean()) < 0.8 and 0.6 < off.std() < 1.6


def test_a_quadratic_has_the_hessian_that_it_is_made_of() -> None:
    """Half the squared error of a linear model has X'X / n, with a column of ones for the bias."""

    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Outputs:
            return Outputs(self.head(x), x)

    torch.manual_seed(0)
    x, y = torch.randn(50, 3).double(), torch.randn(50).double()
    loss = loss_of(Linear(), x, y, 0, "regression")
    ones = torch.cat([x, torch.ones(50, 1)], 1)
    times = hessian(loss).times(torch.eye(4, dtype=torch.float64))
    torch.testing.assert_close(times, ones.T @ ones / 50)


def test_frozen_parameters_take_no_part() -> None:
    module = models.build("mlp", (4,), 3, hidden=[6])
    next(module.parameters()).requires_grad_(False)
    torch.manual_seed(0)
    loss = loss_of(module, torch.randn(20, 4).double(), torch.randint(3, (20,)), 3)
    trained = ~loss.model.frozen  # type: ignore[operator]
    assert len(loss.at) == trained.sum() == len(loss.w) - 24
    times = hessian(loss).times(torch.eye(len(loss.at), dtype=torch.float64))
    torch.testing.assert_close(times, dense(loss)[trained][:, trained])


@pytest.mark.parametrize("name", ["lenet", "tiny-cnn", "resnet20", "vit-tiny", "textcnn", "lstm"])
def test_every_kind_of_layer_can_be_differentiated_twice(name: str) -> None:
    """Products beside differences of gradients, in a direction that is trained."""
    torch.manual_seed(0)
    text = name in ("textcnn", "lstm")
    shape, tokens = ((7,), tuple("abcdef")) if text else ((3, 16, 16) if name != "lenet" else (3, 20, 20), ())
    options = {"lstm": {"hidden": 4, "embedding": 3}, "vit-tiny": {"depth": 1}}.get(name, {})
    module = models.build(name, shape, 3, tokens=tokens, **options)
    x = torch.randint(1, 6, (3, *shape)) if text else torch.randn(3, *shape).double()
    loss = loss_of(module, x, torch.randint(3, (3,)), 3)

    def gradient(w: Tensor) -> Tensor:
        at = w.detach().requires_grad_()
        return torch.autograd.grad(loss.sum_over(loss.index, at), at)[0]

    v = gradient(loss.w)  # where a parameter has no part (the padding's embedding), it is zero
    v, step = v / v.norm(), 1e-6
    differences = (gradient(loss.w + step * v) - gradient(loss.w - step * v)) / (2 * step)
    product = hessian(loss).times(v[None])[0]
    assert (product - differences).norm() < 1e-5 * product.norm()


def test_batchnorm_is_as_it_is_evaluated() -> None:
    """So that the Hessian does not depend on how samples are batched."""
    torch.manual_seed(0)
    module = models.build("resnet20", (3, 8, 8), 3, norm="batch")
    loss = loss_of(module, torch.randn(4, 3, 8, 8).double(), torch.randint(3, (4,)), 3)
    v = torch.randn(1, len(loss.w)).double()
    parts = sum(next(products.batch_products(loss, one, v)) for one in torch.split(loss.index, 1))
    torch.testing.assert_close(hessian(loss).times(v)[0], parts)


def test_batches_shrink_with_the_memory_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = perceptron()
    v = torch.randn(2, len(loss.w)).double()
    usual = hessian(loss).times(v)
    each = products.graph_bytes(loss, loss.index[:2]) - products.graph_bytes(loss, loss.index[:1])
    monkeypatch.setattr(products, "free_memory", lambda device: int(7.5 * each / products.SHARE))
    assert products.batch_that_fits(loss) == 7
    torch.testing.assert_close(hessian(loss).times(v), usual)
    monkeypatch.setattr(products, "free_memory", lambda device: 0)
    assert products.batch_that_fits(loss) == 1


def test_every_product_is_told() -> None:
    told: list[None] = []
    loss = perceptron(20)
    spectrum.trace(hessian(loss, lambda: told.append(None)), 13, rng())
    assert len(told) == 13


def test_float32_is_right_to_its_own_rounding() -> None:
    loss = perceptron()
    single = Loss(
        loss.model.to(torch.float32, CPU),
        loss.w.float(),
        loss.buffers.float(),
        Samples(loss.samples.x.float(), loss.samples.y, 3, None, None, torch.float32),
        loss.index,
        loss.task,
    )
    exactly = torch.linalg.eigvalsh(dense(loss)).numpy()
    assert spectrum.top(hessian(single), 1, rng()).values[0] == pytest.approx(exactly[-1], rel=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its function transforms load torch's compiler
def test_another_library_has_the_same_products() -> None:
    curvlinops = pytest.importorskip("curvlinops")

    class Logits(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.module(x).logits
            return out

    loss = perceptron(20)
    network = Logits(loss.model.evaluating)
    data = [(loss.samples.x, loss.samples.y)]
    theirs = curvlinops.HessianLinearOperator(network, nn.CrossEntropyLoss(), list(network.parameters()), data)
    v = torch.randn(len(loss.w)).double()
    torch.testing.assert_close(hessian(loss).times(v[None])[0], theirs @ v)


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["lenet", "resnet20", "lstm"])
def test_a_gpu_has_the_cpus_products(name: str) -> None:
    torch.manual_seed(0)
    gpu, text = torch.device("cuda"), name == "lstm"
    shape, tokens = ((7,), tuple("abcdef")) if text else ((3, 20, 20), ())
    x = torch.randint(1, 6, (9, *shape)) if text else torch.randn(9, *shape).double()
    here = loss_of(models.build(name, shape, 3, tokens=tokens), x, torch.randint(3, (9,)), 3)
    there = Loss(
        here.model.to(torch.float64, gpu),
        here.w.to(gpu),
        here.buffers.to(gpu),
        Samples(x.to(gpu), here.samples.y.to(gpu), 3, None, None, torch.float64, is_text=text),
        here.index.to(gpu),
        here.task,
    )
    v = torch.randn(2, len(here.w)).double()
    torch.testing.assert_close(hessian(there).times(v.to(gpu)).cpu(), hessian(here).times(v))
