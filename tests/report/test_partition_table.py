from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from fedbraid.core.random import stream
from fedbraid.data import Dataset, Partition, Split, make_partition, summary
from fedbraid.report.partition_table import client_table, in_a_sentence, overall, split_facts


def labelled(samples: int = 600) -> Dataset:
    rng = stream(0, "toy")
    shares = (0.5, 0.2, 0.15, 0.1, 0.05)  # so that equal shares and those of all are not the same
    train, test = (Split(np.zeros((n, 1)), rng.choice(5, n, p=shares)) for n in (samples, 50))
    return Dataset("toy", train, test, classes=5)


def regression(samples: int = 300) -> Dataset:
    rng = stream(0, "toy")
    train, test = (Split(np.zeros((n, 1)), rng.normal(size=n)) for n in (samples, 50))
    return Dataset("toy", train, test, classes=1, task="regression")


def cells(table, row):
    return {column.key: cell.text for column, cell in zip(table.columns, table.rows[row], strict=True)}


def test_a_row_has_the_client_as_the_summary_has_it() -> None:
    data = labelled()
    split = make_partition(data, "dirichlet", 6, 0, beta=0.2)
    each = summary(data, split)["each"]
    table = client_table(split_facts(data, split))
    assert len(table.rows) == 6
    for client in range(6):
        shown = cells(table, client)
        assert shown["client"] == str(client)
        assert shown["size"] == str(len(split.clients[client]))
        assert shown["classes"] == str(len(set(data.train.y[split.clients[client]])))
        for target, word in (("to_uniform", "u"), ("to_global", "a")):
            for metric, name in (("kl", "KL"), ("l1", "L1"), ("l2", "L2"), ("cosine", "cos")):
                assert shown[f"{name} {word}"] == f"{each[client][target][metric]:.3f}"


def test_many_clients_are_told_by_some_and_by_quantiles() -> None:
    data = labelled()
    split = make_partition(data, "dirichlet", 40, 0, beta=0.5, min_size=2)
    told = split_facts(data, split)
    table = client_table(told)
    far = np.array([client["to_global"]["kl"] for client in told["each"]])
    skewed = [f"{client}*" for client in np.argsort(-far)[:5]]
    assert [row[0].text for row in table.rows] == [
        *("0", "1", "2", "37", "38", "39"),
        *skewed,
        *("min", "25 %", "median", "75 %", "max"),
    ]
    assert cells(table, 6)["KL a"] == f"{far.max():.3f}"
    assert cells(table, 12)["KL a"] == f"{np.quantile(far, 0.25):.3f}"
    assert cells(table, 13)["size"] == f"{np.median(split.sizes):g}"
    assert "of 40 clients" in table.notes[0] and "--json" in table.notes[0]


def test_a_client_without_samples_has_no_distances() -> None:
    data = labelled(10)
    told = split_facts(data, Partition((np.arange(10), np.arange(0))))
    assert cells(client_table(told), 1)["KL a"] == "–"
    assert dict(overall(told))["largest client / smallest"] == "–"


def test_noise_and_tests_of_the_clients_own_are_columns() -> None:
    data = labelled()
    split = make_partition(data, "noise", 4, 0, sigma=0.4)
    table = client_table(split_facts(data, replace(split, client_tests=tuple(np.arange(k) for k in range(4)))))
    assert [cells(table, k)["noise"] for k in range(4)] == ["0.100", "0.200", "0.300", "0.400"]
    assert [cells(table, k)["tests"] for k in range(4)] == ["0", "1", "2", "3"]
    assert any(note.startswith("noise") for note in table.notes) and any(
        note.startswith("tests") for note in table.notes
    )


@pytest.mark.parametrize("clients", [7, 30])
def test_a_regression_has_label_quantiles(clients: int) -> None:
    data = regression()
    split = make_partition(data, "quantity", clients, 0, min_size=1)
    told = split_facts(data, split)
    json.dumps(told, allow_nan=False)
    table = client_table(told)
    own = data.train.y[split.clients[0]]
    assert cells(table, 0)["label median"] == f"{np.median(own):.3f}"
    assert cells(table, 0)["label max"] == f"{own.max():.3f}"
    if clients == 30:
        far = [abs(np.median(data.train.y[own]) - np.median(data.train.y)) for own in split.clients]
        assert cells(table, 6)["client"] == f"{np.argmax(far)}*"


def test_the_sentence_and_the_lines_about_all() -> None:
    data = labelled(101)
    told = split_facts(data, make_partition(data, "dirichlet_equal", 4, 0))
    assert in_a_sentence(told) == "4 clients hold 100 of the 101 training samples of toy: 25 each."
    lines = dict(overall(told))
    assert lines["samples that nobody holds"] == "1"
    assert lines["Gini coefficient of the sizes"] == "0.000"
    kl = np.mean([client["to_global"]["kl"] for client in told["each"]])
    assert lines["mean distance to overall shares"].startswith(f"KL {kl:.3f}, L1 ")
    uneven = split_facts(data, Partition((np.arange(90), np.arange(90, 101))))
    assert in_a_sentence(uneven).endswith(": 11 to 90 each, median 50.5.")
    assert dict(overall(uneven))["largest client / smallest"] == f"{90 / 11:.3f}"
