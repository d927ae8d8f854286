"""The report of a study: its files, the numbers in them, and what is said beside them."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import replace
from io import BytesIO
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_study import COURSES, PICTURES, recipe, results
from matplotlib.colors import to_rgba
from pages import Page
from PIL import Image

from fedbraid.config.schema import flat, to_dict
from fedbraid.report.html import to_html
from fedbraid.report.latex import escaped
from fedbraid.report.looks import looks
from fedbraid.report.words import signed
from fedbraid.studies import run_records
from fedbraid.studies.cell_metrics import parse
from fedbraid.studies.figure_data import figure_data, in_order
from fedbraid.studies.recipe import Claim, FigureRequest, Override, Recipe
from fedbraid.studies.report import page, to_latex, to_markdown, write_report
from fedbraid.studies.report_notes import finding_words
from fedbraid.studies.report_pictures import pictures, reading
from fedbraid.studies.results_json import to_json
from fedbraid.studies.run_origins import duration, origins
from fedbraid.studies.run_records import Record
from fedbraid.studies.shared_settings import NOT_TOLD, nested, sharing, to_toml
from fedbraid.studies.study_figures import bars, curves, line, split
from fedbraid.studies.study_plan import Changes, table
from fedbraid.studies.study_summary import spread, summarise_study
from fedbraid.studies.table_entries import Number, TableEntry, commands, entries, unit_of
from fedbraid.studies.table_results import Results, gathered

AVG_1, AVG_5 = ("FedAvg", "β = 0.1"), ("FedAvg", "β = 0.5")
DISCO_1, DISCO_5 = ("FedAvg+Disco", "β = 0.1"), ("FedAvg+Disco", "β = 0.5")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report made from records on disk, as the command makes it."""
    out = tmp_path_factory.mktemp("results")
    made = recipe(pictures=PICTURES)
    for cell in results(made).cells.values():
        for run in cell.records.values():
            run_records.write(out, run)
    folder = out / made.name
    paths = write_report(made, gathered(table(made), out), folder)
    assert {path.name for path in paths} == {path.name for path in folder.iterdir()}
    return folder


def cells_of(told: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(cell["row"], cell["column"]): cell for cell in told["cells"]}


# --- files


def test_all_files_are_written(written: Path) -> None:
    names = {path.name for path in written.iterdir()}
    drawn = {"curves.png", "curves-2.png", "line.png", "bars.png"}
    assert names == {"table.md", "table.tex", "results.json", "report.html"} | drawn


def test_the_numbers_are_numpys(written: Path) -> None:
    found = cells_of(json.loads((written / "results.json").read_text(encoding="utf-8")))
    papers = {AVG_1: 60.0, AVG_5: 70.0, DISCO_1: 61.0}
    for place, courses in COURSES.items():
        best = 100 * np.array([max(course) for course in courses.values()])
        cell = found[place]
        assert list(cell["values"].values()) == pytest.approx(best)
        assert list(cell["values"]) == ["0", "1", "2"]
        assert cell["ours"]["mean"] == pytest.approx(best.mean())
        assert cell["ours"]["std"] == pytest.approx(best.std(ddof=1))
        assert cell["n"] == 3
        if place in papers:
            assert cell["difference"] == pytest.approx(best.mean() - papers[place])
        else:
            assert (cell["paper"], cell["difference"]) == (None, None)
    # 60.27 ± 0.31 beside 60.00 ± 0.50; 65.50 ± 0.50 beside 70.00; 64.77 ± 0.67 beside 61.00 ± 0.40
    assert [found[place]["beyond_spreads"] for place in papers] == [False, True, True]


def test_records_on_disk_give_what_those_in_memory_do(written: Path) -> None:
    made = recipe(pictures=PICTURES)
    assert json.loads((written / "results.json").read_text(encoding="utf-8")) == to_json(
        summarise_study(made, results(made))
    )


def test_the_claims_numbers(written: Path) -> None:
    (claim,) = json.loads((written / "results.json").read_text(encoding="utf-8"))["claims"]
    best = {place: np.array([max(c) for c in courses.values()]) for place, courses in COURSES.items()}
    mean = 100 * (best[DISCO_1] - best[AVG_1] + best[DISCO_5] - best[AVG_5]) / 2
    reach = 4.302652729749464 * mean.std(ddof=1) / np.sqrt(3)
    assert claim["verdict"] == "holds"
    assert claim["difference"] == pytest.approx(
        {"mean": mean.mean(), "low": mean.mean() - reach, "high": mean.mean() + reach, "seeds": 3}
    )
    assert (claim["agreeing"], len(claim["pairs"])) == (2, 2)


def test_the_same_results_give_the_same_files(tmp_path: Path) -> None:
    made = recipe(pictures=PICTURES[3:])
    one, two = (write_report(made, results(made), tmp_path / name / made.name) for name in ("one", "two"))
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


# --- Markdown


def test_markdown(written: Path) -> None:
    lines = (written / "table.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == r"# made, Table 1: Two methods \& 50 % of \<clients\>"
    assert "| **FedAvg** | 60.27 ± 0.31 | 65.50 ± 0.50 |" in lines
    assert "| paper | 60.00 ± 0.50 | 70.00 |" in lines
    assert "| difference | +0.27 | −4.50 † |" in lines
    assert "| paper | 61.00 ± 0.40 | – |" in lines
    text = "\n".join(lines)
    assert "± sample standard deviation over 3 seeds" in text
    assert "best round, chosen on the test set" in text
    assert "- **holds**: Disco improves FedAvg (mean difference +4.18 points, 95 % interval +3.50 to +4.87" in text
    assert "- FedAvg: the baseline" in text
    assert "The paper's text says 10 clients" in text
    assert "missing" not in text


# --- LaTeX


@pytest.mark.parametrize(
    ("raw", "typeset"),
    [
        ("50 % & more", r"50 \% \& more"),
        (r"a_b^c~d\e", r"a\_b\textasciicircum{}c\textasciitilde{}d\textbackslash{}e"),
        ("{x} $y$ #1", r"\{x\} \$y\$ \#1"),
        ("β = 0.1, Λ, Α", r"$\beta$ = 0.1, $\Lambda$, A"),
        ("σ₂², C₀", r"$\sigma$$_{2}$$^{2}$, C$_{0}$"),
        ("1.0 ± 0.5 – −2 †", r"1.0 $\pm$ 0.5 \textendash{} $-$2 \dag{}"),
        ("--scale small", r"-{}-scale small"),
        ("Müller ≥ <b>", r"Müller $\geq$ \textless{}b\textgreater{}"),
        ("日本 line\nbreak", "?? line?break"),
    ],
    ids=["percent", "letters", "braces", "greek", "indices", "signs", "option", "latin", "other"],
)
def test_what_latex_would_obey_is_escaped(raw: str, typeset: str) -> None:
    assert escaped(raw) == typeset


HOSTILE = (r"\input{/etc/passwd} & % $x$ #_^~", "[4pt] <script>alert(1)</script> | *b* `c`")


def hostile() -> Recipe:
    lines = recipe().rows
    rows = tuple(replace(row, name=name) for row, name in zip(lines, HOSTILE, strict=True))
    return recipe(rows=rows, overrides=(), numbers={HOSTILE[0]: {"β = 0.1": [60.0, 0.5]}}, claims=(), title=HOSTILE[0])


def hostile_courses() -> dict[tuple[str, str], Any]:
    rename = dict(zip(("FedAvg", "FedAvg+Disco"), HOSTILE, strict=True))
    return {(rename[row], column): courses for (row, column), courses in COURSES.items()}


def test_latex_is_whole_whatever_the_names_are() -> None:
    text = to_latex(summarise_study(hostile(), results(hostile(), hostile_courses())))
    assert text.isascii()
    bare = re.sub(r"\\[&%$#_{}]", "", text)  # without what is escaped
    depth = np.cumsum([{"{": 1, "}": -1}.get(letter, 0) for letter in bare])
    assert depth.min() >= 0
    assert depth[-1] == 0
    assert bare.count("$") % 2 == 0
    names = ["tabular"] * 2  # which are too long for a line
    assert re.findall(r"\\begin\{(\w+)\}", text) == ["table", "tabular", *names]
    assert re.findall(r"\\end\{(\w+)\}", text) == [*names, "tabular", "table"]
    body = bare[bare.index(r"\toprule") : bare.index(r"\bottomrule")].splitlines()
    lines = [line for line in body if not line.startswith((r"\toprule", r"\midrule"))]
    assert len(lines) == 1 + 3 + 1  # the head, a row with the paper's numbers and one without
    assert all(line.count("&") == 2 and line.endswith(r"\\") for line in lines)
    assert not any(line.lstrip().startswith("[") for line in lines)  # which would be an option of the line before
    assert r"\input" not in text
    assert bare.count("%") == 1 + text.count("{%\n")  # the comment that names the packages, and the ends of lines


def test_latex_has_the_numbers(written: Path) -> None:
    text = (written / "table.tex").read_text(encoding="utf-8")
    assert r"{}FedAvg & 60.27 $\pm$ 0.31 & 65.50 $\pm$ 0.50 \\" in text
    assert r"\quad paper & 60.00 $\pm$ 0.50 & 70.00 \\" in text
    assert r"\quad difference & +0.27 & $-$4.50 \dag{} \\" in text
    assert r"\caption{made, Table 1: Two methods \& 50 \% of" in text
    assert r"\begin{tabular}{@{}lrr@{}}" in text


def caption(text: str) -> str:
    [found] = re.findall(r"\\caption\{(.*)\}\n", text)
    return found


def test_the_caption_says_what_is_shown_and_no_more() -> None:
    told = summarise_study(recipe(), results())
    assert caption(to_latex(told)) == (
        r"made, Table 1: Two methods \& 50 \% of \textless{}clients\textgreater{}. Best test accuracy of any round in "
        r"\%; mean $\pm$ sample standard deviation over 3 seeds. Differences are ours minus the paper's; $\approx$ the "
        r"same within 1 point, \dag{} another one: the 95 \% interval of our mean lies within, or outside of, that "
        "margin around the paper's; no mark: neither, as with one seed."
    )
    assert caption(to_latex(summarise_study(recipe(), some()))).endswith("one seed. 1 of 4 cells is missing.")
    one = summarise_study(recipe(numbers={}), results(seeds=[0], courses={AVG_1: {0: (0.5,)}}, variant="--rounds 1"))
    assert "Run with -{}-rounds 1, which is not the paper's setting. Best test accuracy of any round in" in to_latex(
        one
    )
    assert caption(to_latex(one)).endswith(
        r"in \%; one seed. 3 of 4 cells are missing. Rows and columns without a number are left out."
    )
    lines = [replace(recipe().columns[0], name=f"after {n}", metric=f"at(round={n})") for n in (1, 2, 3, 4)]
    several = recipe(columns=tuple(lines), overrides=(), numbers={}, claims=())
    assert "Numbers of several kinds, as rows and columns say; mean" in to_latex(
        summarise_study(several, results(several))
    )


def test_the_caption_names_data_that_is_missing_and_not_where_it_would_be() -> None:
    skip = Override(("FedAvg",), ("β = 0.5",), skip="the paper has no such cell")
    made = recipe(overrides=(skip,))
    told = summarise_study(
        made, results(made, {AVG_1: COURSES[AVG_1]}, {DISCO_5: "data set 'x' is not in /home/me/data"})
    )
    assert "/home/me/data" not in to_latex(told) and "/home/me/data" in to_markdown(told)
    assert caption(to_latex(told)).endswith("2 of 3 cells are missing, 1 of them for lack of data (digits).")
    alone = summarise_study(made, results(made, {**COURSES}, {DISCO_5: "not here"}))
    assert caption(to_latex(alone)).endswith("1 of 3 cells is missing, for lack of data (digits).")


def test_tables_that_were_run_otherwise_are_labelled_otherwise(tmp_path: Path) -> None:
    labels = []
    for folder in ("made-table1", "made-table1-small-local.epochs=2"):
        write_report(recipe(), results(), tmp_path / folder)
        labels += re.findall(r"\\label\{(.*)\}", (tmp_path / folder / "table.tex").read_text(encoding="utf-8"))
    assert labels == ["tab:made-table1", "tab:made-table1-small-local-epochs-2"]


# --- HTML


def test_the_page_is_whole_and_alone(written: Path) -> None:
    text = (written / "report.html").read_text(encoding="utf-8")
    shown = Page(text)
    assert shown.open == []
    assert not {"script", "link", "iframe", "object", "b"} & set(shown.tags)
    assert shown.embedded
    assert all(resource.startswith("data:image/png;base64,") for resource in shown.embedded)
    assert not re.search(r"url\(|@import|https?://", text)
    assert shown.tags.count("img") == shown.tags.count("figcaption") == 4
    for words in (
        "60.27 ± 0.31",
        "paper 60.00 ± 0.50",
        "−4.50 †",
        "The claim holds.",
        "Of 3 accuracies, 0 are the same within 1 point, 2 differ and 1 is open.",
        "FedAvg+Disco / FedAvg @ β = 0.1",
        "<b>two</b> cores",
        "Two methods & 50 % of <clients>",
        'method = "fedavg+disco"',
        "best round, chosen on the test set",
        "Hollow marks are the paper's.",
    ):
        assert words in shown.text, words


def test_names_are_shown_and_not_obeyed() -> None:
    told = summarise_study(hostile(), results(hostile(), hostile_courses()))
    shown = Page(to_html(page(told, [])))
    assert all(name in shown.text for name in HOSTILE)
    assert "script" not in shown.tags
    markdown = to_markdown(told)
    assert "<script>" not in markdown
    row = next(text for text in markdown.splitlines() if "alert" in text)
    assert len(re.findall(r"(?<!\\)\|", row)) == 4  # a pipe in a name makes no column


# --- what is said beside the numbers


def test_other_settings_are_said_first_and_loudly() -> None:
    told = summarise_study(recipe(seeds=5), results(variant="--scale small --rounds 3"))
    html, markdown, tex = to_html(page(told, [])), to_markdown(told), to_latex(told)
    for text in (html, markdown):
        assert text.index("NOT THE PAPER") < text.index("60.27")
        assert "--scale small --rounds 3" in text
    assert html.count('class="loud"') == 2
    assert "3 seeds instead of the recipe's 5" in markdown
    assert "-{}-scale small" in tex
    assert to_json(told)["variant"] == "--scale small --rounds 3"
    assert all(cell["difference"] is None for cell in to_json(told)["cells"]), "the paper's settings were others"
    assert "the same within 1 point" in summarise_study(recipe(), results()).headline
    assert "further from the paper's" not in told.headline
    plain = summarise_study(recipe(), results())
    assert plain.warnings == ()
    assert 'class="loud"' not in to_html(page(plain, []))


def some() -> Results:
    """One cell that was not run, one with a seed of three."""
    courses = {AVG_1: {1: (0.3, 0.4, 0.5)}, DISCO_1: COURSES[DISCO_1], DISCO_5: COURSES[DISCO_5]}
    return results(courses=courses)


def test_missing_cells_are_told_with_how_to_run_them() -> None:
    told = summarise_study(recipe(), some())
    assert told.commands == ("fedbraid study run made-table1 --only FedAvg --resume",)
    assert "| **FedAvg** | 50.00 (n=1) | missing |" in to_markdown(told)
    assert told.warnings == ("1 of 4 cells was not run yet.", "1 cell lacks some of its seeds.")
    assert "    fedbraid study run made-table1 --only FedAvg --resume" in to_markdown(told).splitlines()
    assert "fedbraid study run made-table1 --only FedAvg --resume" in Page(to_html(page(told, []))).text
    found = cells_of(to_json(told))
    assert (found[AVG_5]["missing"], found[AVG_5]["ours"], found[AVG_1]["missing"]) == ([0, 1, 2], None, [0, 2])
    (claim,) = told.findings
    assert claim.verdict == "undecided"
    assert finding_words(claim, 2).startswith("with 1 of 2 pairs run it is undecided; mean difference")


def test_a_number_that_the_log_does_not_have_is_not_waited_for() -> None:
    made = recipe(metric="last(of='nosuch')")
    told = summarise_study(made, results(made))
    assert not told.commands, "running it again would not help"
    assert told.warnings == ("Runs have no value of last(of='nosuch'): their log does not have it.",)
    assert "| **FedAvg** | no value | no value |" in to_markdown(told)
    assert finding_words(told.findings[0], 2).startswith("nothing to compare: the runs have no such value")


def test_a_claim_of_runs_that_never_got_there_says_nothing() -> None:
    made, found = reaching({place: {0: (0.1,), 1: (0.1,)} for place in COURSES})
    (finding,) = summarise_study(made, found).findings
    assert finding_words(finding, 1).startswith("nothing to compare: no run reached the target")


def test_a_claim_whose_pairs_have_no_seed_in_common() -> None:
    courses = {place: {k // 2: (0.5,)} for k, place in enumerate((AVG_1, DISCO_1, AVG_5, DISCO_5))}
    (finding,) = summarise_study(recipe(), results(courses=courses)).findings
    assert finding_words(finding, 1).startswith("nothing to compare: the pairs that were run have no seed in common")


def test_cells_that_cannot_be_run_are_not_waited_for() -> None:
    known = results(courses={AVG_1: COURSES[AVG_1]})
    reason = "partition 'iid': too many clients"
    cells = {place: replace(cell, refused=reason) if place == AVG_5 else cell for place, cell in known.cells.items()}
    told = summarise_study(recipe(), replace(known, cells=cells))
    assert told.warnings == ("2 of 3 cells were not run yet.", "1 cell cannot be run as it is asked for.")
    assert f"FedAvg @ β = 0.5 cannot be run: {reason}" in told.notes
    assert "| **FedAvg** | 60.27 ± 0.31 | cannot be run |" in to_markdown(told)
    assert told.commands == ("fedbraid study run made-table1 --only FedAvg+Disco --resume",)
    assert cells_of(to_json(told))[AVG_5]["refused"] == reason


def test_a_claim_whose_runs_all_diverged_was_run() -> None:
    made = recipe(metric="last")
    known = results(made)
    lost = {place: replace(cell, values=dict.fromkeys(cell.values, nan)) for place, cell in known.cells.items()}
    (finding,) = summarise_study(made, replace(known, cells=lost)).findings
    assert finding_words(finding, 2).startswith("nothing to compare: in every seed a run of some pair diverged")


def test_a_claim_of_which_a_part_was_run() -> None:
    courses = {place: course for place, course in COURSES.items() if place[1] == "β = 0.1"}
    told = summarise_study(recipe(), results(courses=courses))
    (claim,) = told.findings
    assert (claim.verdict, claim.so_far) == ("undecided", "holds")
    assert told.headline.startswith("The claim is undecided. As far as it was run, 1 holds.")
    assert finding_words(claim, 2).startswith("with 1 of 2 pairs run it holds; mean difference")
    assert to_json(told)["claims"][0]["so_far"] == "holds"


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (set(), ["fedbraid study run made-table1 --scale small --seeds 3 --resume"]),
        (
            {AVG_1, DISCO_1},
            [
                "fedbraid study run made-table1 --scale small --seeds 3 --only 'FedAvg @ β = 0.5' --resume",
                "fedbraid study run made-table1 --scale small --seeds 3 --only 'FedAvg+Disco @ β = 0.5' --resume",
            ],
        ),
        (set(COURSES), []),
    ],
    ids=["nothing", "some", "all"],
)
def test_the_commands_that_would_run_what_is_missing(there: set[tuple[str, str]], expected: list[str]) -> None:
    courses = {place: COURSES[place] for place in there}
    made = recipe(seeds=2)
    assert commands(made, results(made, courses, variant="--scale small")) == expected


def test_the_commands_say_how_the_recipe_was_asked_for(tmp_path: Path) -> None:
    call = "'my folder/mine.toml' --out other"
    write_report(recipe(), results(courses={}), tmp_path, call)
    expected = f"fedbraid study run {call} --resume"
    assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["missing"] == [expected]
    for name in ("table.md", "report.html"):
        assert expected in (tmp_path / name).read_text(encoding="utf-8").replace("&#x27;", "'").replace("&#39;", "'")


def test_a_report_of_nothing(tmp_path: Path) -> None:
    paths = write_report(recipe(pictures=PICTURES), results(courses={}), tmp_path)
    assert {path.name for path in paths} == {"table.md", "table.tex", "results.json", "report.html"}
    assert "nothing to compare was run yet" in (tmp_path / "table.md").read_text(encoding="utf-8")


def test_skipped_cells_have_their_reason() -> None:
    skip = Override(("FedAvg",), ("β = 0.5",), skip="the paper has no such cell")
    made = recipe(overrides=(skip,))
    told = summarise_study(made, results(made, skipped={DISCO_5: "data set 'x' is not here; fetch it"}))
    markdown = to_markdown(told)
    assert "| **FedAvg** | 60.27 ± 0.31 | – |" in markdown
    assert "- – FedAvg @ β = 0.5: the paper has no such cell" in markdown
    assert "- – FedAvg+Disco @ β = 0.5: data set 'x' is not here; fetch it" in markdown
    assert told.commands == ()
    assert told.warnings == ()
    assert [len(finding.pairs) + len(finding.missing) for finding in told.findings] == [1]


def test_a_figure_has_our_numbers_alone() -> None:
    made = recipe(item="Figure 3", numbers={}, claims=())
    told = summarise_study(made, results(made))
    markdown = to_markdown(told)
    assert "the paper gives a picture only" in markdown
    assert "| paper |" not in markdown
    assert "difference" not in markdown
    assert "Claims" not in markdown
    assert "60.27 ± 0.31" in markdown
    assert "paper" not in to_latex(told)[to_latex(told).index(r"\toprule") :]


def test_numbers_of_other_settings_are_shown_and_not_held_against_ours() -> None:
    made = recipe(compare=False)
    told = summarise_study(made, results(made))
    markdown = to_markdown(told)
    assert "| paper | 60.00 ± 0.50 | 70.00 |" in markdown
    assert "| difference | – | – |" in markdown
    assert "†" not in markdown
    assert "no difference: the paper's numbers are of other settings than ours" in told.notes
    assert "further from the paper's" not in told.headline


def test_a_claim_that_holds_on_average_names_the_pair_that_speaks_against_it() -> None:
    """Disco gains 30 points in one column and loses 1 in the other, on every seed."""
    courses = {
        AVG_1: {0: (0.5,), 1: (0.51,), 2: (0.49,)},
        DISCO_1: {0: (0.8,), 1: (0.811,), 2: (0.79,)},
        AVG_5: {0: (0.7,), 1: (0.71,), 2: (0.69,)},
        DISCO_5: {0: (0.69,), 1: (0.7,), 2: (0.6801,)},
    }
    made = recipe()
    (far,) = summarise_study(made, results(made, courses)).findings
    assert far.verdict == "does not hold"
    assert "beyond chance on the other: FedAvg+Disco @ β = 0.5 behind FedAvg @ β = 0.5" in finding_words(far, 2)
    (near,) = summarise_study(made, results(made, courses | {DISCO_5: {0: (0.69,), 1: (0.72,), 2: (0.67,)}})).findings
    assert near.verdict == "undecided"
    assert finding_words(near, 2).endswith(
        "1 of 2 pairs on the claimed side; so it holds on average, not for every pair"
    )


def test_a_paper_whose_own_numbers_speak_against_its_claim() -> None:
    """They are 61 and 60 in one column, and in the other the paper has one alone."""
    fitting, against = (
        recipe(claims=(claim,)) for claim in (recipe().claims[0], Claim("x", ("FedAvg",), ("FedAvg+Disco",)))
    )
    assert "own numbers" not in finding_words(summarise_study(fitting, results(fitting)).findings[0], 2)
    for found in (results(against), results(against, {})):
        (finding,) = summarise_study(against, found).findings
        assert finding.in_paper == (0, 1)
        assert finding_words(finding, 2).endswith("in the paper's own numbers 0 of 1 pair")


def test_a_split_is_neither_good_nor_bad() -> None:
    """What clients hold is described: in numbers of which none is better, and drawn for every column."""
    made = recipe(metric="skew(name=classes)", unit="", numbers={}, claims=(), pictures=(FigureRequest("split"),))
    counts = {"β = 0.1": ((9, 0), (1, 6)), "β = 0.5": ((5, 5), (3, 3))}
    known = results(made)
    cells = {
        (row, column): replace(
            cell,
            values=dict.fromkeys(cell.records, 1.5),
            without=(),
            records={seed: replace(one, label_counts=counts[column]) for seed, one in cell.records.items()},
        )
        for (row, column), cell in known.cells.items()
    }
    found = replace(known, cells=cells)
    told = summarise_study(made, found)
    assert "numbers: size of the largest class over that of the smallest" in told.notes
    drawn = pictures(made, found, entries(made, found))
    assert [(one.name, one.title) for one in drawn] == [
        ("split", "Who holds what, β = 0.1"),
        ("split-2", "Who holds what, β = 0.5"),
    ]
    assert all(one.reading.endswith("The split is that of seed 0.") for one in drawn)
    assert drawn[0].light != drawn[1].light


def test_each_metric_is_named_where_it_is_used() -> None:
    columns = (replace(recipe().columns[0], metric="last"), recipe().columns[1])
    made = recipe(columns=columns)
    notes = "\n".join(summarise_study(made, results(made)).notes)
    assert "β = 0.1: accuracy of the last round in %; more is better" in notes
    assert "β = 0.5: best test accuracy of any round in % (best round, chosen on the test set" in notes


def test_only_shares_are_shown_in_per_cent() -> None:
    made = recipe(columns=(replace(recipe().columns[0], metric="bytes"), recipe().columns[1]))
    found = entries(made, results(made))
    assert found[AVG_1].values == {0: 4500.0, 1: 4500.0, 2: 4500.0}
    assert found[AVG_5].values[0] == pytest.approx(66.0)
    assert entries(replace(made, unit=""), results(made))[AVG_5].values[0] == pytest.approx(0.66)


def reaching(courses: dict[tuple[str, str], Any]) -> tuple[Recipe, Results]:
    numbers = {"FedAvg": {"β = 0.1": [2.0], "β = 0.5": [2.0]}}
    made = recipe(metric="rounds_to(target=0.6)", unit="", digits=1, numbers=numbers)
    return made, results(made, courses)


def test_targets_that_were_never_reached() -> None:
    high, low = (0.5, 0.7, 0.8), (0.3, 0.4, 0.5)
    made, found = reaching(
        {
            AVG_1: {0: low, 1: low, 2: low},
            AVG_5: {0: low, 1: high, 2: high},
            DISCO_1: {0: high, 1: high, 2: low},
            DISCO_5: {0: high, 1: high, 2: high},
        }
    )
    told = summarise_study(made, found)
    markdown = to_markdown(told)
    assert "| **FedAvg** | never | 2.0 ± 0.0 (2/3 reached) |" in markdown
    assert "| difference | – | – |" in markdown  # a mean over those that got there is no match for the paper's
    (claim,) = told.findings
    assert [dict(pair.differences) for pair in claim.pairs] == [{0: 2.0, 1: 2.0, 2: 0.0}, {0: 2.0, 1: 0.0, 2: 0.0}]
    assert claim.unit == "rounds"
    assert "3 runs never reached the target and count as one round more" in finding_words(claim, 1)
    assert "1 difference is 0 because neither run reached the target" in finding_words(claim, 1)
    data = cells_of(to_json(told))
    assert data[AVG_1]["values"] == {"0": None, "1": None, "2": None}
    assert data[AVG_1]["unreached"] == [0, 1, 2]
    assert data[AVG_5]["unreached"] == [0]
    json.dumps(to_json(told), allow_nan=False)


@pytest.mark.parametrize(
    ("metric", "cost"),  # of three rounds, and a third more
    [("rounds_to", 4.0), ("aggregations_to", 4.0), ("bytes_to", 6000.0), ("seconds_to", 120.0)],
)
def test_what_a_run_without_the_target_had_spent(metric: str, cost: float) -> None:
    made = recipe(metric=f"{metric}(target=0.6)", unit="")
    courses = {AVG_1: {0: (0.3, 0.4, 0.5)}, DISCO_1: {0: (0.7, 0.7, 0.7)}}
    (claim,) = summarise_study(made, results(made, courses)).findings
    assert claim.pairs[0].differences == {0: pytest.approx(cost - cost / 4)}  # the other needed one round


def test_a_diverged_run_is_not_hidden_in_a_mean() -> None:
    found = results()
    lost = replace(found.cells[AVG_1], values={0: 0.6, 1: nan, 2: 0.6})
    told = summarise_study(recipe(), replace(found, cells={**found.cells, AVG_1: lost}))
    markdown = to_markdown(told)
    assert "| **FedAvg** | diverged |" in markdown
    assert "diverged: at least one run ended without a number" in markdown
    assert told.findings[0].verdict == "undecided"
    assert cells_of(to_json(told))[AVG_1]["diverged"] == [1]
    json.dumps(to_json(told), allow_nan=False)


def diverging(record: Record, since: int) -> Record:
    finite = [number < since for number in record.rounds]
    return replace(record, series={**record.series, "finite": finite})


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("best", "the best is of the rounds before"),
        ("rounds_to(target=0.5)", "scores from there on do not count"),
    ],
)
def test_a_run_that_diverged_after_its_number_is_told(metric: str, words: str) -> None:
    made = recipe(metric=metric)
    found = results(made)
    cell = found.cells[AVG_1]
    lost = replace(cell, records={**cell.records, 1: diverging(cell.records[1], 3)})
    told = summarise_study(made, replace(found, cells={**found.cells, AVG_1: lost}))
    note = f"FedAvg @ β = 0.1: 1 of 3 runs diverged, not finite from round 3 on; {words}"
    assert note in told.notes and note in to_markdown(told)
    assert sum("diverged" in one for one in told.notes) == 1
    one = cells_of(to_json(told))[AVG_1]
    assert one["diverged"] == [1] and one["not_finite_from"] == {"1": 3} and one["values"]["1"] is not None


def test_a_run_that_was_finite_again_did_not_diverge() -> None:
    found = results()
    cell = found.cells[AVG_1]
    once = replace(cell.records[1], series={**cell.records[1].series, "finite": [True, False, True]})
    told = summarise_study(recipe(), replace(found, cells={**found.cells, AVG_1: replace(cell, records={1: once})}))
    assert not any("diverged" in note for note in told.notes)


def test_infinity_without_a_target_leaves_the_claim_open() -> None:
    found = results()
    endless = replace(found.cells[AVG_1], values={0: 0.6, 1: inf, 2: 0.6})
    (claim,) = summarise_study(recipe(), replace(found, cells={**found.cells, AVG_1: endless})).findings
    assert (claim.verdict, claim.pairs[0].no_number) == ("undecided", 1)


def test_a_margin_is_in_the_tables_unit() -> None:
    close = Claim("FedAvg is no worse than Disco by more than six points", ("FedAvg",), ("FedAvg+Disco",), margin=6.0)
    made = recipe(claims=(close, replace(close, margin=3.0)))
    told = summarise_study(made, results(made))
    assert [finding.verdict for finding in told.findings] == ["holds", "does not hold"]
    assert told.headline.startswith("Of 2 claims, 1 holds and 1 does not hold.")


# --- numbers in words


@pytest.mark.parametrize(
    ("mean", "std", "digits", "share", "written"),
    [
        (68.466, 0.254, 2, True, "68.47 ± 0.25"),
        (0.0001, None, 2, True, "0.00"),
        (0.000123, 0.00001, 2, False, "0.000123 ± 0.000010"),
        (41.26, 0.0012, 1, False, "41.3 ± 0.0"),
        (1_234_567.8, 12.34, 2, False, "1,234,568 ± 12"),
        (inf, None, 2, False, "never"),
        (nan, None, 2, True, "diverged"),
    ],
    ids=["share", "small-share", "small", "digits", "large", "never", "diverged"],
)
def test_numbers_in_words(mean: float, std: float | None, digits: int, share: bool, written: str) -> None:
    assert spread(Number(mean, std), digits, share=share) == written


def test_signs() -> None:
    assert [signed(value, ".2f") for value in (1.5, -1.5, 0.001, -0.001)] == ["+1.50", "−1.50", "0.00", "0.00"]
    assert signed(-1234.5, ",.0f") == "−1,234"
    assert spread(Number(-0.193, 0.02), 3, share=False) == "−0.193 ± 0.020"
    assert spread(Number(7.655e-4, 2e-5), 3, share=False) == "0.0007655 ± 0.0000200"
    assert spread(Number(1.5e-9), 2, share=False) == "1.5e-09"


@pytest.mark.parametrize(
    ("values", "paper", "beyond"),
    [
        ([60.0, 61.0, 62.0], Number(62.4, 0.5), False),  # 1.4 apart, 1.0 and 0.5 wide
        ([60.0, 61.0, 62.0], Number(62.6, 0.5), True),
        ([60.0, 61.0, 62.0], Number(62.4), True),  # no spread of the paper's
        ([61.0], Number(62.4), False),  # no spread at all
        ([61.0], Number(62.4, 0.5), True),
        ([60.0, 61.0, 62.0], None, False),
    ],
)
def test_differences_beyond_both_spreads(values: list[float], paper: Number | None, beyond: bool) -> None:
    some = entries(recipe(), results())[AVG_1]
    entry: TableEntry = replace(some, values=dict(enumerate(values)), paper=paper)
    assert entry.beyond_spreads is beyond


# --- settings and machines


def one_row() -> Recipe:
    return recipe(rows=recipe().rows[:1], overrides=(), numbers={}, claims=())


def diagonal() -> Recipe:
    """Cells whose row and column both tell which they are."""
    skips = (Override(("FedAvg",), ("β = 0.5",), skip="no"), Override(("*Disco",), ("β = 0.1",), skip="no"))
    return recipe(overrides=skips, numbers={}, claims=())


@pytest.mark.parametrize("made", [recipe(), one_row(), diagonal()], ids=["table", "one-row", "diagonal"])
def test_every_setting_is_told_once_and_can_be_put_together_again(made: Recipe) -> None:
    found = results(made)
    parts = sharing(found)
    for (row, column), cell in found.cells.items():
        if cell.settings is None:
            continue
        whole = {key: value for key, value in to_dict(cell.settings).items() if key not in NOT_TOLD}
        layers = [parts.everywhere, parts.rows[row], parts.columns[column], parts.cells.get((row, column), {})]
        assert sum(map(len, layers)) == len(flat(whole))
        assert {key: value for layer in layers for key, value in layer.items()} == flat(whole)
    assert all("beta" not in key for key in parts.everywhere)
    assert len(parts.everywhere) > 20


def test_settings_as_toml() -> None:
    parts = sharing(results())
    shared, *others = to_toml(parts).split("# row FedAvg\n")
    assert tomllib.loads(shared) == nested(parts.everywhere)
    assert 'method = "fedavg"\n' in others[0]
    assert "# column β = 0.5\npartition.beta = 0.5" in others[0]
    assert "# FedAvg+Disco @ β = 0.5\nstrands.disco.a = 0.3" in others[0]
    assert tomllib.loads(others[0].split("# row ")[0])["method"] == "fedavg"


def test_runs_that_cells_share_count_once() -> None:
    twice = recipe().rows[0]
    made = recipe(rows=(twice, replace(twice, name="FedAvg again")), overrides=(), numbers={}, claims=())
    again = {("FedAvg again", column): COURSES["FedAvg", column] for _, column in (AVG_1, AVG_5)}
    told = dict(origins(results(made, {AVG_1: COURSES[AVG_1], AVG_5: COURSES[AVG_5], **again})))
    assert told["runs"] == "6, each counted once"
    assert told["time of all rounds together"] == "9 min"  # 2 columns × 3 rounds × (30 + 31 + 32) s
    assert (told["seeds"], told["torch"], told["engine.kind"]) == ("0, 1, 2", "2", "stack")


def test_machines_that_differ_are_all_told() -> None:
    found = results()
    cell = found.cells[AVG_1]
    other = replace(cell.records[0], environment={**cell.records[0].environment, "gpu": "big"})
    mixed = replace(found, cells={**found.cells, AVG_1: replace(cell, records={**cell.records, 0: other})})
    assert dict(origins(mixed))["gpu"] == "big (1 run); none (11 runs)"


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.5, "0.5 s"), (59, "59 s"), (90, "2 min"), (3600, "1 h 0 min"), (7384, "2 h 3 min")]
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


# --- pictures


def drawn(kind: int, **changes: Any) -> tuple[Any, Any]:
    made = recipe(**changes)
    found = results(made)
    return figure_data(PICTURES[kind], made, found, entries(made, found)), {0: curves, 1: curves, 2: line, 3: bars}[
        kind
    ]


@pytest.mark.parametrize("name", ["curves.png", "curves-2.png", "line.png", "bars.png"])
def test_pictures_have_content(written: Path, name: str) -> None:
    image = Image.open(BytesIO((written / name).read_bytes())).convert("RGB")
    assert image.width == 1280
    assert image.height >= 200
    colours = {colour for _, colour in image.getcolors(1 << 24) or []}
    assert (0, 114, 178) in colours  # the first row's
    assert np.asarray(image).min() < 60  # its words


def test_curves_show_the_mean_and_the_spread_of_the_seeds() -> None:
    wanted, draw = drawn(0)
    panels = draw(wanted).axes
    assert [axes.get_title(loc="left") for axes in panels] == ["β = 0.1", "β = 0.5"]
    courses = 100 * np.array(list(COURSES[DISCO_5].values()))
    second = panels[1].get_lines()[1]
    assert second.get_xdata() == pytest.approx([1, 2, 3])
    assert second.get_ydata() == pytest.approx(courses.mean(axis=0))
    heights = panels[1].collections[1].get_paths()[0].vertices[:, 1]
    ends = [courses.mean(0) + sign * courses.std(0, ddof=1) for sign in (-1, 1)]
    assert {round(float(y), 6) for y in heights} == {round(float(y), 6) for y in np.ravel(ends)}


def rising(first: float, rounds: int = 20) -> tuple[float, ...]:
    """Accuracies that begin at `first` and have nearly all they get after a tenth of the rounds."""
    return tuple(first if number <= rounds // 10 else 0.8 + 0.001 * number for number in range(1, rounds + 1))


def panels_of(courses: dict[tuple[str, str], Any]) -> tuple[Any, Any]:
    made = recipe()
    found = results(made, courses)
    wanted = figure_data(PICTURES[0], made, found, entries(made, found))
    return wanted, curves(wanted).axes


def test_early_rounds_do_not_hide_what_differs() -> None:
    low = (*rising(0.1)[:-1], 0.75)  # a seed that falls back at the end is seen
    wanted, (early, late) = panels_of({AVG_1: {0: rising(0.1), 1: low}, DISCO_1: {0: rising(0.2)}, AVG_5: {0: low[5:]}})
    std = np.std([75, 82], ddof=1)  # in the last round, which has both the lowest and the highest end of the band
    assert early.get_ylim() == pytest.approx((78.5 - 1.1 * std, 78.5 + 1.1 * std))
    assert early.get_lines()[0].get_ydata()[0] == pytest.approx(10), "drawn, but out of sight"
    assert late.get_ylim()[0] < 75 and late.get_ylim()[1] > 81.9, "nothing to cut"
    assert reading(wanted).endswith("on either side. Lower values of the first rounds are cut off.")


@pytest.mark.parametrize(
    "course",
    [rising(0.8025), rising(0.9), rising(0.1, 9), (0.1, *(nan,) * 19)],
    ids=["alike", "higher", "few", "lost"],
)
def test_where_early_rounds_are_like_the_others_nothing_is_cut_off(course: tuple[float, ...]) -> None:
    wanted, (axes,) = panels_of({AVG_1: {0: course}})
    assert axes.get_ylim()[0] <= 100 * np.nanmin(course)
    assert "cut off" not in reading(wanted)


def test_a_course_that_stays_where_it_is_has_a_panel_with_room() -> None:
    _, (axes,) = panels_of({AVG_1: {0: (0.1, *(0.8,) * 19)}})
    assert axes.get_ylim() == pytest.approx((80 - 3.5, 80 + 3.5))


def test_curves_over_bytes() -> None:
    wanted, draw = drawn(1)
    (axes,) = draw(wanted).axes
    assert axes.get_lines()[0].get_xdata() == pytest.approx([1.5, 3.0, 4.5])  # kB
    assert "(kB)" in axes.get_xlabel()


def test_lines_go_over_the_columns_numbers_with_the_papers_beside() -> None:
    turned = recipe().columns[::-1]  # drawn by their numbers, not in the table's order
    wanted, draw = drawn(2, columns=turned)
    (axes,) = draw(wanted).axes
    ours = axes.get_lines()[0]
    papers = next(one for one in axes.get_lines() if one.get_markerfacecolor() == "none" and one.get_marker() == "o")
    assert ours.get_xdata() == pytest.approx([0.1, 0.5])
    assert ours.get_ydata() == pytest.approx([60.2667, 65.5], abs=1e-3)
    assert papers.get_ydata() == pytest.approx([60.0, 70.0])
    assert axes.get_xscale() == "log"
    assert axes.get_xlabel() == "β"


def test_bars_are_as_long_as_the_numbers() -> None:
    wanted, draw = drawn(3)
    first, second = draw(wanted).axes
    assert [bar.get_width() for bar in first.patches] == pytest.approx([60.2667, 64.7667], abs=1e-3)
    assert [text.get_text() for text in second.texts] == ["65.50", "69.37"]
    assert first.get_xlim()[0] == 0.0


@pytest.mark.parametrize("kind", [2, 3], ids=["line", "bars"])
def test_one_seed_has_no_whisker(kind: int) -> None:
    made = recipe()
    courses = {AVG_1: COURSES[AVG_1], DISCO_1: {0: COURSES[DISCO_1][0]}}
    for seeds, told in ((courses, [True, False]), ({DISCO_1: courses[DISCO_1]}, [False])):
        found = results(made, seeds)
        wanted = figure_data(PICTURES[kind], made, found, entries(made, found))
        axes = {2: line, 3: bars}[kind](wanted).axes[0]
        reaches = [path for whiskers in axes.collections for path in whiskers.get_paths()]
        assert [bool(np.isfinite(path.vertices).all()) for path in reaches] == told
        assert ("whiskers are" in reading(wanted)) == any(told)


def test_names_in_a_script_that_the_font_lacks_give_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    made = recipe(rows=(replace(recipe().rows[0], name="方法"),), overrides=(), numbers={}, claims=())
    found = results(made, {("方法", "β = 0.1"): COURSES[AVG_1]})
    for kind in ("bars", "curves"):
        pictures(replace(made, pictures=(FigureRequest(kind),)), found, entries(made, found))
    assert not recwarn.list


def test_columns_of_several_metrics_are_named_each_by_its_own() -> None:
    columns = (replace(recipe().columns[0], metric="at(round=1)"), replace(recipe().columns[1], metric="at(round=2)"))
    wanted, draw = drawn(3, columns=columns)
    assert [axes.get_xlabel() for axes in draw(wanted).axes] == [
        "accuracy after round 1 (%)",
        "accuracy after round 2 (%)",
    ]
    assert drawn(2, columns=columns)[0].label == "accuracy after round"


def test_a_bar_that_is_missing_keeps_its_place() -> None:
    made = recipe()
    found = results(made, {AVG_1: COURSES[AVG_1], DISCO_5: COURSES[DISCO_5]})
    first, second = bars(figure_data(PICTURES[3], made, found, entries(made, found))).axes
    assert first.get_ylim() == second.get_ylim() == (1.5, -0.5)


def test_rows_that_are_drawn_are_numbered_and_look_the_same_in_every_picture() -> None:
    rows = tuple(replace(recipe().rows[0], name=f"row {k}") for k in range(9))
    made = recipe(rows=rows, overrides=(), numbers={}, claims=())
    known = results(made, {(f"row {k}", "β = 0.1"): COURSES[AVG_1] for k in (1, 8)})
    asks = [FigureRequest("curves"), FigureRequest("bars", rows=("row 8",)), FigureRequest("split")]
    lines, one, _ = in_order([figure_data(picture, made, known, entries(made, known)) for picture in asks])
    assert lines.order == one.order == {"row 1": 0, "row 8": 1}
    second = curves(lines).axes[0].get_lines()[1].get_color()
    assert to_rgba(second) == bars(one).axes[0].patches[0].get_facecolor()


def many(rows: int) -> Any:
    lines = tuple(replace(recipe().rows[0], name=f"row {k}") for k in range(rows))
    made = recipe(rows=lines, overrides=(), numbers={}, claims=())
    known = results(made, {(line.name, "β = 0.1"): COURSES[AVG_1] for line in lines})
    return figure_data(PICTURES[0], made, known, entries(made, known))


def test_many_lines_have_no_bands() -> None:
    few, more = many(8), many(9)
    assert (len(curves(few).axes[0].collections), len(curves(more).axes[0].collections)) == (8, 0)
    assert "The band is one standard deviation over seeds on either side." in reading(few)
    assert "more than 8 lines have no bands" in reading(more)


def test_where_no_bands_are_drawn_panels_are_as_high_as_the_means() -> None:
    found = many(9)
    courses = {place: replace(course, std=course.std + 9.0) for place, course in found.courses.items()}
    low, _ = curves(replace(found, courses=courses)).axes[0].get_ylim()
    assert low > 0.0


def test_a_row_on_top_of_another_has_its_colour_and_other_dashes() -> None:
    wanted, draw = drawn(0)
    for axes in draw(wanted).axes:
        plain, on_top = axes.get_lines()
        assert plain.get_color() == on_top.get_color() and plain.get_marker() == on_top.get_marker()
        assert (plain.get_linestyle(), on_top.get_linestyle()) == ("--", "-")
    assert [handle.get_linestyle() for handle in draw(wanted).legends[0].get_lines()] == ["--", "-"]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (["A", "B"], [(0, None), (1, None)]),
        (["A", "A+X", "B", "B+X"], [(0, 1), (0, 0), (1, 1), (1, 0)]),
        (["A+X", "A", "A+Y", "A+X+Y", "C"], [(0, 0), (0, 1), (0, 2), (0, 3), (1, 1)]),
        (["A", "A+", "AB+X"], [(0, None), (1, None), (2, None)]),
    ],
    ids=["no pairs", "pairs", "several on top", "names that only look like it"],
)
def test_looks_of_rows(rows: list[str], expected: list[tuple[int, int | None]]) -> None:
    found = looks(rows)
    assert [(found[row].colour, found[row].dashes) for row in rows] == expected


def overlapping(texts: list[Any], figure: Any) -> bool:
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    return any(a.overlaps(b) for k, a in enumerate(boxes) for b in boxes[:k])


def test_words_beside_bars_neither_run_together_nor_are_cut_off() -> None:
    names = "KL divergence from uniform, mean over all of the clients", "Gini coefficient of the sizes"
    lines = tuple(replace(line, name=name) for line, name in zip(recipe().rows, names, strict=True))
    columns = tuple(replace(recipe().columns[0], name=name) for name in ("IID", "β = 1", "β = 0.5"))
    made = recipe(rows=lines, columns=columns, overrides=(), numbers={}, claims=(), unit="", digits=3)
    made = replace(made, metric="last(of='loss')", label="mean distance of the clients' labels from equal shares")
    known = results(made, {(name, column.name): COURSES[AVG_1] for name in names for column in columns})
    tiny = {place: replace(cell, values={0: 0.0007655, 1: 0.00075}) for place, cell in known.cells.items()}
    known = replace(known, cells=tiny)
    figure = bars(figure_data(PICTURES[3], made, known, entries(made, known)))
    figure.draw_without_rendering()
    for axes in figure.axes:
        assert not overlapping(axes.get_xticklabels(), figure)
        words = [*axes.texts, axes.xaxis.label, *axes.get_yticklabels()]
        boxes = [text.get_window_extent() for text in words if text.get_text()]
        assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width for box in boxes)
        assert not overlapping(axes.get_yticklabels(), figure)
        assert [text.get_text() for text in axes.texts] == ["0.000758"] * 2
    assert "…" not in "".join(label.get_text() for label in figure.axes[0].get_yticklabels())


def test_our_number_is_at_our_bar_and_the_papers_mark_is_explained() -> None:
    wanted, draw = drawn(3)
    figure = draw(wanted)
    figure.draw_without_rendering()
    for axes in figure.axes:
        for text, bar in zip(axes.texts, axes.patches, strict=True):
            assert text.get_window_extent().x1 < bar.get_window_extent().x1
    (key,) = figure.legends
    assert [text.get_text() for text in key.get_texts()] == ["the paper's number"]
    lines, draw = drawn(2)
    assert [text.get_text() for text in draw(lines).legends[0].get_texts()][-1] == "the paper's number"
    alone, draw = drawn(3, numbers={})
    assert not draw(alone).legends


@pytest.mark.parametrize("kind", [2, 3], ids=["line", "bars"])
def test_the_papers_numbers_are_left_out_where_its_settings_are_not_ours(kind: int) -> None:
    for changes, variant in (({"compare": False}, ""), ({}, "--rounds 1")):
        made = recipe(**changes)
        found = results(made, variant=variant)
        wanted = figure_data(PICTURES[kind], made, found, entries(made, found))
        labels = [text.get_text() for key in {2: line, 3: bars}[kind](wanted).legends for text in key.get_texts()]
        assert "the paper's number" not in labels and "paper" not in reading(wanted)


def test_a_split_names_its_column() -> None:
    assert split(((3, 1), (0, 4)), "β = 0.1").get_suptitle() == "β = 0.1"


def test_labels_say_what_numbers_are() -> None:
    """A row's goes before a column's, and the recipe's is that of its own metric."""
    rows = (replace(recipe().rows[0], label="how right it is"), recipe().rows[1])
    columns = (replace(recipe().columns[0], metric="last", label="right at the end"), recipe().columns[1])
    made = recipe(rows=rows, columns=columns, label="right at best")
    table = entries(made, results(made))
    assert {place: entry.metric.label for place, entry in table.items()} == {
        AVG_1: "how right it is",
        AVG_5: "how right it is",
        DISCO_1: "right at the end",
        DISCO_5: "right at best",
    }
    plain = recipe(label="right", columns=(replace(recipe().columns[0], metric="last"),), overrides=(), numbers={})
    assert entries(plain, results(plain))[AVG_1].metric.label == "accuracy of the last round"


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        ("best", "points"),
        ("speedup(row='FedAvg')", ""),
        ("rounds_to(target=0.5)", "rounds"),
        ("last(of='train_loss')", "in training loss"),
        ("analysis(name='hessian.top')", "in largest eigenvalue of the loss's Hessian"),
        ("calculated", ""),
    ],
)
def test_what_differences_are_counted_in(metric: str, unit: str) -> None:
    found = parse(metric)
    assert unit_of(found, found.percent) == unit


def test_a_mean_over_more_rounds_than_there_were_is_told_as_what_it_is() -> None:
    made = recipe(metric="mean_last(n=5)")
    assert (
        "numbers: mean accuracy of all 3 evaluated rounds in %; more is better"
        in summarise_study(made, results(made)).notes
    )


def test_without_pictures_in_the_recipe_there_are_courses(tmp_path: Path) -> None:
    made = recipe(rows=recipe().rows[:1], columns=recipe().columns[:1], overrides=(), numbers={}, claims=())
    assert "curves.png" in {path.name for path in write_report(made, results(made), tmp_path)}


def test_changed_runs_are_told_by_the_plan(tmp_path: Path) -> None:
    made = recipe(small={"rounds": 2})
    found = gathered(table(made, Changes(small=True, seeds=1)), tmp_path)
    told = summarise_study(made, found)
    assert told.warnings[0].startswith("NOT THE PAPER'S SETTINGS: everything here was run with --scale small.")
    assert told.commands == ("fedbraid study run made-table1 --scale small --seeds 1 --resume",)
