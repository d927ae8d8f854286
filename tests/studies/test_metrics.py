"""Each metric reads what its name says, from a record worked out by hand."""

import math

import pytest
from tiny_study import made_up_record

from fedbraid.errors import UserError
from fedbraid.studies.cell_metrics import METRICS, parse
from fedbraid.studies.round_series import aggregations

CLIENTS = [{"mean": m, "std": s, "min": 0.0, "worst10": 0.0, "each": [m, None, 0.1, 0.2]} for m, s in [(0.5, 0.2)] * 3]
RECORD = made_up_record(
    [0.2, 0.6, None, 0.5],
    client_accuracy=[*CLIENTS[:2], None, {**CLIENTS[0], "mean": 0.7, "std": 0.1, "each": [0.9, None, 0.3, 0.6]}],
    group_accuracy=[{"head": 0.8, "tail": 0.1}, {"head": 0.9, "tail": 0.2}, None, {"head": 0.7, "tail": 0.3}],
    validation_accuracy=[0.1, 0.3, None, 0.4],
    validation_loss=[0.9, 0.2, None, 0.5],
    **{"drift.variance": [4.0, None, 2.0, 3.0]},
)
READ = {
    "chosen": 0.5,
    "chosen(of='loss')": 0.4,
    "chosen(of='client_accuracy.mean')": 0.7,
    "best(of='validation_accuracy')": 0.4,
    "best(of='validation_loss')": 0.2,
    "best": 0.6,
    "last": 0.5,
    "last(of='loss')": 0.5,
    "best(of='loss')": 0.4,
    "mean_last(n=2)": 0.55,
    "mean_last(n=10)": 1.3 / 3,
    "std_last(n=2)": 0.05,
    "at(round=1)": 0.2,
    "at(round=3)": 0.6,
    "at(round=9)": 0.5,
    "last(of='drift.variance')": 3.0,
    "best(of='drift.variance')": 2.0,
    "best(of='drift.variance', better='higher')": 4.0,
    "mean(of='drift.variance')": 3.0,
    "total(of='drift.variance')": 9.0,
    "rounds_to(target=0.5)": 2,
    "rounds_to(target=0.6)": 2,
    "rounds_to(target=0.7)": math.inf,
    "rounds_to(target=0.5, of='loss')": 2,
    "rounds_to(target=2, of='drift.variance')": 3,
    "aggregations_to(target=0.5)": 2,
    "bytes_to(target=0.5)": 30,
    "seconds_to(target=0.5)": 4.0,
    "bytes": 60,
    "bytes_per_round": 15,
    "seconds": 8.0,
    "seconds_per_round": 2.0,
    "forward_samples": 400,
    "client_std": 0.1,
    "client_std(round=2)": 0.2,
    "client_variance": 0.01,
    "client_variance(round=1)": 0.04,
    "mean_clients": 0.7,
    "worst_clients": 0.3,
    "worst_clients(share=0.7)": 0.45,
    "group(name=tail)": 0.3,
    "class_accuracy(number=1)": 0.25,
    "class_std": 0.125,
    "skew(name=gini)": 0.0,
    "skew(name=clients)": 1.0,
    "skew(name=classes)": 4 / 3,
    "skew(name=l1)": 1 / 7,
}


@pytest.mark.parametrize("text", READ)
def test_a_metric_reads_its_number(text):
    assert parse(text).read(RECORD) == pytest.approx(READ[text])


def test_every_metric_is_tried():
    assert {text.split("(")[0] for text in READ} == {*METRICS} - {"analysis", "calculated", "speedup"}


def test_analyses_are_read_by_what_was_asked_for():
    record = made_up_record([0.1])
    found = {"hessian": {"top": 3.0, "trace": None}, "features(clients=0.5)": {"mmd": 1.0}}
    record = type(record)(**{**vars(record), "analyses": found})
    assert parse("analysis(name='hessian.top')").read(record) == 3.0
    assert math.isnan(parse("analysis(name='hessian.trace')").read(record)), "made, but there was nothing to measure"
    assert parse("analysis(name='features(clients=0.5).mmd')").read(record) == 1.0
    assert parse("analysis(name='features.mmd')").read(record) is None
    assert parse("analysis(name='features(clients=0.5).mmd')").analysis == "features(clients=0.5)"


def test_what_the_record_does_not_have_is_none():
    bare = made_up_record([0.5])
    for text in ("client_std", "client_variance", "mean_clients", "worst_clients", "group(name=head)"):
        assert parse(text).read(bare) is None, text
    for text in ("last(of='x')", "best(of='x')", "rounds_to(target=1, of='x')", "class_accuracy(number=7)"):
        assert parse(text).read(bare) is None, text


@pytest.mark.parametrize(
    ("text", "higher", "percent"),
    [
        ("best", True, 100),
        ("last(of='loss')", False, 1),
        ("last(of='x', better='higher')", True, 1),
        ("last(of='auroc')", True, 100),
        ("mean_last(n=5, of='ece')", False, 100),
        ("last(of='r2')", True, 1),
        ("best(of='rmse')", False, 1),
        ("std_last(n=5)", False, 100),
        ("rounds_to(target=0.5)", False, 1),
        ("bytes", False, 1),
        ("client_std", False, 100),
        ("client_variance", False, 10_000),
        ("worst_clients", True, 100),
        ("mean_clients", True, 100),
        ("group(name=head)", True, 100),
        ("class_std", False, 100),
        ("analysis(name='a.b')", False, 1),
        ("analysis(name='a.b', better='higher')", True, 1),
        ("calculated", False, 1),
    ],
)
def test_direction_and_unit(text, higher, percent):
    metric = parse(text)
    assert (metric.higher_is_better, metric.percent) == (higher, percent)
    assert metric.label and metric.text == text


def test_a_model_that_is_no_longer_finite_has_no_last_loss():
    record = made_up_record([0.5, 0.4, 0.1], loss=[1.0, 2.0, math.nan], finite=[True, True, False])
    assert math.isnan(parse("last(of='loss')").read(record)) and math.isnan(
        parse("mean_last(n=2, of='loss')").read(record)
    )
    assert parse("best(of='loss')").read(record) == 1.0


SCORES = ["last", "mean_last(n=2)", "std_last(n=2)", "at(round=3)", "mean(of='accuracy')", "class_accuracy(number=0)"]


def test_what_a_model_that_is_not_finite_scores_says_nothing():
    """Accuracies of such models are some number or other, often that of guessing."""
    record = made_up_record([0.5, 0.4, 0.9], finite=[True, True, False])
    assert all(math.isnan(parse(text).read(record)) for text in [*SCORES, "class_std"])
    assert parse("best").read(record) == 0.5 and parse("at(round=2)").read(record) == 0.4
    assert parse("rounds_to(target=0.8)").read(record) == math.inf and parse("rounds_to(target=0.5)").read(record) == 1
    assert parse("total(of='bytes_up')").read(record) == sum(record.series["bytes_up"]), "it was spent all the same"


def test_a_run_that_was_never_finite_is_lost_and_not_missing():
    record = made_up_record([0.1, 0.1], loss=[math.nan, math.nan], finite=[False, False])
    for text in ("best", "best(of='loss')", "last(of='loss')"):
        assert math.isnan(parse(text).read(record)), text
    assert parse("rounds_to(target=0.05)").read(record) == math.inf
    other = made_up_record([0.1, 0.6])
    assert parse("rounds_to(row='FedAvg')").given(record).read(other) is None, "there is no best to get to"


@pytest.mark.parametrize(("final", "expected"), [(True, [0, 0, 1, 1, 1, 2, 3]), (False, [0, 0, 1, 1, 1, 2, 2])])
def test_skipped_rounds_are_no_aggregations(final, expected):
    record = made_up_record([0.1] * 7)
    strands = {"skip": {"every": 3, "final_aggregate": final}}
    record = type(record)(**{**vars(record), "config": {**record.config, "strands": strands}})
    assert aggregations(record) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bset", "no metric is called 'bset'; did you mean 'best'?"),
        ("best+last", "is not a metric"),
        ("best(", "is not a metric"),
        ("rounds_to", "needs a value for target, such as rounds_to(target=0.55)"),
        ("mean_last(k=3)", "no option of metric 'mean_last' is called 'k'"),
        ("mean_last(n=0)", "takes a n such as 10, not 0"),
        ("mean_last(n=1.5)", "takes a n such as 10, not 1.5"),
        ("rounds_to(target='x')", "takes a target such as 0.55"),
        ("worst_clients(share=2)", "takes a share such as 0.1"),
        ("rounds_to(target=55)", "waits for a share, such as target=0.55 for 55 %, not 55"),
        ("bytes_to(target=-1)", "waits for a share"),
        ("class_accuracy(number=-1)", "takes a number such as 0, not -1"),
        ("std_last(n=1)", "is over 2 rounds or more, not 1"),
        ("last(better='more')", "takes a better such as 'higher'"),
        ("bytes(of='x')", "takes no options; leave 'of' out"),
    ],
)
def test_mistakes_are_told(text, said):
    with pytest.raises(UserError) as told:
        parse(text)
    assert said in str(told.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("last(of='drift.variance')", "variance of the clients' models of the last round"),
        ("mean(of='train_loss')", "mean training loss of a round"),
        ("analysis(name='hessian.top')", "largest eigenvalue of the loss's Hessian"),
        (
            "analysis(name='interpolation(initial=true, pairs=1).pair1_r30')",
            "accuracy of two clients' models mixed, 30 % of the second",
        ),
        ("analysis(name='spectrum(k=2).gap')", "gap of spectrum"),
    ],
)
def test_metrics_are_told_in_words(text, words):
    assert parse(text).label == words
