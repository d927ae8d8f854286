from __future__ import annotations

import io
import json
import math
import re

import pytest
from made_up_runs import HOSTILE, regression, run
from rich.console import Console

from fedbraid.errors import UserError
from fedbraid.report.markdown import table_markdown as to_markdown
from fedbraid.report.run_table import comparison
from fedbraid.report.tables import TableData as Table
from fedbraid.report.tables import to_json
from fedbraid.report.terminal import to_rich


def shown(table: Table, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(to_rich(table))
    stream = console.file
    assert isinstance(stream, io.StringIO)
    return stream.getvalue()


def column(table: Table, key: str) -> list[str]:
    index = [item.key for item in table.columns].index(key)
    return [row[index].marked for row in table.rows]


def two_methods() -> Table:
    runs = [run("fedavg", [0.1, last], seed) for seed, last in enumerate((0.5, 0.6))]
    runs += [run("disco", [0.1, last], seed) for seed, last in enumerate((0.7, 0.9))]
    return comparison(runs, target=0.6)


def test_values_by_hand() -> None:
    table = two_methods()
    assert [item.title for item in table.columns] == [
        "method", "last (%)", "best (%)", "last 5 (%)", "rounds to 60 %", "MB", "s",
    ]  # fmt: skip
    assert column(table, "last") == ["55.00 ± 7.07", "80.00 ± 14.14*"]
    assert column(table, "mean_last5") == ["32.50 ± 3.54", "45.00 ± 7.07*"]
    assert column(table, "rounds_to_target") == ["2.0 (1/2)", "2.0"]
    assert column(table, "megabytes") == ["3", "3"]
    assert column(table, "seconds") == ["1", "1"]
    assert table.notes[:2] == ("* best of its column", "mean ± standard deviation over 2 seeds")


def test_one_seed_one_method() -> None:
    table = comparison([run("fedavg", [0.5])], target=0.9)
    assert column(table, "last") == ["50.00"]
    assert column(table, "rounds_to_target") == ["\N{EN DASH}"]
    assert "one seed: no spread known" in table.notes
    assert not any(note.startswith("*") for note in table.notes)


def test_equal_as_printed_are_both_best() -> None:
    table = comparison([run("a", [0.50001]), run("b", [0.50002]), run("c", [0.4])])
    assert column(table, "last") == ["50.00*", "50.00*", "40.00"]


def test_without_target_there_is_no_target_column() -> None:
    assert "rounds_to_target" not in [item.key for item in comparison([run("a", [0.5])]).columns]


def test_regression_prefers_less_and_says_what_diverged() -> None:
    table = comparison([regression("a", [3.0, 2.0]), regression("b", [1.0, 0.5]), regression("c", [1.0, math.nan])])
    assert column(table, "last") == ["2", "0.5*", "diverged"]
    assert column(table, "best") == ["2", "0.5*", "1"]
    strict = json.dumps(to_json(table), allow_nan=False)
    assert json.loads(strict)["rows"][2]["last"] == {"text": "diverged", "value": None}


def test_further_metrics_are_columns_that_know_which_way_is_better() -> None:
    runs = [run("a", [0.5, 0.6], auroc=0.9, ece=0.2), run("b", [0.5, 0.6], auroc=0.8, ece=0.1)]
    table = comparison([*runs, run("c", [0.5, 0.6], auroc=None, ece=0.05, finite=False)])
    assert [item.title for item in table.columns[4:6]] == ["AUROC (%)", "ECE (%)"]
    assert column(table, "auroc") == ["90.00*", "80.00", "diverged"]
    assert column(table, "ece") == ["20.00", "10.00*", "diverged"]
    assert "AUROC and ECE: in the last evaluated round" in table.notes
    only_one = comparison([runs[0], run("b", [0.5])])
    assert column(only_one, "auroc") == ["90.00*", "\N{EN DASH}"]
    numbers = comparison([regression("a", [2.0], r2=0.5, mae=1.25), regression("b", [2.0], r2=-1.0, mae=None)])
    assert column(numbers, "r2") == ["0.5*", "-1"]
    assert column(numbers, "mae") == ["1.25*", "\N{EN DASH}"]


def test_nothing_evaluated_yet() -> None:
    assert column(comparison([run("a", [None]), run("b", [None])]), "last") == ["\N{EN DASH}"] * 2


def test_renderings_agree() -> None:
    table = two_methods()
    rows = to_json(table)["rows"]
    assert rows[1]["method"] == "disco"
    assert rows[1]["last"]["value"] == pytest.approx(0.8)
    assert rows[1]["last"]["best"] is True
    assert "| disco | **80.00 ± 14.14**\\* |" in to_markdown(table)
    assert "80.00 ± 14.14*" in shown(table)
    assert "best of its column" in shown(table)


def test_eighty_columns_keep_each_number_whole() -> None:
    label = "fedavg+disco(a=0.4, b=0.1)"
    runs = [run(name, [0.7123, 0.75], seed) for name in (label, "fedavg") for seed in range(3)]
    text = shown(comparison(runs, target=0.7), width=80)
    assert text.count("75.00 ± 0.00*") == 4
    assert max(map(len, text.splitlines())) <= 80


def test_best_is_bold_in_a_terminal() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system="standard")
    console.print(to_rich(two_methods()))
    stream = console.file
    assert isinstance(stream, io.StringIO)
    assert "\x1b[1m80.00 ± 14.14*" in stream.getvalue()


@pytest.mark.parametrize("label", HOSTILE)
def test_labels_stay_labels(label: str) -> None:
    table = comparison([run(label, [0.5]), run("fedavg", [0.4])])
    markdown = to_markdown(table)
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in markdown.splitlines()[:4]}) == 1
    assert "<script>" not in markdown
    assert "\x1b" not in markdown + shown(table)
    assert to_json(table)["rows"][0]["method"] == label


def test_square_brackets_are_no_markup() -> None:
    assert "[bold]b[/bold]" in shown(comparison([run("[bold]b[/bold]", [0.5])]))


def test_no_runs() -> None:
    with pytest.raises(UserError):
        comparison([])
