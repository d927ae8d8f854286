"""What local training does to classes, on clients whose models only learn how often they see each class."""

import math

import numpy as np
import pytest
from problems import Point, Prior, labels, record, targets

import fedbraid as fb
from fedbraid.analyses import analyze, headline
from fedbraid.analyses.adaptability import risks
from fedbraid.data.dataset import Partition
from fedbraid.training.watches import Scored, measure_fairness

CLIENTS = [0, 0], [0, 0], [1, 1]
"""Two clients know class 0 only, the third class 1 only."""


@pytest.fixture
def run(tmp_path):
    """One round: the mean model leans to class 0 by η/3 each way; then clients train once more."""
    return tmp_path, record(tmp_path, labels(*CLIENTS), Prior(2))


def test_forgetting_by_hand(run):
    """The global model says 0. The third client unlearns class 0 wholly and learns class 1; the others stay."""
    place, given = run
    (analysis,) = analyze(place, ["forgetting"], objects=given)
    table = analysis.table.set_index(["client", "class"])
    assert table["before"].tolist() == [1, 0] * 3
    assert table["change"].tolist() == [0, 0, 0, 0, -1, 1]
    assert table["share"].tolist() == [1, 0, 1, 0, 0, 1]
    assert analysis.numbers == {
        "forgetting.rare": pytest.approx(-1 / 3),  # of three rare classes one is lost
        "forgetting.common": pytest.approx(1 / 3),
        "forgetting.forgotten": pytest.approx(1 / 6),
    }


def test_adaptability_by_hand(run):
    """Logits (b, −b) with b = η/6 after a round, then ± η (1 − σ(±2b)) on each side with another local step."""
    place, given = run
    eta, tau = 0.5, 0.9
    sigmoid = lambda z: 1 / (1 + math.exp(-z))  # noqa: E731
    b = eta / 2 / 3
    right = [sigmoid(2 * (b + eta * (1 - sigmoid(2 * b))))] * 2  # of the clients' own class, after training
    right += [sigmoid(2 * (-b + eta * (1 - sigmoid(-2 * b))))]
    kl = np.mean([p * math.log(p / tau) + (1 - p) * math.log((1 - p) / (1 - tau)) for p in right])
    assert headline(place, ["adaptability(tau=0.9)"], objects=given) == {
        "adaptability.kl": pytest.approx(kl, rel=1e-10),
        "adaptability.risk": pytest.approx((1 / 3 + 1 / 3 + 2 / 3) / 3),  # ε = (0, 1), (0, 1), (1, 0); π̄ = (2/3, 1/3)
        "adaptability.accuracy": pytest.approx(2 / 3),  # the global model says 0
    }


def test_the_papers_aggregation_weighs_by_the_same_divergence(tmp_path):
    """FedACD's own score V = sigmoid(1 / KL) leads to the model that the analysis' KL leads to."""
    given = record(tmp_path, labels([0, 0, 1], [1, 1, 0], [1]), Prior(2), "fedacd(tau=0.9, mixup=0)")
    from fedbraid.analyses.recorded import Recorded

    run = Recorded(tmp_path, given)
    (analysis,) = analyze(tmp_path, ["adaptability(tau=0.9)"], objects=given)
    v = 1 / (1 + np.exp(-1 / analysis.table["kl"].to_numpy()))
    mean = (v / v.sum()) @ run.next_round.models.numpy()
    np.testing.assert_allclose(run.next_round.after.w.numpy(), mean, rtol=1e-10, atol=1e-16)


def test_a_class_that_is_not_tested_counts_in_no_share():
    accuracies = np.array([[0.5, np.nan, 1.0]])
    counts = np.array(
        [[2, 9, 0], [30, 9, 10], [0, 5, 0]]
    )  # π = (1, –, 0) and (3/4, –, 1/4); of the last nothing is tested
    assert risks(accuracies, counts) == pytest.approx([0.5 * (1 + 3 / 4) / 2])


def scored(per_class, counts, **more):
    partition = Partition(tuple(np.array([k]) for k in range(len(counts))), **more)
    return measure_fairness(Scored(per_class, np.array([True, False, False]), partition, np.array(counts, dtype=float)))


def test_fairness_by_hand():
    """Two clients hold one class each, a third both; classes 0 and 1 are held 30 and 12 times, 2 and 3 less."""
    numbers = scored([1.0, 0.5, 0.0, 0.75], [[20, 0, 0, 0], [0, 2, 6, 0], [10, 10, 0, 2]])
    each = np.array([1.0, 0.125, 16.5 / 22])
    assert numbers == {
        "variance": pytest.approx(each.var()),
        "worst": pytest.approx(0.125),
        "class_std": pytest.approx(np.std([1.0, 0.5, 0.0, 0.75])),
        "head": pytest.approx(0.75),
        "middle": 0.0,
        "tail": 0.75,
    }


def test_fairness_with_test_samples_of_ones_own():
    own = tuple(np.array([k]) for k in range(3))
    numbers = scored([0.5, 0.0], [[1, 0], [0, 1], [1, 1]], client_tests=own)
    assert numbers["variance"] == pytest.approx(np.var([1, 0, 0])) and numbers["worst"] == 0


def test_the_log_and_the_analysis_of_the_finished_run_agree(tmp_path):
    done = fb.run("fedavg", rounds=3, out=tmp_path, analyses=["fairness"], engine={"device": "cpu"})
    last = {key: value for key, value in done.rounds[-1].items() if key.startswith("fairness.")}
    (analysis,) = analyze(tmp_path, ["fairness"])
    assert last == analysis.numbers
    classes = analysis.table.query("of == 'class'")
    assert classes["accuracy"].tolist() == done.rounds[-1]["per_class"]
    assert classes["samples"].sum() == analysis.table.query("of == 'client'")["samples"].sum()


@pytest.mark.parametrize("name", ["forgetting", "adaptability", "fairness", "features"])
def test_a_regression_has_no_classes(tmp_path, name):
    given = record(tmp_path, targets([1.0], [2.0]), Point([0.0]))
    with pytest.raises(fb.UserError, match=f"{name} looks at classes, but targets is a regression"):
        analyze(tmp_path, [name], objects=given)
