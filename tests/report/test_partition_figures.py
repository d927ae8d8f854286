from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from made_up_runs import HOSTILE
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from test_plots import drawable

from fedbraid.report import plots
from fedbraid.report.style import CLASS_COLOURS, DARK, LIGHT, Theme

DRAWINGS = [plots.clients, plots.counts, plots.shares]
TABLE = [[3, 0, 1], [0, 5, 2], [0, 0, 0], [10, 10, 1234]]


def made_up(clients: int, classes: int) -> list[list[int]]:
    table: list[list[int]] = np.random.default_rng(0).integers(0, 900, (clients, classes)).tolist()
    return table


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


@pytest.mark.parametrize("draw", DRAWINGS)
@pytest.mark.parametrize(("shape", "theme"), [((1, 1), LIGHT), ((3, 2), DARK), ((100, 100), LIGHT), ((900, 300), DARK)])
def test_any_number_of_clients_and_classes(draw: Any, shape: tuple[int, int], theme: Theme) -> None:
    figure = draw(made_up(*shape), theme=theme)
    assert drawable(figure)
    assert figure.get_size_inches()[1] <= 8
    assert to_hex(figure.get_facecolor()) == theme.paper


@pytest.mark.parametrize("draw", DRAWINGS)
def test_names_are_drawn_as_they_are(draw: Any) -> None:
    figure = draw([[1] * len(HOSTILE)], HOSTILE)
    assert drawable(figure)
    shown = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    shown += [label.get_text() for label in figure.axes[0].get_xticklabels()]
    for beginning in ("<scrip", "_priva"):
        assert any(beginning in words for words in shown)
    assert not any("\x1b" in words for words in shown)


def test_every_count_is_in_its_cell() -> None:
    assert texts(plots.counts(TABLE)) == [str(count) for row in TABLE for count in row]


@pytest.mark.parametrize("table", [made_up(31, 3), [[10**9] * 10] * 2], ids=["many rows", "long numbers"])
def test_numbers_that_do_not_fit_are_left_out(table: list[list[int]]) -> None:
    assert texts(plots.counts(table)) == []


def steps(figure: Figure) -> list[StepPatch]:
    return [patch for patch in figure.axes[0].patches if isinstance(patch, StepPatch)]


def test_the_parts_of_a_bar_are_the_shares_of_the_classes() -> None:
    figure = plots.shares(TABLE)
    drawn = [patch.get_data() for patch in steps(figure)]
    widths = np.array([data.values - data.baseline for data in drawn]).T
    np.testing.assert_allclose(widths[0], [75, 0, 25])
    np.testing.assert_allclose(widths[1], [0, 500 / 7, 200 / 7])
    np.testing.assert_allclose(widths[2], 0)
    np.testing.assert_allclose(drawn[2].values, [100, 100, 0, 100])
    assert texts(figure) == ["0", "2", "1", "2", "2"]  # classes in parts that have room


def test_more_classes_than_colours_are_grouped() -> None:
    table = made_up(4, 45)
    figure = plots.shares(table)
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(steps(figure)) == len(legend) == 15 <= len(CLASS_COLOURS)
    assert legend[0] == "0 to 2" and legend[-1] == "42 to 44"
    few = plots.shares([[1, 1, 1]], ["cat", "1", "dog"])
    assert [text.get_text() for text in few.legends[0].get_texts()] == ["0 cat", "1", "2 dog"]
    first = steps(figure)[0].get_data().values
    np.testing.assert_allclose(first, [100 * sum(row[:3]) / sum(row) for row in table])


def test_of_many_clients_every_second_or_third_is_drawn() -> None:
    table = [[client, 1] for client in range(450)]
    figure = plots.shares(table)
    assert len(steps(figure)[0].get_data().values) == 150
    assert "150 of 450" in figure.axes[0].get_ylabel()
    np.testing.assert_allclose(steps(figure)[0].get_data().values[10], 100 * 30 / 31)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_the_spread_of_labels(theme: Theme) -> None:
    quantiles = np.array([[0, 1, 2, 3, 4.0], [1, 1, 1, 1, 1.0], [np.nan] * 5])
    figure = plots.label_spread(quantiles, np.array([7, 1, 0]), theme=theme)
    assert drawable(figure)
    whole, middle = (lines.get_segments() for lines in figure.axes[0].collections)
    assert whole[0][:, 0].tolist() == [0, 4] and middle[0][:, 0].tolist() == [1, 3]
    assert figure.axes[0].lines[0].get_xdata()[:2].tolist() == [2, 1]
    assert [bar.get_width() for bar in figure.axes[1].patches] == [7, 1, 0]
