from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from made_up_runs import HOSTILE, regression, run
from pages import Page

from fedbraid.errors import UserError
from fedbraid.report.html import page, write_comparison, write_report
from fedbraid.report.pictures import Picture
from fedbraid.report.run_groups import RunRecord

ENVIRONMENT = {"python": "3.11", "machine": "<b>two</b> cores", "versions": {"torch": "2"}}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    runs = [run(label, [0.1, None, 0.5 + index / 100]) for index, label in enumerate(HOSTILE)]
    directory = tmp_path_factory.mktemp("comparison") / "new"
    return write_comparison(
        directory, runs, 0.5, "A <title>", environment=ENVIRONMENT, command='run --to "x" <y>\n\tdone'
    )


def test_all_files_are_written(written: list[Path]) -> None:
    names = {path.name for path in written}
    assert names >= {"table.md", "table.json", "curves.png", "cost.png", "clients.png", "report.html"}
    assert {path.name for path in written[0].parent.iterdir()} == names
    assert all(path.stat().st_size for path in written)
    assert json.loads((written[0].parent / "table.json").read_text())["rows"][0]["method"] == HOSTILE[0]


def test_the_report_is_whole_and_alone(written: list[Path]) -> None:
    text = written[-1].read_text(encoding="utf-8")
    shown = Page(text)
    assert shown.open == []
    assert not {"script", "link", "iframe", "object", "a", "b"} & set(shown.tags)
    assert shown.resources
    assert all(resource.startswith("data:image/png;base64,") for resource in shown.resources)
    assert not re.search(r"url\(|@import|https?://", text)
    assert shown.tags.count("img") == shown.tags.count("figcaption") == 4


def test_what_users_wrote_is_shown_and_not_obeyed(written: list[Path]) -> None:
    text = written[-1].read_text(encoding="utf-8")
    shown = Page(text).text
    for label in HOSTILE[:4]:
        assert label in shown
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert 'run --to "x" <y>\n\tdone' in shown
    assert "<b>two</b> cores" in shown
    assert "versions.torch" in shown
    assert "A <title>" in shown
    assert "One seed: no spread known." in shown


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (run("fedavg", [0.5]), "fedavg ends with 50.00 % accuracy"),
        (run("fedavg", [None]), "No round has been evaluated yet."),
        (regression("fedavg", [2.0, None, 1.5]), "fedavg ends with a loss of 1.5"),
    ],
)
def test_a_single_run(tmp_path: Path, record: RunRecord, told: str) -> None:
    path = tmp_path / "report.html"
    write_report(path, [record], environment={})
    shown = Page(path.read_text(encoding="utf-8"))
    assert told in shown.text
    assert "nothing recorded" in shown.text


def test_same_runs_same_page() -> None:
    picture = Picture("curves", "Accuracy", "Higher is better.", b"light", b"dark")
    one, two = (page([run("fedavg", [0.5])], [picture], None, "Title", ENVIRONMENT, "") for _ in range(2))
    assert one == two
    assert "Command" not in one


def test_no_runs_write_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        write_report(tmp_path / "report.html", [], environment={})
    with pytest.raises(UserError):
        write_comparison(tmp_path, [], environment={})
    assert list(tmp_path.iterdir()) == []
