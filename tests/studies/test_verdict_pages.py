"""The page of a paper says its claims, the evidence and what the notes have; its numbers are the reports'."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_study import COURSES, recipe, results
from tiny_study import RECIPE

from fedbraid.cli import study_commands
from fedbraid.errors import UserError
from fedbraid.studies import recipe_files
from fedbraid.studies.overview import write_overview
from fedbraid.studies.recipe import Line
from fedbraid.studies.report import write_report
from fedbraid.studies.reported import differing, reports
from fedbraid.studies.study_notes import read_notes
from fedbraid.studies.study_plan import Changes

NOTES = """
missing = ["mnist"]

[[data]]
name = "digits"
says = "digits of another hand"

[[data]]
name = "digits"
says = "larger ones"
options = { samples = 40 }

[[variants]]
recipe = "made-table1"
set = ["local.epochs=9"]
why = "more epochs, after one was too few"

[[choices]]
recipes = ["made-*"]
says = "the rate was chosen last"

[[findings]]
recipe = "made-table1"
claim = "Disco *"
cause = "the split decides"
"""


def page(out: Path, notes: str = "") -> str:
    (out / "notes.toml").write_text(notes, encoding="utf-8")
    write_overview(out)
    return (out / "verdicts/made.md").read_text(encoding="utf-8")


def test_claims_with_verdict_evidence_and_cause(tmp_path: Path) -> None:
    write_report(recipe(), results(), tmp_path / "made-table1")
    text = page(tmp_path, NOTES)
    claim = next(line for line in text.splitlines() if "Disco improves FedAvg" in line)
    # differences of both columns by seed: 4 and 4, 5 and 3.1, 4.5 and 4.5; their means 4, 4.05, 4.5
    assert claim == (
        "| [Table 1](#made-table1) | Disco improves FedAvg | **holds** | +4.18 points (+3.50 to +4.87), 3 seeds; "
        "2 of 2 pairs; the paper +1.00 | the split decides |"
    )
    assert "\n- the rate was chosen last\n" in text and "more epochs" not in text
    assert "| made-table1 | 12 | 19 min |" in text


def test_numbers_with_three_readings_equivalence_and_the_datas_deviations(tmp_path: Path) -> None:
    write_report(recipe(), results(), tmp_path / "made-table1")
    text = page(tmp_path, NOTES)
    line = next(line for line in text.splitlines() if line.startswith("| FedAvg | β = 0.1"))
    assert line == (
        r"| FedAvg | β = 0.1 \[1\] | 60.27 ± 0.31 | 60.00 ± 0.50 | +0.27 | open | 60.27 ± 0.31 | 59.60 ± 1.40 | "
        "48.76 ± 1.36 | 3 |"
    )
    assert "\n- margin of equivalence: 1 point\n- spread over seeds: of splits and initial weights\n" in text
    assert r"- \[1\] digits of another hand" in text and "larger ones" not in text
    small = recipe(base=recipe().base | {"data": {"name": "digits", "samples": 40}})
    write_report(small, results(small), tmp_path / "made-table1")
    text = page(tmp_path, NOTES)
    assert r"- \[2\] larger ones" in text and r"- \[3\] 40 training samples of it" in text


def test_variants_stand_beside_their_table(tmp_path: Path) -> None:
    write_report(recipe(), results(variant="--set local.epochs=9"), tmp_path / "made-table1-other")
    text = page(tmp_path, NOTES)
    assert "[Table 1](#made-table1-other), with local.epochs=9 | Disco improves" in text
    assert "more epochs, after one was too few" in text and "the split decides" not in text, "it is of the recipe's own"


@pytest.mark.parametrize(
    ("courses", "notes", "said"),
    [
        ({}, "", "not run"),
        ({}, 'missing = ["digits"]', "**cannot be known here: no data**"),
        ({("FedAvg", "β = 0.1"), ("FedAvg+Disco", "β = 0.1")}, "", "**holds so far**: 1 of 2 pairs were run"),
        (set(COURSES), NOTES + "undecidable = true", "**cannot be known**"),
    ],
    ids=["nothing", "no data", "a half", "undecidable"],
)
def test_what_is_undecided_says_why(courses, notes: str, said: str, tmp_path: Path) -> None:
    some = {place: course for place, course in COURSES.items() if place in courses}
    write_report(recipe(), results(courses=some), tmp_path / "made-table1")
    claim = next(line for line in page(tmp_path, notes).splitlines() if "Disco improves FedAvg" in line)
    assert f"| {said} |" in claim


def test_one_seed_and_an_interval_around_zero_are_told_apart(tmp_path: Path) -> None:
    one = {place: {0: course[0]} for place, course in COURSES.items()}
    write_report(recipe(), results(courses=one), tmp_path / "made-table1")
    assert "**undecided**: one seed" in page(tmp_path)
    flat = {place: {0: (0.6,) * 3, 1: (0.5 + 0.2 * (place[0] == "FedAvg"),) * 3, 2: (0.6,) * 3} for place in COURSES}
    write_report(recipe(), results(courses=flat), tmp_path / "made-table1")
    assert "**undecided**: the interval has zero in it" in page(tmp_path)


def test_spreads_of_splits_and_of_weights_apart(tmp_path: Path) -> None:
    fixed = Line("β = 0.1, one draw", {"partition": {"name": "assignment", "path": "split.csv"}})
    made = recipe(columns=(recipe().columns[0], fixed), claims=(), overrides=(), numbers={})
    courses = {
        ("FedAvg", "β = 0.1"): {0: (0.60,), 1: (0.65,), 2: (0.70,)},  # 5 points
        ("FedAvg", "β = 0.1, one draw"): {0: (0.60,), 1: (0.63,), 2: (0.66,)},  # 3 points: 4 are the splits'
    }
    write_report(replace(made, base={**made.base, "rounds": 1}), results(made, courses), tmp_path / "made-table1")
    assert "| made-table1 | FedAvg | β = 0.1 | 5.00 | 3.00 | 4.00 |" in page(tmp_path)
    assert differing(reports(tmp_path)[0]) == [("FedAvg", "β = 0.1", pytest.approx(5.0), pytest.approx(3.0))]


def test_the_notes_of_the_docs_and_of_the_results_are_right(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    [text] = re.findall(r"```toml notes\n(.*?)```", (root / "docs/studies.md").read_text(encoding="utf-8"), re.S)
    (tmp_path / "notes.toml").write_text(text, encoding="utf-8")
    for notes in (read_notes(tmp_path), read_notes(root / "results")):
        assert {note.recipe for note in (*notes.variants, *notes.findings)} <= {*recipe_files.names()}
        for note in notes.findings:
            says = [claim.says for claim in recipe_files.read(recipe_files.HERE / f"{note.recipe}.toml").claims]
            assert any(notes.finding(note.recipe, claim, note.variant) == note for claim in says), note


def test_variants_are_reported_with_all_that_were_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe_files, "HERE", tmp_path)
    (tmp_path / "tiny.toml").write_text(RECIPE, encoding="utf-8")
    (tmp_path / "notes.toml").write_text("[[variants]]\nrecipe = 'tiny'\nset = ['local.epochs=2']\nwhy = 'longer'")
    found = study_commands._variants(tmp_path, Changes(), ())
    assert [*found] == ["tiny --set local.epochs=2"]
    assert found["tiny --set local.epochs=2"].cells["FedAvg", "skewed"].config.local.epochs == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("mising = []", r"notes\.toml: no key is called 'mising'"),
        ("[[variants]]\nrecipe = 'x'", r"notes\.toml: variants\[0\]\.set is missing"),
        ("[[data]]\nname = 3\nsays = ''", r"notes\.toml: data\[0\]\.name must be text, not 3"),
    ],
)
def test_notes_with_mistakes_are_refused(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "notes.toml").write_text(text)
    with pytest.raises(UserError, match=told):
        read_notes(tmp_path)
