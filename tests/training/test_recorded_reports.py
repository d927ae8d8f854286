"""Reports are made again from what runs recorded, whether the runs were finished or not."""

import json
import re
import sys

import pytest
from helpers import toy

import fedbraid as fb
from fedbraid.cli.app import main
from fedbraid.training.recorded_reports import report_recorded

pytestmark = pytest.mark.usefixtures("not_rendered")
DATA, PARTITION = toy()
TOY = {"data": DATA, "partition": PARTITION, "model": "logistic", "rounds": 3, "engine": {"device": "cpu"}}
DIGITS = {"rounds": 2, "partition": {"clients": 3}, "engine": {"device": "cpu"}}


def page(place):
    """The report without its date and its environment, which are those of the time when it is made."""
    text = (place / "report.html").read_text()
    return re.sub(r"reported on [^<]*", "", text).rpartition("Environment</h2>")[0]


def interrupted(place, method="fedavg", after=2, **asked):
    def kill(line, config):
        if line["round"] == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fb.run(method, out=place, on_round=kill, **TOY | asked)


def test_a_run_reports_into_its_own_directory(tmp_path):
    run = fb.run(out=tmp_path / "run", **TOY)
    assert tmp_path / "run" / "report.html" in run.report()
    with pytest.raises(fb.UserError, match="was not recorded"):
        fb.run(**TOY).report()


def test_a_comparison_reports_into_its_own_directory(tmp_path):
    done = fb.compare("fedprox", "fedavg", out=tmp_path, **TOY)
    (tmp_path / "report.html").unlink()
    assert tmp_path / "report.html" in done.report()
    with pytest.raises(fb.UserError, match="was not recorded"):
        fb.compare("fedavg", **TOY).report()


def test_the_report_made_again_is_the_same(tmp_path, capsys, monkeypatch):
    fb.run("disco", out=tmp_path, **DIGITS).report()
    first, table = page(tmp_path), (tmp_path / "table.md").read_text()
    (tmp_path / "report.html").unlink()
    monkeypatch.setattr(sys, "argv", ["fedbraid", "report", str(tmp_path)])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert capsys.readouterr().out == f"report: {tmp_path / 'report.html'}\n"
    assert page(tmp_path) == first and (tmp_path / "table.md").read_text() == table
    assert "not recorded" in (tmp_path / "report.html").read_text()


def test_the_report_of_a_comparison_made_again_is_the_same(tmp_path):
    fb.compare("fedprox", "fedavg", seeds=[10, 2], out=tmp_path, **DIGITS)  # in neither folder order
    first = json.loads((tmp_path / "table.json").read_text())
    report_recorded(tmp_path)
    assert json.loads((tmp_path / "table.json").read_text()) == first


def test_a_run_that_was_interrupted_is_reported_as_far_as_it_came(tmp_path, caplog):
    interrupted(tmp_path / "run")
    report_recorded(tmp_path / "run")
    assert "fedavg seed 0 is not finished: 2 of its 3 rounds are recorded" in page(tmp_path / "run")
    assert not (tmp_path / "run" / "summary.json").exists()  # it can be resumed as before
    assert fb.run(out=tmp_path / "run", resume=True, **TOY).summary["rounds"] == 3


def test_a_comparison_that_was_interrupted_is_reported(tmp_path):
    fb.run("fedavg", out=tmp_path / "fedavg" / "seed-0", **TOY)
    interrupted(tmp_path / "fedprox" / "seed-0", "fedprox", after=1)
    report_recorded(tmp_path)
    text = page(tmp_path)
    assert "fedprox seed 0 is not finished: 1 of its 3 rounds are recorded" in text and "fedavg seed" not in text
    assert [row["method"] for row in json.loads((tmp_path / "table.json").read_text())["rows"]] == ["fedavg", "fedprox"]


def test_data_that_are_not_here_leave_the_rest_of_the_report(tmp_path, caplog):
    fb.run(out=tmp_path, **TOY)
    report_recorded(tmp_path)
    assert "does not show the clients' labels" in caplog.text and "was given its data in Python" in caplog.text
    assert (tmp_path / "report.html").exists()


def test_a_folder_without_a_run_or_with_a_damaged_one_is_refused(tmp_path):
    with pytest.raises(fb.UserError, match="holds no run and no comparison"):
        report_recorded(tmp_path)
    fb.run(out=tmp_path / "run", **TOY)
    log = tmp_path / "run" / "rounds.jsonl"
    log.write_text(log.read_text().replace('"accuracy": 0', '"accuracy": 1', 1))
    with pytest.raises(fb.UserError, match=r"rounds\.jsonl is damaged"):
        report_recorded(tmp_path / "run")
