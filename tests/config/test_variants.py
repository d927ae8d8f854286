"""Methods with several values of their settings, side by side."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedbraid as fb
from fedbraid.analyses import reporting
from fedbraid.cli.user_input import several
from fedbraid.config.schema import named
from fedbraid.config.sweeps import variants
from fedbraid.report.sweep_figures import sweeps
from fedbraid.training.run_directory import RunDirectory
from fedbraid.training.user_objects import UserObjects

pytestmark = pytest.mark.usefixtures("not_rendered")
TINY = {"data": {"name": "digits", "samples": 120}, "rounds": 2, "model": "logistic", "partition": {"clients": 3}}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("optimizer.lr=0.1,0.03", [0.1, 0.03]),
        ("local.epochs = 1, 5", [1, 5]),
        ("local.drop_last=true,false", [True, False]),
        ("partition.name=iid,dirichlet", ["iid", "dirichlet"]),
        ("model.hidden=[64],[64,32]", [[64], [64, 32]]),
        ('data.path="a,b","c"', ["a,b", "c"]),
        ("engine.kind=auto", ["auto"]),
    ],
)
def test_values_are_written_as_with_set_and_separated_by_commas(text, values):
    assert list(several([text]).values()) == [values]


@pytest.mark.parametrize("texts", [["optimizer.lr"], ["=1,2"], ["optimizer.lr="], ["local.epochs=1", "local.epochs=2"]])
def test_what_cannot_be_varied_is_refused(texts):
    with pytest.raises(fb.UserError, match="--vary"):
        several(texts)


def test_every_combination_of_what_a_method_hears_of():
    vary = {"optimizer.lr": [0.1, 0.01], "strands.prox.mu": [1.0, 2.0]}
    assert variants(vary, fb.chain("fedavg")) == [{"optimizer.lr": 0.1}, {"optimizer.lr": 0.01}]
    assert len(variants(vary, fb.chain("fedprox"))) == 4
    assert variants({}, fb.chain("fedavg")) == [{}]


def test_names_are_as_short_as_they_can_be():
    assert named("fedavg", {}) == "fedavg"
    assert named("fedavg", {"optimizer.lr": 1e10, "local.drop_last": True}) == "fedavg lr=1e+10 drop_last=true"
    assert named("a", {"strands.x.mu": 1, "strands.y.mu": 2}) == "a strands.x.mu=1 strands.y.mu=2"
    assert named("a", {"strands.x.mu": 1}, among=["strands.y.mu"]) == "a strands.x.mu=1"
    assert named("a", {"model.hidden": [64, 32]}, between="_") == "a_hidden=[64,32]"
    assert named("a", {"optimizer.lr": 0.03162277660168379}) == "a lr=0.03162277660168379"


def test_a_variant_is_the_run_with_these_settings(tmp_path):
    vary = {"optimizer.lr": [0.2, 0.05], "strands.prox.mu": [0.5]}
    comparison = fb.compare(
        "fedavg", "fedprox", vary=vary, seeds=2, out=tmp_path, strands={"prox": {"mu": 9.0}}, **TINY
    )
    assert list(comparison.summary) == [
        "fedavg lr=0.2",
        "fedavg lr=0.05",
        "fedprox lr=0.2 mu=0.5",
        "fedprox lr=0.05 mu=0.5",
    ]
    alone = fb.run("fedprox", optimizer={"lr": 0.05}, strands={"prox": {"mu": 0.5}}, seed=1, **TINY)
    assert comparison.runs[-1].rounds[-1]["loss"] == pytest.approx(alone.rounds[-1]["loss"], rel=1e-5)
    again = json.loads((tmp_path / "table.json").read_text())
    assert [row["method"] for row in again["rows"]] == list(comparison.summary)
    assert (tmp_path / "fedprox_lr=0.05_mu=0.5" / "seed-1" / "summary.json").exists()


def test_analyses_keep_variants_apart(tmp_path):
    fb.compare("fedavg", vary={"optimizer.lr": [0.2, 0.05]}, out=tmp_path, **TINY)
    (tmp_path / "report.html").unlink()  # so that it is made anew
    reporting.write([tmp_path], ["cost"], objects=UserObjects())
    page = (tmp_path / "report.html").read_text()
    assert "fedavg lr=0.2" in page and "fedavg lr=0.05" in page


@pytest.mark.parametrize(
    ("vary", "reason"),
    [
        ({"seed": [1, 2]}, "ask for several seeds"),
        ({"method": ["fedavg"]}, "name several methods"),
        ({"optimizer.lr": []}, "a list of values"),
        ({"optimizer.lr": 0.1}, "a list of values"),
        ({"optimizer.lr": [0.1, 0.1]}, "twice"),
        ({"strands.disco.a": [0.1]}, "'disco', which none of the methods has"),
        ({"optimizer.rate": [0.1]}, "rate"),
        ({"local.epochs": [1, "two"]}, "epochs"),
        ({"optimizer.lr": [0.1, -1.0]}, "lr"),
        ({"model.name": ["logistic", "mpl"]}, "mpl"),
        ({"partition.name": ["iid", "idd"]}, "idd"),
        ({"evaluate.target": [0.1, 0.2]}, "one target"),
        ([0.1, 0.2], "lists of values by setting"),
    ],
)
def test_mistakes_come_before_any_training(tmp_path, vary, reason):
    with pytest.raises(fb.UserError, match=reason):
        fb.compare("fedavg", vary=vary, out=tmp_path / "c", **TINY)
    assert not (tmp_path / "c").exists()


def test_a_run_is_called_after_what_it_is(tmp_path):
    fb.compare("fedavg", vary={"optimizer.lr": np.logspace(-2, -1, 2)}, out=tmp_path, **TINY)
    config = RunDirectory(tmp_path / "fedavg_lr=0.01" / "seed-0").config()
    assert config.called == "fedavg lr=0.01"
    assert (
        replace(config, method="scaffold", optimizer=replace(config.optimizer, options={"lr": 5})).called
        == "scaffold lr=5"
    )
    again = fb.compare("fedavg", "fedprox", config=replace(config, strands={}), rounds=1)
    assert list(again.summary) == ["fedavg", "fedprox"]


@pytest.mark.parametrize("method", ["fedprox(mu=0.1)", fb.chain("fedprox(mu=0.1)")])
def test_a_number_that_the_method_has_in_its_own_words_is_not_varied(method):
    with pytest.raises(fb.UserError, match=r"strands.prox.mu is not varied in .*, which sets mu itself"):
        fb.compare(method, vary={"strands.prox.mu": [0.01, 1.0]}, **TINY)


def test_a_list_of_numbers_is_varied_like_a_number():
    targets = [[0.1] * 10, [0.19] + [0.09] * 9]
    made = fb.compare("disco", vary={"strands.disco.target": targets}, **TINY)
    assert [list(run.config.strands["disco"]["target"]) for run in made.runs] == targets


def test_an_object_is_what_it_is():
    with pytest.raises(fb.UserError, match=r"model.hidden is not varied where model is an object"):
        fb.compare("fedavg", vary={"model.hidden": [[8], [64]]}, **TINY | {"model": torch.nn.Linear(64, 10)})


def test_a_diverged_run_is_a_gap(tmp_path):
    settings = {"data": {"name": "digits", "samples": 120}, "rounds": 2, "model": "mlp", "partition": {"clients": 3}}
    made = fb.compare("fedavg", vary={"optimizer.lr": [0.1, 0.2, 1e38]}, **settings)
    (found,) = sweeps(made.records)
    scores = found.lines["fedavg"]
    assert all(map(math.isfinite, scores[0.1])) and math.isnan(scores[1e38][0])


def test_whole_tables_may_be_varied():
    made = fb.compare("fedavg", vary={"optimizer": [{"lr": 0.1}, {"lr": 0.2}]}, **TINY)
    assert len({run.config.optimizer.options["lr"] for run in made.runs}) == 2


def test_a_setting_that_another_keeps_from_having_an_effect_is_not_varied(tmp_path):
    with pytest.raises(fb.UserError, match=r"local.epochs=2 has no effect beside local.steps=3"):
        fb.compare("fedavg", vary={"local.epochs": [1, 2]}, local={"steps": 3}, out=tmp_path / "c", **TINY)
    assert not (tmp_path / "c").exists()


def test_a_comparison_goes_on_where_the_run_that_hears_a_setting_is_over(tmp_path):
    vary, settings = {"schedule.shape": ["step", "constant", "cosine"]}, TINY | {"schedule": {"milestones": [1]}}
    whole = fb.compare("fedavg", vary=vary, out=tmp_path, **settings)
    for shape in ("constant", "cosine"):  # which had not begun yet
        shutil.rmtree(tmp_path / f"fedavg_shape={shape}")
    again = fb.compare("fedavg", vary=vary, out=tmp_path, resume=True, **settings)
    assert [run.summary["last"] for run in again.runs] == [run.summary["last"] for run in whole.runs]
