"""A trained model on data that it has not seen: the same columns, the same scale, the same answers."""

import csv
import json
import shutil
import sys
from functools import partial

import numpy as np
import pytest
import torch
from recorded import without_checksums
from torch import nn

import fedbraid as fb
from fedbraid.cli.app import main
from fedbraid.config.schema import from_dict
from fedbraid.deploy.client_data import NamedData
from fedbraid.deploy.federation_run import conduct
from fedbraid.deploy.node import Node
from fedbraid.deploy.transport import InProcess

SMALL = {
    "rounds": 3,
    "partition": {"name": "iid", "clients": 2},
    "model": {"name": "mlp", "hidden": [4]},
    "local": {"epochs": 5, "batch": 8},
    "optimizer": {"lr": 0.3},
}
COLUMNS = ("age", "dose", "state", "price")


def table(file, order=COLUMNS, count=60, seed=0, gaps=()):
    """Rows whose second column says all, by numbers that are far from 0 and 1."""
    rng = np.random.default_rng(seed)
    with open(file, "w", newline="") as text:
        lines = csv.DictWriter(text, order, extrasaction="ignore")
        lines.writeheader()
        for k in range(count):
            age, dose = rng.normal(50, 9), 5000 + 100 * (k % 2) + rng.normal(0, 9)
            row = {"age": f"{age:.1f}", "dose": f"{dose:.1f}", "state": ("well", "sick")[k % 2], "price": 7 * dose}
            lines.writerow(row | ({"age": ""} if k in gaps else {}))
    return file


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run on a table, recorded, and the test rows in a file of their own."""
    place = tmp_path_factory.mktemp("predict")
    train, test = table(place / "train.csv", COLUMNS[:3]), table(place / "test.csv", COLUMNS[:3], seed=1)
    data = {"name": "csv", "path": str(train), "test": str(test), "label": "state"}
    run = fb.run("fedavg", data=data, out=place / "run", **SMALL)
    (place / "logged.json").write_text(json.dumps(run.rounds[-1]["accuracy"]))
    return place


@pytest.fixture
def fedbraid(monkeypatch, capsys):
    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fedbraid", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        return left.value.code or 0, said.out, said.err

    return call


def test_columns_go_by_name_and_the_accuracy_is_the_logged_one(place, tmp_path):
    logged = json.loads((place / "logged.json").read_text())
    assert logged > 0.9
    trained = fb.trained(place / "run")
    turned = table(tmp_path / "turned.csv", ("state", "price", "dose", "age"), seed=1)
    for file in (place / "test.csv", turned):
        told = trained.predict(file)
        assert told.accuracy == logged and len(told.names) == 60 and told.names[0] == "line 2"
        assert np.allclose(told.scores.sum(1), 1) and told.classes == ("sick", "well")


def test_what_lies_beside_the_model_is_enough_for_plain_torch(place):
    from safetensors.torch import load_file

    told, weights = json.loads((place / "run" / "inputs.json").read_text()), load_file(place / "run/model.safetensors")
    assert told["features"] == ["age", "dose"] and told["labels"] == ["sick", "well"]
    network = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    named = {"0": "hidden.0", "2": "head"}
    network.load_state_dict(
        {f"{k}.{part}": weights[f"{v}.{part}"] for k, v in named.items() for part in ("weight", "bias")}
    )
    with open(place / "test.csv") as text:
        x = torch.tensor([[float(row[name]) for name in told["features"]] for row in csv.DictReader(text)])
    scores = network((x - torch.tensor(told["mean"])) / torch.tensor(told["std"])).softmax(1)
    trained = fb.trained(place / "run")
    assert np.allclose(scores.detach().numpy(), trained.predict(place / "test.csv").scores, atol=1e-5)
    assert np.array_equal(trained.predict(x).scores, trained.predict(place / "test.csv").scores)


def test_a_line_for_each_row(place, tmp_path, fedbraid):
    file = table(tmp_path / "unlabelled.csv", ("dose", "age"), count=3)
    code, out, err = fedbraid("predict", place / "run", file)
    assert code == 0 and err == "3 predictions\n"
    lines = out.splitlines()
    assert lines[0] == "sample,prediction,p(sick),p(well)" and len(lines) == 4
    assert [line.split(",")[:2] for line in lines[1:]] == [["line 2", "well"], ["line 3", "sick"], ["line 4", "well"]]
    code, out, err = fedbraid("predict", place / "run", place / "test.csv", "--out", tmp_path / "sub" / "p.csv")
    assert code == 0 and out == "" and "60 predictions; " in err and "% of 60 are right" in err
    assert len((tmp_path / "sub" / "p.csv").read_text().splitlines()) == 61
    code, out, _ = fedbraid("predict", place / "run", file, "--json")
    assert json.loads(out) == {
        "samples": 3,
        "known": 0,
        "accuracy": None,
        "predictions": ["well", "sick", "well"],
    }


def test_gaps_are_refused_filled_or_left_out(place, tmp_path, fedbraid):
    file = table(tmp_path / "gaps.csv", COLUMNS[:3], gaps=(1, 4))
    code, _, err = fedbraid("predict", place / "run", file)
    assert code == 2 and "has 2 empty cells: 2 in age. --missing mean" in err
    trained = fb.trained(place / "run")
    filled, dropped = (trained.predict(file, missing=way) for way in ("mean", "drop"))
    assert len(filled.names) == 60 and filled.accuracy > 0.9
    assert len(dropped.names) == 58 and "line 3" not in dropped.names


@pytest.mark.parametrize(
    "order, sentence",
    [(("age", "state"), "has no column 'dose', which the model takes; it takes age, dose"), ((), "no .csv, .parquet")],
)
def test_other_data_are_refused(order, sentence, place, tmp_path, fedbraid):
    file = table(tmp_path / "other.csv", order) if order else place / "run" / "config.toml"
    code, out, err = fedbraid("predict", place / "run", file)
    assert code == 2 and out == "" and sentence in err


def test_a_regression_answers_in_the_units_of_its_target(tmp_path, fedbraid):
    file = table(tmp_path / "prices.csv", ("age", "dose", "price"))
    data = {"name": "csv", "path": str(file), "label": "price", "task": "regression"}
    fb.run("fedavg", data=data, out=tmp_path / "run", **(SMALL | {"optimizer": {"lr": 0.1}}))
    told = fb.trained(tmp_path / "run").predict(file)
    assert told.accuracy is None and told.error < 100  # prices lie around 35,000 and differ by 350
    code, out, err = fedbraid("predict", tmp_path / "run", file)
    assert code == 0 and "mean error" in err and abs(float(out.splitlines()[1].split(",")[1]) - 35000) < 1000


def test_archives_and_networks_of_ones_own(tmp_path):
    from fedbraid import data

    class Net(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Flatten(), nn.Linear(64, 10))

    run = fb.run("fedavg", rounds=1, model=Net, out=tmp_path / "run", partition={"clients": 2})
    test = data.load("digits").test
    np.savez(tmp_path / "new.npz", x=test.x, y=test.y)
    assert fb.trained(tmp_path / "run", model=Net).predict(tmp_path / "new.npz").accuracy == run.accuracy
    with pytest.raises(fb.UserError, match=r"a network of your own, 'Net'"):
        fb.trained(tmp_path / "run")


def test_what_holds_no_model_is_named(place, tmp_path):
    one, other = place / "run", tmp_path / "both" / "fedavg" / "seed-0"
    shutil.copytree(one, other)
    (other / "inputs.json").unlink()
    with pytest.raises(fb.UserError, match=r"recorded before there was inputs\.json; resume the run"):
        fb.trained(other)
    with pytest.raises(fb.UserError, match=r"both holds a comparison; name one of its runs, such as .*seed-0"):
        fb.trained(tmp_path / "both")


def test_a_run_that_is_older_is_resumed_and_gets_its_inputs(place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run")
    without_checksums(tmp_path / "run")
    (tmp_path / "run" / "inputs.json").unlink()
    config = tmp_path / "run" / "config.toml"
    older = [line for line in config.read_text().splitlines() if not line.startswith("missing = ")]
    config.write_text("\n".join(older))
    data = {"name": "csv", "path": str(place / "train.csv"), "test": str(place / "test.csv"), "label": "state"}
    fb.run("fedavg", data=data, out=tmp_path / "run", resume=True, **SMALL)
    assert (tmp_path / "run" / "inputs.json").read_text() == (place / "run" / "inputs.json").read_text()


def test_a_federation_without_a_common_scale_says_so(tmp_path):
    """A client's own training data then say how to scale: the answers are those that it had while testing."""
    nodes = {}
    for seed, name in enumerate(("a", "b")):
        data = {"name": "csv", "path": str(table(tmp_path / f"{name}.csv", COLUMNS[:3], seed=seed)), "label": "state"}
        nodes[name] = partial(Node, tmp_path / name, name, NamedData.of({"data": data}), device="cpu")
    kind = {"name": "clients", "features": ["age", "dose"], "labels": ["well", "sick"]}
    settings = SMALL | {"engine": {"device": "cpu"}, "partition": {}}
    for scale in ({}, {"mean": [50.0, 5050.0], "std": [9.0, 50.0]}):
        out = tmp_path / f"run{len(scale)}"
        conduct(from_dict(settings | {"data": kind | scale}), InProcess(nodes), list(nodes), out=out)
        trained = fb.trained(out)
        if scale:
            assert trained.predict(tmp_path / "a.csv", label="state").accuracy > 0.9
            continue
        assert "did not tell theirs" in json.loads((out / "inputs.json").read_text())["about"]
        with pytest.raises(fb.UserError, match=r"each scaled its samples by its own; .*--scaled-as FILE"):
            trained.predict(tmp_path / "a.csv", label="state")
        own = tmp_path / "a.csv"
        assert trained.predict(own, label="state", scaled_as=own).accuracy > 0.9


def test_folders_of_images_and_tables_of_texts(tmp_path):
    """Files of unknown classes are predicted too; only what is known counts."""
    from PIL import Image

    for kind, grey in (("dark", 20), ("light", 230)):
        (tmp_path / "images" / kind).mkdir(parents=True)
        for k in range(10):
            Image.new("L", (6, 6), grey + k).save(tmp_path / "images" / kind / f"{k}.png")
    data = {"name": "folder", "path": str(tmp_path / "images"), "grey": True}
    fb.run("fedavg", data=data, out=tmp_path / "run", **SMALL)
    Image.new("RGB", (12, 9), (235, 235, 235)).save(tmp_path / "images" / "new.png")
    told = fb.trained(tmp_path / "run").predict(tmp_path / "images")
    assert told.accuracy == 1.0 and len(told.known) == 20
    assert dict(zip(told.names, told.labels, strict=True))["new.png"] == "light"

    rows = [f"{'a good day' if k % 2 else 'a bad night'} {k},{k % 2}" for k in range(40)]
    (tmp_path / "texts.csv").write_text("\n".join(["said,label", *rows]))
    texts = {"name": "csv", "path": str(tmp_path / "texts.csv"), "text": "said", "length": 5}
    network = {"name": "textcnn", "embedding": 4, "filters": 4}
    fb.run("fedavg", data=texts, out=tmp_path / "words", **(SMALL | {"model": network}))
    (tmp_path / "new.csv").write_text("said\na good day\na bad night\n")
    assert fb.trained(tmp_path / "words").predict(tmp_path / "new.csv").labels == ["1", "0"]


def test_a_model_that_is_not_finite_predicts_nothing(place):
    model = fb.trained(place / "run")
    next(model.model.parameters()).data[0, 0] = float("nan")
    with pytest.raises(fb.UserError, match="the model's answers to 60 of 60 samples are not finite; it has diverged"):
        model.predict(place / "test.csv")
