"""`fedbraid analyze` on real run directories: files, reports, mistakes."""

import csv
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from PIL import Image

from fedbraid.cli.analyze import listed
from fedbraid.cli.app import main
from fedbraid.report import style

SMALL = ["--set", "rounds=2", "--set", "engine.device=cpu"]


@pytest.fixture(autouse=True)
def _small_pictures(monkeypatch):
    monkeypatch.setattr(style, "DPI", 30)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def fedbraid(monkeypatch, capsys, place):
    monkeypatch.chdir(place)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fedbraid", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        return left.value.code or 0, captured.out, captured.err

    return call


@pytest.fixture
def run(fedbraid, place):
    if not (place / "run").exists():
        assert fedbraid("run", *SMALL, "--out", "run")[0] == 0
    return Path("run")


def titles(report):
    return re.findall(r"<h[23][^>]*>([^<]*)</h[23]>\s*<figure>", report.read_text())


def test_tables_numbers_and_pictures_go_beside_the_run_and_into_its_report(fedbraid, run):
    before = titles(run / "report.html")
    code, out, err = fedbraid("analyze", run, "--what", "cost,forgetting")
    assert code == 0, err
    assert "forgetting.rare" in out and "run/analyses/cost.png" in out
    for name in ("cost", "forgetting"):
        about = json.loads((run / "analyses" / f"{name}.json").read_text())
        assert about["name"] == name and all(key.startswith(f"{name}.") for key in about["numbers"])
        with Image.open(run / "analyses" / f"{name}.png") as image:
            assert image.width == round(style.DPI * style.WIDTH)
    rows = list(csv.DictReader((run / "analyses" / "forgetting.csv").read_text().splitlines()))
    assert len(rows) == 10 * 10 and rows[0].keys() == {"client", "class", "share", "before", "after", "change"}
    added = ["What a score costs", "What local training forgets"]
    assert titles(run / "report.html") == before + added
    text = (run / "report.html").read_text()
    assert text.index(">Analyses</h2>") < text.index("What local training forgets") < text.index(">Configuration</h2>")
    assert "Bars below zero where it holds little are forgetting." in text

    fedbraid("analyze", run, "--what", "cost")  # again: in its old place, once
    assert titles(run / "report.html") == before + added
    assert fedbraid("run", "--out", "run", "--resume")[0] == 0  # writes the report anew
    assert titles(run / "report.html") == before + added


def test_numbers_as_json(fedbraid, run):
    code, out, err = fedbraid("analyze", run, "--what", "drift", "--json", "--out", "elsewhere")
    assert code == 0, err
    shown = json.loads(out)
    assert shown.keys() == {"elsewhere/drift.png"}
    assert shown["elsewhere/drift.png"].keys() == {f"drift.{q}" for q in ("variance", "step", "length", "cosine")}
    assert not (run / "analyses" / "drift.png").exists()


def test_a_comparison_is_looked_at_run_by_run_and_as_a_whole(fedbraid, not_rendered):
    fedbraid("compare", "fedavg", "prox", *SMALL, "--out", "both")
    code, out, err = fedbraid("analyze", "both", "--what", "cost, drift")
    assert code == 0, err
    both = Path("both")
    assert "What a score costs" in titles(both / "report.html")
    assert "cost.rounds/fedavg" in out and "cost.rounds/prox" in out
    for method in ("fedavg", "prox"):  # a comparison's runs have no reports of their own, until now
        assert titles(both / method / "seed-0" / "report.html")[-1] == "Client drift"


def test_without_a_run_it_tells_what_there_is(fedbraid):
    code, out, _ = fedbraid("analyze")
    assert code == 0 and "clients=3, samples=100" in out
    code, out, _ = fedbraid("analyze", "--json")
    assert {"drift", "fairness", "cost", "privacy"} <= {entry["name"] for entry in json.loads(out)}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "nowhere holds no run; name a directory that `fedbraid run` or `fedbraid compare` wrote"),
        (["run", "--what", "dirft"], "no analysis is called 'dirft'; did you mean 'drift'?"),
        (["run", "again", "--what", "cost"], "cost looks at all of these runs at once; say with --out"),
        (["run", "again", "--what", "drift", "--out", "x"], "drift looks at one run at a time; leave --out away"),
    ],
)
def test_mistakes_are_one_line(fedbraid, run, words, sentence):
    shutil.copytree(run, "again", dirs_exist_ok=True)
    code, out, err = fedbraid("analyze", *words)
    assert code == 2 and not out
    assert sentence in err and len(err.strip().splitlines()) == 1
    assert not Path("nowhere").exists() and not Path("x").exists()


def test_names_between_commas_with_options_in_brackets():
    assert listed("drift, features(clients=3, samples=9),cost") == ["drift", "features(clients=3, samples=9)", "cost"]
