from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_runs import HOSTILE, regression, run
from pages import Page

from fedbraid.errors import UserError
from fedbraid.report.analysed import refresh
from fedbraid.report.html import to_html
from fedbraid.report.pictures import Picture
from fedbraid.report.run_groups import RunRecord
from fedbraid.report.run_report import run_page, write_comparison

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
    assert not {"script", "link", "iframe", "object", "b"} & set(shown.tags)
    assert shown.embedded
    assert all(resource.startswith("data:image/png;base64,") for resource in shown.embedded)
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
    *_, path = write_comparison(tmp_path, [record], environment={})
    shown = Page(path.read_text(encoding="utf-8"))
    assert told in shown.text
    assert "nothing recorded" in shown.text


def test_same_runs_same_page() -> None:
    picture = Picture("curves", "Accuracy", "Higher is better.", b"light", b"dark")
    one, two = (to_html(run_page([run("fedavg", [0.5])], [picture], None, "", ENVIRONMENT, "")) for _ in range(2))
    assert one == two
    assert "Command" not in one


def test_no_runs_write_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        write_comparison(tmp_path, [], environment={})
    assert list(tmp_path.iterdir()) == []


def test_contents_lead_to_every_part(written: list[Path]) -> None:
    text = written[-1].read_text(encoding="utf-8")
    links = [link for link in Page(text).resources if link.startswith("#")]
    assert len(links) == text.count("<h2 ") == len({*links})
    assert all(f'id="{link[1:]}"' in text for link in links)


def test_a_report_is_titled_by_its_methods_and_task_and_dated(tmp_path: Path) -> None:
    settings = {
        "data": {"name": "digits"},
        "partition": {"name": "dirichlet", "clients": 4, "beta": 0.3, "min_size": 10},
        "model": {"name": "mlp", "hidden": [64]},
        "rounds": 2,
    }
    records = [replace(run(label, [0.5, 0.6], seed), settings=settings) for label in "ab" for seed in (0, 1)]
    page = run_page(records, [], None, "", {}, "", date="1 May 2026")
    assert page.title == "a and b on digits"
    assert page.subtitle == (
        "digits, dirichlet (beta=0.3) among 4 clients, mlp, 2 rounds, 2 seeds · reported on 1 May 2026"
    )
    assert run_page(records, [], None, "Mine", {}, "").title == "Mine"
    many = [run(f"method {k}", [0.5]) for k in range(4)]
    assert run_page(many, [], None, "", {}, "").title == "4 methods on digits"


def test_a_part_for_analyses_is_filled_in_later(tmp_path: Path) -> None:
    write_comparison(tmp_path, [run("fedavg", [0.5])], environment={})
    assert "None yet" in (tmp_path / "report.html").read_text()
    (tmp_path / "analyses").mkdir()
    about = {"name": "drift", "title": "Drift & more", "reading": "Less is better.", "numbers": {"drift.mean": 0.25}}
    (tmp_path / "analyses" / "drift.json").write_text(json.dumps(about))
    for kind in ("", "-dark"):
        (tmp_path / "analyses" / f"drift{kind}.png").write_bytes(b"picture")
    assert refresh(tmp_path) and refresh(tmp_path)
    shown = Page((tmp_path / "report.html").read_text())
    assert shown.open == []
    assert shown.text.count("Drift & more") == 1 and "drift.mean" in shown.text and "None yet" not in shown.text
