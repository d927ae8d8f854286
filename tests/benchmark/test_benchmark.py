"""The benchmark runs, its contenders do the same work, and its rows say what they should."""

import json
import math
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from fedbraid.benchmark import Workload, measure, works
from fedbraid.benchmark.contenders import engine, flops_per_sample, matmul_rate, single_model, usual_loop
from fedbraid.benchmark.work import CNN, LENET, LOGISTIC

TINY = replace(LENET, each=20, batch=8, clients=3)
RAGGED = replace(LOGISTIC, clients=12, sampled=3, epochs=1)
WORDS = Workload("words", "textcnn", "texts", (12,), classes=4, clients=3, each=10, batch=4)


@pytest.mark.parametrize("work", [TINY, RAGGED, WORDS], ids=lambda work: work.name)
def test_all_contenders_train_on_the_same_samples(work):
    rounds = [usual_loop(work, "cpu"), single_model(work, "cpu"), engine(work, "cpu", "loop")[0]]
    rounds.append(engine(work, "cpu", "stack", evaluated=True)[0])
    for number in range(2):
        assert len({one(number) for one in rounds}) == 1


@pytest.mark.slow
def test_rows_compare_with_the_usual_loop_and_the_limit():
    rows = measure([TINY, RAGGED], device="cpu", repeats=1, note=lambda text: None)
    for work in (TINY, RAGGED):
        mine = {row.engine: row for row in rows if row.work == work.name}
        assert mine["usual loop"].vs_usual == mine["single model"].vs_limit == 1
        assert {"usual loop", "single model", "loop", "stack"} <= mine.keys()
        (chosen,) = (row for row in mine.values() if row.chosen)
        assert f"{chosen.engine}, evaluated" in mine
        usual, limit = (mine[name].samples_per_s for name in ("usual loop", "single model"))
        for row in mine.values():
            assert row.vs_usual == pytest.approx(row.samples_per_s / usual)
            assert row.vs_limit == pytest.approx(row.samples_per_s / limit)
            assert row.of_matmul > 0 and math.isfinite(row.spread)


def test_flops_of_a_network_are_three_times_its_forward_products():
    """But for the first layer, whose inputs need no gradient."""
    work = Workload("mlp", "mlp", "images", (1, 28, 28), clients=1, each=4)
    layers = [p for p in _parameters(work) if p.dim() == 2]
    first, rest = layers[0].numel(), sum(p.numel() for p in layers[1:])
    assert flops_per_sample(work) == 2 * (2 * first + 3 * rest)
    assert matmul_rate("cpu") > 1e9


def _parameters(work):
    from fedbraid import models

    dataset = work.dataset()
    return list(models.build(work.network, dataset.shape, dataset.classes).parameters())


def test_every_workload_can_be_described_and_planned():
    for device in ("cpu", "cuda"):
        for quick in (True, False):
            names = [work.name for work in works(device, quick=quick)]
            assert len(set(names)) == len(names)
            assert {"synthetic-logistic", "lenet"} <= {*names}
    assert {"cnn", "lenet-100", "cnn-50", "resnet18-gn", "textcnn"} <= {work.name for work in works("cuda")}
    assert CNN.about == "cnn 3×32×32, 10 clients × 500, batch 50, epochs 1"
    assert LOGISTIC.about == "logistic, 10 of 200 clients, ragged, batch 64, epochs 10"


@pytest.mark.slow
def test_the_command_prints_rows_as_json(monkeypatch):
    from fedbraid import benchmark
    from fedbraid.cli.app import app

    monkeypatch.setattr(benchmark, "works", lambda device, quick: (TINY, RAGGED))
    done = CliRunner().invoke(app, ["bench", "--quick", "--json", "--only", "lenet"])
    rows = json.loads(done.stdout)
    assert {"work", "engine", "samples_per_s", "vs_usual", "vs_limit"} <= rows[0].keys()
    assert {row["work"] for row in rows} == {"lenet"}
    assert "usual loop: " in done.stderr  # as soon as it is known


def test_a_workload_that_there_is_not_is_refused():
    from fedbraid.cli.app import app

    refused = CliRunner().invoke(app, ["bench", "--only", "lenett"])
    assert refused.exit_code and "did you mean 'lenet'" in str(refused.exception)
