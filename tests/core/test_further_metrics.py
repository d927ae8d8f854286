"""Metrics beside accuracy and loss: each as scikit-learn has it, and where they are told."""

import math
import re
from dataclasses import replace
from io import StringIO
from itertools import permutations

import numpy as np
import pytest
import torch
from helpers import federation, toy
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from sklearn import metrics as theirs
from sklearn.calibration import calibration_curve

import fedbraid as fb
from fedbraid.cli import run_views as cli_show
from fedbraid.config.schema import from_dict
from fedbraid.core.metrics import BINS, METRICS, measured
from fedbraid.errors import UserError
from fedbraid.training.run_directory import RunDirectory

CLASSIFICATION = [name for name, metric in METRICS.items() if metric.task == "classification"]
REGRESSION = [name for name, metric in METRICS.items() if metric.task == "regression"]


def value(name, answers, y):
    return float(measured([name], torch.as_tensor(answers), torch.as_tensor(y))[0])


def probabilities(answers):
    return torch.as_tensor(answers).double().softmax(-1).numpy()


@st.composite
def answered(draw):
    """Answers of a network in float64, with ties and with classes that nobody tests, and the labels."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    classes, samples = draw(st.integers(2, 8)), draw(st.integers(2, 60))
    answers = rng.normal(size=(samples, classes)) * draw(st.sampled_from([0.1, 1.0, 10.0]))
    tested = rng.choice(classes, size=draw(st.integers(1, classes)), replace=False)
    y = rng.choice(tested, size=samples)
    answers[np.arange(samples), y] += draw(st.sampled_from([0.0, 1.0]))  # one that has learned something
    return np.round(answers, draw(st.sampled_from([0, 1, 12]))), y


def mean_over_tested(answers, y, of, enough):
    """A binary metric of scikit-learn's: of class 1, or one class against the rest and the mean over classes."""
    p = probabilities(answers)
    scores = {1: answers[:, 1] - answers[:, 0]} if p.shape[1] == 2 else dict(enumerate(p.T))
    values = [of(y == c, score) for c, score in scores.items() if enough(y == c)]
    return np.mean(values) if values else math.nan


def own_ece(answers, y):
    """By scikit-learn's reliability diagram, whose bins are of the probability that the answer is right."""
    p = probabilities(answers)
    confidence, right = p.max(-1), p.argmax(-1) == y
    accuracy, mean_confidence = calibration_curve(right, confidence, n_bins=BINS, strategy="uniform")
    sizes = np.bincount(np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], confidence))
    return np.abs(accuracy - mean_confidence) @ sizes[sizes > 0] / len(y)


AS_THEY_ARE = {
    "balanced_accuracy": lambda a, y: theirs.recall_score(y, a.argmax(-1), labels=np.unique(y), average="macro"),
    "macro_f1": lambda a, y: theirs.f1_score(y, a.argmax(-1), labels=np.unique(y), average="macro"),
    "auroc": lambda a, y: mean_over_tested(a, y, theirs.roc_auc_score, lambda own: own.any() and not own.all()),
    "auprc": lambda a, y: mean_over_tested(a, y, theirs.average_precision_score, np.any),
    "ece": own_ece,
}


@pytest.mark.parametrize("name", AS_THEY_ARE)
@given(case=answered())
def test_classification_is_as_in_scikit_learn(name, case):
    assert value(name, *case) == pytest.approx(AS_THEY_ARE[name](*case), abs=1e-12, nan_ok=True)


@given(st.integers(0, 2**32), st.integers(3, 6), st.sampled_from([0, 12]))
def test_areas_of_several_classes_are_macro_averages_of_one_against_rest(seed, classes, digits):
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.arange(classes), rng.integers(0, classes, 40)])  # scikit-learn wants all of them
    answers = np.round(rng.normal(size=(len(y), classes)), digits)
    p = probabilities(answers)
    wanted = theirs.roc_auc_score(y, p, multi_class="ovr", average="macro")
    assert value("auroc", answers, y) == pytest.approx(wanted, abs=1e-12)
    wanted = theirs.average_precision_score(np.eye(classes)[y], p, average="macro")
    assert value("auprc", answers, y) == pytest.approx(wanted, abs=1e-12)


def own_top5(answers, y):
    return theirs.top_k_accuracy_score(y, answers, k=5, labels=np.arange(answers.shape[1]))


@given(st.integers(0, 2**32), st.integers(6, 12))
def test_top_5_is_as_in_scikit_learn(seed, classes):
    rng = np.random.default_rng(seed)
    answers, y = rng.normal(size=(30, classes)), rng.integers(0, classes, 30)
    assert value("top5", answers, y) == pytest.approx(own_top5(answers, y), abs=1e-12)


def test_top_5_counts_ties_by_the_places_that_are_left():
    """Scikit-learn lets the order of the classes decide: this is the mean over all orders."""
    rng = np.random.default_rng(0)
    answers, y = np.round(rng.normal(size=(12, 6))), rng.integers(0, 6, 12)
    orders = [np.array(order) for order in permutations(range(6))]
    counted = [own_top5(answers[:, order], np.argsort(order)[y]) for order in orders]
    assert len(set(counted)) > 2
    assert value("top5", answers, y) == pytest.approx(np.mean(counted), abs=1e-12)
    assert value("top5", np.zeros((7, 8)), np.arange(7)) == 5 / 8


@given(st.integers(0, 2**32), st.integers(2, 50), st.sampled_from([0, 12]))
def test_regression_is_as_in_scikit_learn(seed, samples, digits):
    rng = np.random.default_rng(seed)
    y, said = np.round(rng.normal(size=samples), digits), rng.normal(size=samples)
    assert value("mae", said[:, None], y) == pytest.approx(theirs.mean_absolute_error(y, said))
    assert value("rmse", said[:, None], y) == pytest.approx(theirs.root_mean_squared_error(y, said))
    if np.ptp(y):
        assert value("r2", said[:, None], y) == pytest.approx(theirs.r2_score(y, said))
    else:
        assert math.isnan(value("r2", said[:, None], y))


def test_what_is_no_number_has_no_metric():
    answers = np.random.default_rng(0).normal(size=(9, 7))
    for lost in (math.nan, math.inf):
        answers[4, 2] = lost
        assert measured(CLASSIFICATION, torch.as_tensor(answers), torch.arange(9) % 7).isnan().all()
        assert measured(REGRESSION, torch.as_tensor(answers[:, 2:3]), torch.arange(9.0)).isnan().all()


def test_areas_need_both_a_class_and_others():
    answers, y = np.random.default_rng(0).normal(size=(9, 2)), np.zeros(9, dtype=np.int64)
    assert math.isnan(value("auroc", answers, y)) and math.isnan(value("auprc", answers, y))
    assert math.isnan(value("auroc", answers, y + 1)) and value("auprc", answers, y + 1) == 1


# --- in a run


def test_the_log_has_those_that_are_asked_for_and_nothing_else_changes():
    data = toy(sizes=(40, 30), classes=7)
    asked = federation("fedavg", data=data, evaluate={"every": 2, "metrics": CLASSIFICATION})
    plain = federation("fedavg", data=data, evaluate={"every": 2})
    for number in range(1, 4):
        line, other = asked.advance(), plain.advance()
        found = {name: line.pop(name) for name in CLASSIFICATION}
        assert line | {"seconds": 0} == other | {"seconds": 0}
        if number == 1:
            assert set(found.values()) == {None}
            continue
        module, test = asked.module(), asked.dataset.test
        with torch.no_grad():
            answers = module(torch.as_tensor(test.x)).logits.numpy()
        assert found == pytest.approx({name: value(name, answers, test.y) for name in CLASSIFICATION}, abs=1e-9)


def test_a_regression_has_its_own():
    line = federation("fedavg", data=toy(task="regression"), evaluate={"metrics": REGRESSION}).advance()
    assert line["rmse"] == pytest.approx(math.sqrt(2 * line["loss"]))
    assert 0 < line["mae"] <= line["rmse"] and line["r2"] < 1 and line["accuracy"] is None


def test_what_cannot_be_said_of_a_test_set_is_null():
    dataset, partition = toy(classes=2)
    single = replace(dataset, test=replace(dataset.test, y=np.ones_like(dataset.test.y)))
    line = federation("fedavg", data=(single, partition), evaluate={"metrics": ["auroc", "auprc"]}).advance()
    assert line["auroc"] is None and line["auprc"] == 1


@pytest.mark.parametrize(
    ("task", "classes", "names", "sentence"),
    [
        ("regression", 1, ["mae", "auroc"], "auroc in evaluate.metrics is for a classification, and toy is a regress"),
        ("classification", 3, ["r2"], "r2 in evaluate.metrics is for a regression, and toy is a classification"),
        ("classification", 4, ["top5"], "top5 in evaluate.metrics needs more than 5 classes, and toy has 4"),
        ("classification", 5, ["top5"], "top5 in evaluate.metrics needs more than 5 classes, and toy has 5"),
        ("classification", 3, ["auc"], "no metric of evaluate.metrics is called 'auc'; did you mean 'auroc'?"),
        ("classification", 3, "auroc", r"evaluate.metrics must be a list of names such as \[\"auroc\"\], not 'auroc'"),
    ],
)
def test_what_cannot_be_had_is_refused_at_the_start(task, classes, names, sentence):
    with pytest.raises(fb.UserError, match=sentence):
        federation("fedavg", data=toy(task=task, classes=classes), evaluate={"metrics": names})


@pytest.mark.parametrize("asked", [{"target": 0.5}, {"per_client": True}, {"groups": True}])
def test_what_is_about_accuracy_is_refused_of_a_regression(asked):
    with pytest.raises(fb.UserError, match=rf"evaluate.{next(iter(asked))} is about accuracy, but toy is a regression"):
        federation("fedavg", data=toy(task="regression"), evaluate=asked)


def test_results_tables_and_pictures_have_them(tmp_path):
    asked = {"metrics": ["auroc", "ece"]}
    settings = {"rounds": 2, "evaluate": asked, "engine": {"device": "cpu"}}
    done = fb.compare("fedavg", "fedavgm", seeds=2, out=tmp_path / "both", **settings)
    for run in done.runs:
        assert run.summary["auroc"] == run.rounds[-1]["auroc"]
        assert RunDirectory(run.directory).rounds()[-1]["ece"] == run.rounds[-1]["ece"] == run.summary["ece"]
    both = [run.summary["auroc"] for run in done.runs[:2]]
    assert done.summary["fedavg"]["auroc"] == {
        "mean": pytest.approx(np.mean(both)),
        "std": np.std(both, ddof=1),
        "n": 2,
    }
    written = {path.name: path for path in done.report(tmp_path / "report")}
    assert {"curves-auroc.png", "curves-ece.png"} <= {*written}
    assert "| AUROC (%) | ECE (%) |" in written["table.md"].read_text()
    assert "AUROC over rounds" in written["report.html"].read_text()
    console = Console(file=StringIO(), width=100)
    cli_show.summary(console, done.runs[0], tmp_path)
    assert re.search(rf"last AUROC +{100 * both[0]:.2f} %", console.file.getvalue())


def test_runs_that_train_together_have_them_too():
    settings = {"rounds": 2, "evaluate": {"metrics": ["auprc", "macro_f1"]}, "engine": {"device": "cpu"}}
    together = fb.compare("fedavg", seeds=2, **settings).runs
    alone = [fb.run("fedavg", seed=seed, **settings) for seed in range(2)]
    for one, other in zip(together, alone, strict=True):
        assert [one.summary[key] for key in ("auprc", "macro_f1")] == pytest.approx(
            [other.summary[key] for key in ("auprc", "macro_f1")], abs=1e-3
        )


def test_no_device_is_waited_for():
    """On this one there are no numbers: what asked for one would fail."""
    answers, y = torch.empty(100, 7, device="meta"), torch.empty(100, dtype=torch.int64, device="meta")
    assert measured(CLASSIFICATION, answers, y).shape == (len(CLASSIFICATION),)
    assert measured(REGRESSION, answers[:, :1], answers[:, 1]).shape == (len(REGRESSION),)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_gpu_has_the_same_and_is_not_waited_for():
    rng = torch.Generator().manual_seed(0)
    answers, y = torch.randn(1000, 7, generator=rng).round(decimals=1), torch.randint(0, 7, (1000,), generator=rng)
    there, labels = answers.cuda(), y.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = measured(CLASSIFICATION, there, labels), measured(REGRESSION, there[:, :1], there[:, 1])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = measured(CLASSIFICATION, answers, y), measured(REGRESSION, answers[:, :1], answers[:, 1])
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one.cpu(), other, atol=1e-6)


def test_of_two_classes_sure_answers_keep_their_order():
    """Probabilities would all be 1, and tie."""
    answers, y = np.array([[0.0, 40], [0, 50], [0, 60], [0, 38]]), np.array([0, 1, 1, 0])
    assert value("auroc", answers, y) == value("auprc", answers, y) == 1.0


def test_a_metric_is_named_once():
    with pytest.raises(UserError, match=r"evaluate\.metrics has auroc twice"):
        from_dict({"evaluate": {"metrics": ["auroc", "auroc"]}})
