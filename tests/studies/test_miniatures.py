"""A study of each paper as it is run: two rounds of a table's miniature, of fewer samples still, on files laid out as
the real ones."""

import json
import sys

import numpy as np
import pytest
from covering import rest_slow

from fedbraid.cli.app import main
from fedbraid.data.datasets import cifar


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """CIFAR-10 and CIFAR-100 in their binary layout, with images that are their class's colours and noise."""
    place, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    noise = rng.integers(0, 60, (10_000, 3072), dtype=np.uint8)

    def table(classes, rows):
        fine = (np.arange(rows) % classes).astype(np.uint8)
        colours = rng.integers(0, 190, (classes, 3072), dtype=np.uint8)
        return fine, colours[fine] + noise[np.arange(rows) % len(noise)]

    ten = place / "cifar-10-batches-bin"
    ten.mkdir()
    labels, x = table(10, 10_000)
    for name in cifar.PYTHON10:
        np.concatenate([labels[:, None], x], 1).tofile(ten / f"{name}.bin")
    hundred = place / "cifar-100-binary"
    hundred.mkdir()
    labels, x = table(100, 10_000)
    whole = np.concatenate([labels[:, None] // 5, labels[:, None], x], 1)
    whole.tofile(hundred / "test.bin")
    np.tile(whole, (5, 1)).tofile(hundred / "train.bin")
    return place


TABLES = {
    "feddisco-table2": ("CIFAR-10 NIID-2", "FedAvg", "FedAvg+Disco"),
    "rfedavg-table1": ("CIFAR10 Sim 0%", "FedAvg", "rFedAvg+"),
    "asd-table2": ("CIFAR-100 δ=0.3", "FedAvg", "FedAvg+ASD"),
    "fedskip-table2": ("CIFAR-10 β = 0.5", "FedAvg", "FedSkip(3)"),
    "fedacd-table1": ("CIFAR-100 β=0.1", "FedAvg", "FedACD"),
}


FEWER = ["--set", "data.samples=400", "--set", "data.test_samples=200"]


@pytest.mark.parametrize("name", rest_slow(TABLES, {"fedskip-table2"}.__contains__))
def test_a_miniature_of_each_paper(name, files, tmp_path, monkeypatch, capsys):
    column, plain, better = TABLES[name]
    only = [word for row in (plain, better) for word in ("--only", f"{row} @ {column}")]
    words = ["study", "run", name, "--scale", "small", "--rounds", "2", "--seeds", "2", *only, *FEWER]
    monkeypatch.setattr(sys, "argv", ["fedbraid", *words, "--data-dir", str(files), "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as left:
        main()
    shown = capsys.readouterr()
    assert not left.value.code, shown.err
    (reported,) = tmp_path.glob(f"{name}-small-*rounds=2*")
    found = json.loads((reported / "results.json").read_text())
    cells = {cell["row"]: cell for cell in found["cells"] if cell["column"] == column and cell["values"]}
    assert set(cells) >= {plain, better}
    for row in (plain, better):
        values = list(cells[row]["values"].values())
        assert len(values) == 2 and all(0 <= value <= 100 for value in values)
        assert f"**{row}**" in (reported / "table.md").read_text()
    records = [json.loads(file.read_text()) for file in (tmp_path / "runs").glob("*/*.json")]
    assert len({str(record["series"]["loss"]) for record in records}) == 4, "two methods, two seeds"
    assert not (tmp_path / "unfinished").exists()
    assert (reported / "report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_a_table_on_the_authors_draw_is_tuned(files, tmp_path, monkeypatch, capsys):
    """FedDisco's table 3 as its recipe has it: the released split and cohorts, twelve candidates, then the cell."""
    cell = "FedAvg+Disco @ Accuracy, the authors' draw"
    words = ["study", "run", "feddisco-table3", "--scale", "small", "--rounds", "1", "--seeds", "2", "--only", cell]
    monkeypatch.setattr(sys, "argv", ["fedbraid", *words, "--data-dir", str(files), "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as left:
        main()
    shown = capsys.readouterr()
    assert not left.value.code, shown.err
    [file] = (tmp_path / "tuned").iterdir()
    choice = json.loads(file.read_text())
    assert len(choice["scores"]) == 12 and choice["rule"] == "test"
    assert len(list(tmp_path.glob("runs/*/seed-0.json"))) == 12, "the chosen candidate is the cell's run"
    assert len(list(tmp_path.glob("runs/*/seed-1.json"))) == 1
    [report] = tmp_path.glob("*/results.json")
    found = next(one for one in json.loads(report.read_text())["cells"] if f"{one['row']} @ {one['column']}" == cell)
    assert found["n"] == 2 and found["spread_of"] == "initial weights" and "the best of 12 candidates" in found["tuned"]
