"""Short representations at a prompt and in a notebook."""

from dataclasses import replace

import pytest
from helpers import toy

import fedbraid as fb
from fedbraid.config.schema import from_dict

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
    assert repr(fb.chain("prox(mu=0.3)+disco")) == "Chain('prox(mu=0.3)+disco')"
    assert "prox(mu=0.3)" in fb.chain("prox(mu=0.3)+disco")._repr_html_()
    assert "fedavg" in fb.chain("fedavg")._repr_html_() and "clients" in PARTITION._repr_html_()
