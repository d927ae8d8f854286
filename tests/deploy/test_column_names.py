"""Clients with tables of their own: columns go by their names, whatever their order."""

import csv
import logging
from functools import partial

import numpy as np
import pytest

from fedbraid import data
from fedbraid.config.schema import from_dict
from fedbraid.data.sample_facts import Facts
from fedbraid.deploy.assembly import assemble
from fedbraid.deploy.client_data import NamedData
from fedbraid.deploy.federation_run import conduct
from fedbraid.deploy.membership import Membership
from fedbraid.deploy.node import Node
from fedbraid.deploy.remote_federation import WaitPolicy
from fedbraid.deploy.transport import InProcess
from fedbraid.errors import UserError
from fedbraid.training.user_objects import UserObjects

COLUMNS = ("age", "bmi", "glucose")
KINDS = ("healthy", "pre", "sick")
SETTINGS = {
    "rounds": 2,
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"batch": 8, "epochs": 2},
    "optimizer": {"lr": 0.1},
    "engine": {"device": "cpu", "dtype": "float64"},
    "evaluate": {"every": 2},
}
SCALE = {"mean": [55.0, 28.0, 120.0], "std": [12.0, 4.0, 30.0]}


def patients(seed, count=30):
    """Rows whose glucose says how they are, and nothing else does."""
    rng = np.random.default_rng(seed)
    for k in range(count):
        kind = k % 3
        values = rng.normal(55, 12), rng.normal(28, 4), 80 + 40 * kind + rng.normal(0, 4)
        yield dict(zip(COLUMNS, (f"{v:.2f}" for v in values), strict=True)) | {"label": KINDS[kind]}


def table(file, order, seed, **more):
    rows = [row | {name: make(k) for name, make in more.items()} for k, row in enumerate(patients(seed))]
    with open(file, "w", newline="") as text:
        writer = csv.DictWriter(text, [*order, *more, "label"])
        writer.writeheader()
        writer.writerows(rows)
    return file


def clients(place, orders, **options):
    """A node for each order of columns, all with the same rows in them."""
    made = {}
    for name, (order, more) in orders.items():
        file = table(place / f"{name}.csv", order, 1, **more)
        data = {"name": "csv", "path": str(file), **options}
        made[name] = partial(Node, place / name, name, NamedData.of({"data": data}), device="cpu")
    return made


def conducted(place, orders, **data):
    config = from_dict(SETTINGS | {"data": {"name": "clients", "labels": list(KINDS), **data}})
    return conduct(config, InProcess(clients(place, orders)), list(orders), out=place / "run", pause=0.0, tries=1)


def said_to_newcomer(place, order, more=None, held=None, **data):
    """Why a client whose table has this order cannot take part, or ''."""
    config = from_dict(SETTINGS | {"data": {"name": "clients", "labels": list(KINDS), **data}})
    node = clients(place, {"a": (order, more or {})})
    node = {"a": partial(Node, place / "a", "a", held, device="cpu")} if held else node
    membership, waiting = Membership(place / "run" / "federation.json", ("a",)), WaitPolicy(pause=0.0)
    federation = assemble(config, InProcess(node), membership, waiting, place / "run" / "states", UserObjects())
    membership.open()
    federation.engine.channel.handshake_new_clients()
    return federation.engine.channel.rejected.get("a", ("",))[0]


@pytest.mark.parametrize("scale", [{}, SCALE], ids=["each its own scale", "one scale"])
def test_another_order_of_columns_gives_the_same_model(scale, tmp_path, caplog):
    """Also where a table has a column more, whose name stays with its client."""
    (tmp_path / "same").mkdir(), (tmp_path / "mixed").mkdir()
    plain = dict.fromkeys(("a", "b", "c"), (COLUMNS, {}))
    mixed = plain | {"b": (("glucose", "age", "bmi"), {}), "c": (COLUMNS, {"patient": lambda k: k})}
    with caplog.at_level(logging.INFO):
        one, other = (
            conducted(tmp_path / place, orders, features=list(COLUMNS), **scale)
            for place, orders in (("same", plain), ("mixed", mixed))
        )
    assert one.rounds[-1]["loss"] == other.rounds[-1]["loss"]
    for mine, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert mine.equal(theirs)
    assert any("no columns patient" in record.getMessage() for record in caplog.records)


def test_columns_of_other_names_are_refused_and_stay_with_their_client(tmp_path, caplog):
    said = said_to_newcomer(tmp_path, COLUMNS, features=["age", "bmi", "pressure"])
    assert "it has no column 'pressure'; its own log says more" in said and "glucose" not in said
    assert any("age, bmi, glucose" in record.getMessage() for record in caplog.records)


def test_names_that_the_server_does_not_say_are_refused(tmp_path, caplog):
    """Or columns in other orders would be trained on as if they were the same."""
    said = said_to_newcomer(tmp_path, COLUMNS, shape=[3])
    assert "its columns have names, which the server must say by data.features" in said and "glucose" not in said
    assert any('data.features=["age","bmi","glucose"]' in record.getMessage() for record in caplog.records)


def test_columns_without_names_are_refused_where_the_federations_have_some(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((9, 3)), y=np.arange(9) % 3)
    held = NamedData.of({"data": {"name": "npz", "path": str(tmp_path / "x.npz")}})
    said = said_to_newcomer(tmp_path, COLUMNS, held=held, features=list(COLUMNS))
    assert "its columns have no names to tell them by" in said


def test_what_a_client_keeps_is_its_own(tmp_path):
    conducted(tmp_path, {"a": (COLUMNS, {})}, features=list(COLUMNS), **SCALE)
    (run,) = (folder for folder in (tmp_path / "a").iterdir() if folder.is_dir())
    kept = [path for path in run.iterdir() if path.name != ".lock"]
    assert run.stat().st_mode & 0o777 == 0o700
    assert len(kept) > 1 and {path.stat().st_mode & 0o777 for path in kept} == {0o600}


class Arriving(InProcess):
    """Clients of whom one more is seen at each look."""

    looks = 0

    def present(self):
        self.looks += 1
        return super().present()[: self.looks]


def test_who_has_come_is_not_waited_for(tmp_path, caplog):
    """Somebody who comes while another is ready is ready before the log says who is missing."""
    names = ("a", "b", "c")
    config = from_dict(SETTINGS | {"data": {"name": "clients", "labels": list(KINDS), "features": list(COLUMNS)}})
    membership = Membership(tmp_path / "federation.json", names)
    transport = Arriving(clients(tmp_path, dict.fromkeys(names, (COLUMNS, {}))))
    federation = assemble(config, transport, membership, WaitPolicy(pause=0.0), tmp_path / "states", UserObjects())
    membership.open()
    with caplog.at_level(logging.INFO):
        federation.gather()
    assert not [record for record in caplog.records if "waiting for" in record.getMessage()]


def test_names_are_one_for_each_number():
    assert Facts.read({"features": list(COLUMNS), "classes": 2}).shape == (3,)
    for names, shape in ((["a", "a"], [2]), (["a", "b"], [3]), (["a"], [1, 1])):
        with pytest.raises(UserError, match=r"data\.features are different names of columns"):
            Facts.read({"classes": 2, "features": names, "shape": shape})


def prices(place, scale):
    """Two clients' tables of the same law, one with larger houses, as data sets that scale their labels themselves."""
    made = []
    for name, sizes in (("small", range(40, 80)), ("large", range(200, 280, 2))):
        file = place / f"{name}.csv"
        file.write_text("size,price\n" + "".join(f"{size},{3 * size + 10}\n" for size in sizes))
        options = {"path": str(file), "label": "price", "task": "regression", "standardise": scale}
        made.append(data.load("csv", **options))
    return made


def test_labels_of_a_regression_mean_the_same_everywhere(tmp_path):
    facts = Facts.read({"features": ["size"], "task": "regression", "target": [400.0, 200.0]})
    for dataset in prices(tmp_path, True):
        fitted = facts.fitted(dataset)
        assert fitted.target == (400.0, 200.0)
        assert fitted.train.y == pytest.approx((3 * dataset.train.x[:, 0] + 10 - 400) / 200, abs=1e-4)
    assert facts.made_up().target == (400.0, 200.0)
    assert Facts.read(facts.told()) == facts and "target" not in Facts.read({"shape": [1], "classes": 2}).told()


def test_labels_that_each_client_scales_by_itself_are_refused(tmp_path):
    facts = Facts.read({"features": ["size"], "task": "regression"})
    with pytest.raises(UserError, match="labels are scaled by its own mean and deviation"):
        facts.fitted(prices(tmp_path, True)[0])
    plain = prices(tmp_path, False)[0]
    assert np.array_equal(facts.fitted(plain).train.y, plain.train.y)
    for target in ([1.0], [1.0, 0.0]):
        with pytest.raises(UserError, match=r"data\.target is the mean and the deviation"):
            Facts.read({"shape": [1], "task": "regression", "target": target})
