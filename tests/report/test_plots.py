from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from forks import python
from made_up_runs import HOSTILE, regression, run
from matplotlib.figure import Figure

from fedbraid.errors import UserError
from fedbraid.report import plots
from fedbraid.report.run_table import comparison
from fedbraid.report.series import class_scores, grouped, series
from fedbraid.report.style import DARK

PNG = b"\x89PNG\r\n\x1a\n"


def drawable(figure: Figure) -> bool:
    """Small, because these tests ask whether it draws, not how it looks."""
    figure.set_dpi(30)
    return plots.png(figure).startswith(PNG)


def test_series_by_hand() -> None:
    records = [run("a", [0.1, None, 0.3], 0), run("a", [0.3, 0.9, 0.5, 0.6], 1)]
    line = series(records, "accuracy")["a"]
    assert line.x.tolist() == [1, 3]
    assert line.mean.tolist() == pytest.approx([0.2, 0.4])
    assert line.std.tolist() == pytest.approx([0.02**0.5, 0.02**0.5])
    assert line.low.tolist() == pytest.approx([0.2 - 0.02**0.5, 0.4 - 0.02**0.5])
    assert series(records, "accuracy", "bytes")["a"].x.tolist() == [1.5e6, 4.5e6]
    assert series(records[:1], "accuracy")["a"].std.tolist() == [0, 0]


def test_the_band_is_the_spread_of_the_table() -> None:
    records = [run("a", [0.1, 0.5], 0), run("a", [0.3, 0.6], 1)]
    (band,) = plots.curves(records).axes[0].collections
    ends = band.get_paths()[0].vertices[:, 1]
    (cell,) = (row[1] for row in comparison(records).rows)
    assert cell.value is not None and cell.std is not None
    assert {round(float(y), 6) for y in ends} >= {round(100 * (cell.value + sign * cell.std), 6) for sign in (-1, 1)}


def test_class_scores_by_hand() -> None:
    labels, scores = class_scores(
        [run("a", [0.2], 0), run("a", [0.4], 1), run("b", [0.5], per_class=[None, 0.5]), run("c", [None])]
    )
    assert labels == ["a", "b"]
    np.testing.assert_allclose(scores, [[0.3, 0.15, 1.0], [np.nan, 0.5, np.nan]])


def test_grouping_neighbours() -> None:
    sums, size = grouped(np.arange(5.0)[None], limit=2, axis=1)
    assert size == 3
    assert sums.tolist() == [[3.0, 7.0]]


@pytest.mark.parametrize("draw", [plots.curves, plots.cost, plots.per_class])
def test_no_runs(draw: object) -> None:
    assert callable(draw)
    with pytest.raises(UserError):
        draw([])


def test_an_unknown_metric() -> None:
    with pytest.raises(UserError, match="did you mean 'accuracy'"):
        plots.curves([run("a", [0.1])], "acuracy")


@pytest.mark.parametrize("counts", [[], [[]], [[1, 2], [3]]])
def test_label_counts_that_are_no_table(counts: list[list[int]]) -> None:
    with pytest.raises(UserError):
        plots.clients(counts)


def test_hostile_labels_are_drawn_as_they_are() -> None:
    figure = plots.curves([run(label, [0.5, 0.6]) for label in HOSTILE])
    assert drawable(figure)
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts[0] == HOSTILE[0]
    assert texts[3] == HOSTILE[3]
    assert len(texts[5]) == 72
    assert drawable(plots.per_class([run(label, [0.5]) for label in HOSTILE]))


@pytest.mark.parametrize("accuracies", [[0.5], [None], [], [None, 1.0, 1.0], [0.0, math.nan, 0.0]])
def test_short_and_strange_courses(accuracies: list[float | None]) -> None:
    records = [run("a", accuracies), run("b", accuracies)]
    for draw in (plots.curves, plots.cost):
        assert drawable(draw(records, target=0.7))


def test_losses_over_decades_and_infinities() -> None:
    records = [regression("a", [1e4, 1.0, 1e-3]), regression("b", [2.0, math.inf, math.nan])]
    figure = plots.curves(records, "loss")
    assert figure.axes[0].get_yscale() == "log"
    assert drawable(figure)
    assert drawable(plots.cost(records, "loss"))


def test_costs_far_apart_go_logarithmic() -> None:
    cheap, dear = run("a", [0.1, 0.2]), run("b", [0.1, 0.2], bytes_down=10**9)
    assert plots.cost([cheap, dear]).axes[0].get_xscale() == "log"
    assert plots.cost([cheap, cheap]).axes[0].get_xscale() == "linear"


@pytest.mark.parametrize("shape", [(1, 1), (2, 200), (30, 30), (2000, 300)])
def test_any_number_of_clients_and_classes(shape: tuple[int, int]) -> None:
    counts = np.random.default_rng(0).integers(0, 9, shape).tolist()
    figure = plots.clients(counts)
    assert drawable(figure)
    assert figure.get_size_inches()[1] <= 7


def test_clients_without_samples() -> None:
    assert drawable(plots.clients([[0, 0], [0, 0]]))


@pytest.mark.parametrize(("methods", "classes"), [(1, 2), (60, 1000)])
def test_any_number_of_methods_and_classes(methods: int, classes: int) -> None:
    records = [run(f"m{index}", [0.5], per_class=[index / methods] * classes) for index in range(methods)]
    figure = plots.per_class(records, theme=DARK)
    assert drawable(figure)
    assert figure.get_size_inches()[1] <= 16


def test_same_data_same_bytes(tmp_path: Path) -> None:
    records = [run("a", [0.1, 0.2], 0), run("a", [0.2, 0.3], 1), run("b", [0.2, 0.2])]
    for name in ("one.png", "two.png"):
        plots.save(plots.curves(records), tmp_path / "deep" / name)
    one, two = ((tmp_path / "deep" / name).read_bytes() for name in ("one.png", "two.png"))
    assert one == two
    assert b"atplotlib" not in one
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["one.png", "two.png"]


def test_nothing_but_drawing_needs_matplotlib(tmp_path: Path) -> None:
    code = (
        "import sys; import fedbraid.report.run_report, fedbraid.report.plots, fedbraid.report.run_table;"
        "assert not any(name.split('.')[0] == 'matplotlib' for name in sys.modules)"
    )
    assert python(tmp_path, "-c", code) == (0, "")
