"""The analyses by which ASD and FedDisco explain themselves, of recorded runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import toy
from torch.autograd.functional import hessian as exact

import fedbraid as fb
from fedbraid.analyses import analyze
from fedbraid.analyses.analysis import Analysis
from fedbraid.analyses.interpolation import pairs_of_similar_size
from fedbraid.analyses.recorded import Recorded
from fedbraid.analyses.theorem import Bound, Constants
from fedbraid.core.task import task_loss
from fedbraid.data.dataset import Partition
from fedbraid.errors import UserError
from fedbraid.report.plots import png
from fedbraid.training.user_objects import UserObjects

SIZES = (40, 44, 12, 30)


def recorded(directory: Path, method: str = "fedavg", *, task: Any = "classification", **settings: Any) -> Recorded:
    data, everybody = toy((*settings.pop("sizes", SIZES), 7), task=task)
    partition = Partition(everybody.clients[:-1])  # some samples are nobody's
    objects = UserObjects(data, partition)
    settings = {"rounds": 2, "model": {"name": "mlp", "hidden": [5]}, **settings}
    engine = {"device": "cpu", "dtype": "float64", "kind": "stack", "workers": 1}
    fb.run(method, data=data, partition=partition, out=directory, engine=engine, **settings)
    return Recorded(directory, objects)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    local = {"batch": 4, "epochs": 3}
    return recorded(tmp_path_factory.mktemp("run"), local=local, optimizer={"lr": 0.3, "weight_decay": 0.05})


def made(run: Recorded, what: str) -> Analysis:
    return analyze(run.path, [what], objects=run.objects)[0]


# --- hessian


def test_the_hessian_is_that_of_the_cross_entropy_over_all_clients(run: Recorded) -> None:
    """At the model that the run ended with; the optimiser's weight decay has no part in it."""
    e = run.simulation
    w, buffers = e.deployed()
    batch = e.clients.samples.batch(e.clients.order, torch.ones(len(e.clients.order), dtype=torch.float64))
    dense = exact(lambda at: task_loss("classification", e.model.predict(at, buffers, batch.x).logits, batch), w)
    eigenvalues = torch.linalg.eigvalsh(dense).numpy()
    found = made(run, f"hessian(probes=50, steps={len(w)}, starts=1)")
    assert found.numbers["hessian.top"] == pytest.approx(eigenvalues[-1], rel=1e-6)
    assert found.numbers["hessian.lowest"] == pytest.approx(eigenvalues[0], abs=1e-6)
    off = found.numbers["hessian.trace"] - eigenvalues.sum()
    assert abs(off) < 4 * found.numbers["hessian.trace_error"] < 0.5 * eigenvalues.sum()
    assert found.numbers["hessian.parameters"] == len(w)


def test_some_samples_instead_of_all(run: Recorded) -> None:
    everything, some, again = (made(run, f"hessian(samples={n})").numbers["hessian.top"] for n in (0, 20, 20))
    assert some == again != everything
    assert made(run, f"hessian(samples={sum(SIZES)})").numbers["hessian.top"] == everything


def test_a_regression_has_a_hessian(tmp_path: Path) -> None:
    assert made(recorded(tmp_path / "run", task="regression", rounds=1), "hessian").numbers["hessian.top"] > 0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_model_that_is_not_finite_has_none(tmp_path: Path) -> None:
    diverged = recorded(tmp_path / "run", optimizer={"lr": 1e38}, rounds=20)
    with pytest.raises(UserError, match="not finite"):
        made(diverged, "hessian")


def test_wrong_options_are_refused(run: Recorded) -> None:
    for wrong in ("hessian(probes=1)", "hessian(eigenvalues=0)", "bound(metric='far')", "interpolation(points=1)"):
        with pytest.raises(UserError):
            made(run, wrong)


# --- the first round


def test_the_first_round_is_the_runs_own(tmp_path: Path) -> None:
    """FedAvg's model after one round is the mean of the first round's models by size."""
    once = recorded(tmp_path / "run", rounds=1, local={"batch": 4, "epochs": 2})
    n = once.first_round.cohort.sizes / once.first_round.cohort.sizes.sum()
    torch.testing.assert_close(n @ once.first_round.models, once.simulation.server.w)
    assert (once.next_round.models - once.first_round.models).abs().max() > 1e-3


# --- discrepancy


def test_local_models_accuracy_against_size_and_discrepancy(run: Recorded) -> None:
    found = made(run, "discrepancy")
    table = {key: np.array(values) for key, values in found.columns.items()}
    assert table["client"].tolist() == sorted(table["client"].tolist()) == [0, 1, 2, 3]
    np.testing.assert_allclose(table["size"], np.array(SIZES) / sum(SIZES))
    assert found.numbers["discrepancy.size"] == pytest.approx(np.corrcoef(table["size"], table["accuracy"])[0, 1])
    for metric in ("kl", "l1", "l2", "cosine"):
        usual = np.corrcoef(table[metric], table["accuracy"])[0, 1]
        assert found.numbers[f"discrepancy.{metric}"] == pytest.approx(-usual)


def test_local_accuracies_are_those_of_the_clients_own_models(run: Recorded) -> None:
    e, own = run.simulation, run.next_round
    logits = [e.model.predict(w, e.server.buffers, e.test.inputs(torch.arange(20))).logits for w in own.models]
    right = [float((each.argmax(-1) == e.test.y).double().mean()) for each in logits]
    np.testing.assert_allclose(made(run, "discrepancy").columns["accuracy"], right)


def test_clients_that_do_not_differ_tell_nothing(tmp_path: Path) -> None:
    alike = made(recorded(tmp_path / "run", sizes=(9, 9), rounds=1), "discrepancy")
    assert np.isnan(alike.numbers["discrepancy.size"])


# --- interpolation


def test_the_ends_are_the_clients_own_models(run: Recorded) -> None:
    accuracy = made(run, "discrepancy").columns["accuracy"]
    found = made(run, "interpolation(pairs=2, points=3)")
    assert found.columns["pair"] == [1, 1, 1, 2, 2, 2]
    for k in (0, 3):
        a, b = found.columns["a"][k], found.columns["b"][k]
        assert found.columns["accuracy"][k] == accuracy[a] <= accuracy[b] == found.columns["accuracy"][k + 2]
    assert {found.columns["a"][0], found.columns["b"][0]} == {0, 1}  # 40 and 44 samples; 12 and 30 are left


def test_the_mixture_by_size_of_two_clients_is_fedavg(tmp_path: Path) -> None:
    local, optimizer = {"batch": 4, "epochs": 8}, {"lr": 0.3}  # so that the mixture the other way round is another one
    two = recorded(tmp_path / "run", sizes=(8, 60), rounds=1, local=local, optimizer=optimizer)
    numbers = made(two, "interpolation(pairs=1, points=6, initial=True)").numbers
    best = max(v for key, v in numbers.items() if key.startswith("interpolation.pair1_r"))
    assert best - numbers["interpolation.pair1_gain"] == pytest.approx(two.rounds[0]["accuracy"])
    assert numbers[f"interpolation.pair1_r{100 * numbers['interpolation.pair1_best']:.4g}"] == best


def test_pairs_are_of_similar_size() -> None:
    assert pairs_of_similar_size(np.array([10, 50, 13, 49, 90]), 3) == [(1, 3), (0, 2)]
    assert pairs_of_similar_size(np.array([10, 50, 13, 49, 90]), 1) == [(1, 3)]


def test_one_client_alone_cannot_be_mixed(tmp_path: Path) -> None:
    alone = recorded(tmp_path / "run", rounds=1, sampling={"clients": 1})
    with pytest.raises(UserError, match="two clients"):
        made(alone, "interpolation")


# --- bound


def test_the_bound_is_that_of_the_runs_clients(run: Recorded) -> None:
    found = made(run, "bound(metric='l2', lam=0.3)")
    n = np.array(SIZES) / sum(SIZES)
    theorem = Bound(n, np.array(found.columns["discrepancy"]), Constants(lam=0.3))
    np.testing.assert_allclose(found.columns["discrepancy"], made(run, "discrepancy").columns["l2"])
    assert found.numbers["bound.sizes"] == pytest.approx(theorem.original(n))
    for weights in ("disco", "reformulated", "least"):
        assert found.numbers[f"bound.{weights}"] == pytest.approx(theorem.original(np.array(found.columns[weights])))
    assert found.numbers["bound.least"] == min(v for k, v in found.numbers.items() if k[6:] not in ("a", "b"))


def test_regressions_have_no_accuracy_to_look_at(tmp_path: Path) -> None:
    numbers = recorded(tmp_path / "run", task="regression", rounds=1)
    for what in ("discrepancy", "interpolation"):
        with pytest.raises(UserError, match="regression"):
            made(numbers, what)


@pytest.mark.parametrize(
    "what", ["hessian(probes=2, steps=5)", "discrepancy", "interpolation(points=3)", "bound(steps=5)"]
)
def test_each_is_written_and_drawn(run: Recorded, what: str, tmp_path: Path) -> None:
    found = made(run, what)
    table, numbers, picture = found.write(tmp_path)
    assert picture.read_bytes() == png(found.figure)
    assert len(table.read_text().splitlines()) == 1 + len(next(iter(found.columns.values())))
    assert all(key in numbers.read_text() for key in found.numbers)
