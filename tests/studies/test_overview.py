"""All reports of a folder on one page: numbers worked out by hand from a made-up study's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_study import COURSES, recipe, results
from pages import Page

from fedbraid.errors import UserError
from fedbraid.studies.overview import against_the_paper, headline, row, write_overview
from fedbraid.studies.report import write_report
from fedbraid.studies.reported import reports


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The same runs in two tables, once more with other settings, and a table of which one cell was run."""
    write_report(recipe(), results(), tmp_path / "made-table1")
    write_report(recipe(name="made-table2", item="Table 2"), results(), tmp_path / "made-table2")
    write_report(recipe(), results(variant="--set local.epochs=9"), tmp_path / "made-table1-other")
    one = {place: course for place, course in COURSES.items() if place == ("FedAvg", "β = 0.5")}
    write_report(recipe(name="made-begun", claims=recipe().claims), results(courses=one), tmp_path / "made-begun")
    (tmp_path / "runs").mkdir()
    return tmp_path


def test_a_line_for_each_report(out: Path) -> None:
    found = {one.folder: one for one in reports(out)}
    assert [*found] == ["made-begun", "made-table1", "made-table1-other", "made-table2"]
    title = "Two methods & 50 % of <clients>"
    # 59.51 to 61.03 beside 60, 64.26 to 66.74 beside 70, 63.11 to 66.42 beside 61
    level, time = "differs: 2, open: 1", "19 min CPU"
    first = f"made, Table 1: {title}", "4 of 4", "–", level, "−0.16 points", "holds: 1", time
    assert row(found["made-table1"]) == first
    assert row(found["made-begun"])[1:] == ("1 of 4", "–", "differs: 1", "−4.50 points", "not run: 1", "5 min CPU")
    other = row(found["made-table1-other"])
    assert other == (f"made, Table 1: {title} (--set local.epochs=9)", "4 of 4", "–", "–", "–", "holds: 1", time)


def test_cells_of_two_tables_count_once_and_other_settings_not_at_all(out: Path) -> None:
    assert headline(reports(out)) == (
        "4 reports with 4 different cells that were trained; as their recipes say, of 3 accuracies that the paper has "
        "too 0 are the same within the margin, 2 differ and 1 are open; accuracies are 2.84 points from "
        "the paper's on average; 12 runs took 19 min on CPU."
    )  # (0.267 + 4.5 + 3.767) / 3


def test_the_picture_has_our_numbers_over_the_papers(out: Path) -> None:
    (axes,) = against_the_paper(reports(out)).axes
    line, dots = axes.lines
    assert (line.get_xdata() == line.get_ydata()).all()
    assert sorted(dots.get_xdata()) == [60.0, 61.0, 70.0]
    assert sorted(dots.get_ydata()) == pytest.approx([181.8 / 3 - 1 / 3, 194.3 / 3, 65.5], abs=0.01)
    assert axes.get_title(loc="left") == "made"


def test_spreads_and_other_scores_in_percent_are_no_points_of_accuracy(tmp_path: Path) -> None:
    columns = recipe().columns[0], replace(recipe().columns[1], metric="std_last(n=2)")
    made = recipe(columns=columns, numbers={"FedAvg": {"β = 0.1": [60.0], "β = 0.5": [3.0]}})
    write_report(made, results(made), tmp_path / "made")
    (one,) = reports(tmp_path)
    spread = "standard deviation of the accuracy over the last 2 evaluated rounds"
    assert one.difference == f"+0.27 points, −1.42 in {spread}"  # (0.5 + 1.5 + 2.75) / 3 - 3
    assert "; accuracies are 0.27 points from the paper's on average; " in headline([one])
    assert [*against_the_paper([one]).axes[0].lines[1].get_xdata()] == [60.0]
    area = replace(one, cells=(one.cells[0] | {"metric": "last(of='auroc')", "reads": "AUROC"},))
    assert area.difference == "+0.27 in AUROC" and "points" not in headline([area])


def test_a_cell_of_two_tables_is_beside_the_papers_spread_where_one_has_it(tmp_path: Path) -> None:
    for name, given in {"a": [60.5], "b": [60.5, 9.0], "c": [60.5]}.items():
        made = recipe(name=name, numbers={"FedAvg": {"β = 0.5": given}})
        write_report(made, results(made), tmp_path / name)
    assert "of 1 accuracies that the paper has too" in headline(reports(tmp_path))


def test_what_is_written(out: Path) -> None:
    assert [path.name for path in write_overview(out)] == ["overview.md", "overview.png", "overview.html", "made.md"]
    page = Page((out / "overview.html").read_text(encoding="utf-8"))
    links = [link for link in page.embedded if not link.startswith("data:")]
    assert [link.removesuffix("/report.html") for link in links] == [one.folder for one in reports(out)]
    assert all((out / link).is_file() for link in links)
    first = (out / "overview.md").read_bytes()
    write_overview(out)
    assert (out / "overview.md").read_bytes() == first


def test_without_numbers_of_a_paper_there_is_no_picture(tmp_path: Path) -> None:
    write_report(recipe(numbers={}), results(recipe(numbers={})), tmp_path / "made")
    assert [path.name for path in write_overview(tmp_path)] == ["overview.md", "overview.html", "made.md"]


def test_what_is_no_report_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no reports"):
        write_overview(tmp_path)
    (tmp_path / "one").mkdir()
    file = tmp_path / "one" / "results.json"
    file.write_text(json.dumps({"study": {}}))
    with pytest.raises(UserError, match=r"one/results\.json is no study's results \('cells'\)"):
        write_overview(tmp_path)
    write_report(recipe(), results(), tmp_path / "one")
    file.write_text(file.read_text(encoding="utf-8").replace('"unit": "points"', '"units": "points"'), encoding="utf-8")
    with pytest.raises(UserError, match=r"one/results\.json is no study's results \('unit'\)"):
        write_overview(tmp_path)


def test_cells_without_a_number_and_claims_with_missing_pairs_are_told_as_such(tmp_path: Path) -> None:
    courses = {place: course for place, course in COURSES.items() if place != ("FedAvg+Disco", "β = 0.5")}
    write_report(recipe(), results(courses=courses), tmp_path / "made")
    (one,) = reports(tmp_path)
    assert len(one.run) == 3 and one.verdicts == "holds so far: 1"
    diverged = one.cells[0] | {"ours": {"mean": None, "std": None}}
    assert replace(one, cells=(diverged, *one.cells[1:])).run == [*one.run[1:]]


def test_a_paper_of_ones_own_may_be_called_as_one_of_ours(tmp_path: Path) -> None:
    for paper in ("feddisco", "FedDisco"):
        made = recipe(paper=paper, base=recipe().base | {"local": {"batch": ord(paper[0])}})
        write_report(made, results(made), tmp_path / f"{paper}-1")
    (axes,) = against_the_paper(reports(tmp_path)).axes
    assert axes.get_title(loc="left") == "FedDisco" and len(axes.lines[1].get_xdata()) == 6
