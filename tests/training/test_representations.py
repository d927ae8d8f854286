"""Runs and comparisons at a prompt and in a notebook: short representations, and data frames."""

import sys
from dataclasses import replace

import pytest
from helpers import toy

import fedbraid as fb
from fedbraid.config.schema import from_dict, to_dict

DATA, PARTITION = toy()
TINY = {"data": DATA, "partition": PARTITION, "model": "logistic", "rounds": 2, "engine": {"device": "cpu"}}


@pytest.fixture(scope="module")
def compared():
    return fb.compare("fedavg", "prox(mu=0.3)", seeds=2, **TINY)


def test_a_comparison_is_a_line_with_each_methods_score(compared):
    text = repr(compared)
    assert text.startswith("Comparison(fedavg accuracy ") and "; " not in text
    assert "prox(mu=0.3) accuracy " in text and text.endswith(" %)") and len(text) < 120
    failed = replace(compared, failed=[fb.Failure("nova", 0, "it broke", ValueError())])
    assert repr(failed).endswith("; 1 failed)")
    html = failed._repr_html_()
    assert html.count("<tr>") == 3 and "it broke" in html and len(html) < 4000


def test_a_run_is_a_line_with_its_last_score(compared):
    run = compared.runs[3]
    accuracy = float(f"{run.accuracy:.4g}")
    assert repr(run) == f"Run('prox(mu=0.3)', seed=1, rounds=2, accuracy={accuracy})"
    assert f"{100 * run.accuracy:.2f}" in run._repr_html_()


def test_labels_of_users_are_no_markup(compared):
    labelled = replace(compared, labels=["<script>"] * 4)
    assert "<script>" not in labelled._repr_html_() and "&lt;script&gt;" in labelled._repr_html_()
    assert "<b>" not in replace(DATA, name="<b>")._repr_html_()


def test_a_configuration_shows_what_is_not_the_default():
    assert repr(fb.Config()) == "Config()"
    config = from_dict({"rounds": 3, "local": {"epochs": 2}, "partition": {"name": "dirichlet", "beta": 0.1}})
    assert repr(config) == "Config(rounds=3, partition.beta=0.1, local.epochs=2)"
    assert "local.epochs" in config._repr_html_() and "optimizer" not in config._repr_html_()
    assert repr(replace(config, seed=1)) != repr(config)


def test_data_and_methods_are_lines():
    assert repr(DATA) == f"Dataset('toy', train={len(DATA.train)}, test=20, shape=(4,), classes=3)"
    assert repr(PARTITION).startswith(f"Partition(clients={len(PARTITION)}, samples={len(DATA.train)}, smallest=")
    assert repr(fb.Partition(())) == "Partition(clients=0, samples=0)"
    recipe = {"name": "listed", "seed": 0, "params": {"beta": 0.5, "owners": list(range(1000))}}
    assert repr(replace(PARTITION, recipe=recipe)).startswith(
        "Partition(name='listed', seed=0, beta=0.5, owners='…', clients=6, samples=37, smallest=1, "
    )
    assert repr(fb.chain("prox(mu=0.3)+disco")) == "Chain('prox(mu=0.3)+disco')"
    assert "prox(mu=0.3)" in fb.chain("prox(mu=0.3)+disco")._repr_html_()
    assert "fedavg" in fb.chain("fedavg")._repr_html_() and "clients" in PARTITION._repr_html_()


# --- data frames


def test_a_log_is_a_data_frame(compared):
    pytest.importorskip("pandas")
    run = compared.runs[0]
    run = replace(run, rounds=[*run.rounds, {"round": 3, "client_accuracy": {"mean": 0.5, "each": [0.4, 0.6]}}])
    frame = run.to_frame()
    assert frame["round"].tolist() == [1, 2, 3]
    assert frame["accuracy"].tolist()[:2] == [line["accuracy"] for line in run.rounds[:2]]
    assert frame["client_accuracy.mean"].tolist()[2] == 0.5 and frame["client_accuracy.each"][2] == [0.4, 0.6]


def test_the_logs_of_a_comparison_are_one_data_frame(compared):
    pytest.importorskip("pandas")
    frame = compared.to_frame()
    assert frame.columns[:3].tolist() == ["method", "seed", "round"] and len(frame) == 8
    last = frame[(frame["method"] == "prox(mu=0.3)") & (frame["seed"] == 1) & (frame["round"] == 2)]
    assert last["accuracy"].tolist() == [compared.runs[3].accuracy]


def test_a_data_frame_without_pandas_names_the_extra(compared, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    for table in (compared, compared.runs[0]):
        with pytest.raises(fb.UserError, match=r"pip install 'fedbraid\[analyses\]'"):
            table.to_frame()


def test_a_configuration_is_a_dictionary_that_makes_it_again(compared):
    config = compared.runs[2].config
    assert config.to_dict() == to_dict(config) and from_dict(config.to_dict()) == config
