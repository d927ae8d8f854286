"""Claims against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan, sqrt

import pytest

from fedbraid.errors import UserError
from fedbraid.studies.claims import Finding, Sample, interval, judged, verdict
from fedbraid.studies.naming import Place
from fedbraid.studies.recipe import Claim

ROWS, COLUMNS = ("a", "b", "c"), ("one", "two")
A_BEATS_B = Claim("a beats b", ("a",), ("b",))


def sample(*values: float, **more: object) -> Sample:
    return Sample(dict(enumerate(values)), **more)  # type: ignore[arg-type]


def cells(**rows: Sample) -> dict[Place, Sample]:
    """Each row's numbers, in both columns."""
    return {(row, column): numbers for row, numbers in rows.items() for column in COLUMNS}


@pytest.mark.parametrize(
    ("values", "quantile"),  # of Student's t at 97.5 %, from its closed forms for one and two degrees of freedom
    [([1.0, 3.0], 12.706204736174694), ([1.0, 2.0, 6.0], 4.302652729749464)],
    ids=["2", "3"],
)
def test_the_interval_of_few_seeds(values: list[float], quantile: float) -> None:
    n, mean = len(values), sum(values) / len(values)
    reach = quantile * sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n)
    found = interval(values)
    assert found is not None
    assert (found.mean, found.n) == (mean, n)
    assert found.low == pytest.approx(mean - reach, rel=1e-9)
    assert found.high == pytest.approx(mean + reach, rel=1e-9)


def test_five_seeds_by_hand() -> None:
    # Differences 1 to 5: mean 3, variance 2.5, so the standard error is sqrt(1/2); t(4) is 2.776445 in any table.
    finding = judged(A_BEATS_B, cells(a=sample(2, 4, 6, 8, 10), b=sample(1, 2, 3, 4, 5)), ROWS, COLUMNS)
    assert finding.verdict == "holds"
    assert finding.overall is not None
    assert finding.overall.low == pytest.approx(3 - 2.776445 / sqrt(2), abs=1e-6)
    assert finding.overall.high == pytest.approx(3 + 2.776445 / sqrt(2), abs=1e-6)
    assert [pair.differences for pair in finding.pairs] == [{0: 1, 1: 2, 2: 3, 3: 4, 4: 5}] * 2
    assert finding.agreeing == 2


def test_many_seeds_come_near_the_normal_law() -> None:
    values = [float(index % 2) for index in range(20_000)]
    found = interval(values)
    assert found is not None
    assert found.high - found.mean == pytest.approx(1.959964 * 0.5 / sqrt(20_000), rel=1e-3)


def test_pairing_takes_away_what_the_seeds_have_in_common() -> None:
    # The seeds spread by 30, the difference by almost nothing: only paired can that be seen.
    shared = (50.0, 60.0, 80.0)
    finding = judged(
        A_BEATS_B,
        cells(a=sample(*(value + 0.5 + 0.01 * seed for seed, value in enumerate(shared))), b=sample(*shared)),
        ROWS,
        COLUMNS,
    )
    assert finding.verdict == "holds"


@pytest.mark.parametrize("higher", [True, False], ids=["more", "fewer"])
@pytest.mark.parametrize("gap", [3.0, -3.0, 0.1], ids=["above", "below", "near"])
def test_swapping_the_sides_swaps_the_verdict(gap: float, higher: bool) -> None:
    found = cells(a=sample(10 + gap, 11 + gap, 12.5 + gap, higher=higher), b=sample(10, 11.2, 12, higher=higher))
    one = judged(A_BEATS_B, found, ROWS, COLUMNS)
    other = judged(replace(A_BEATS_B, better=("b",), than=("a",)), found, ROWS, COLUMNS)
    opposite = {"holds": "does not hold", "does not hold": "holds", "undecided": "undecided"}
    assert other.verdict == opposite[one.verdict]
    assert one.verdict == ("undecided" if gap == 0.1 else "holds" if (gap > 0) == higher else "does not hold")
    assert one.overall is not None
    assert other.overall is not None
    assert other.overall.mean == pytest.approx(-one.overall.mean)
    assert (other.overall.low, other.overall.high) == pytest.approx((-one.overall.high, -one.overall.low))
    assert one.agreeing + other.agreeing == 2


def test_one_seed_decides_nothing() -> None:
    finding = judged(A_BEATS_B, cells(a=sample(90), b=sample(10)), ROWS, COLUMNS)
    assert finding.verdict == "undecided"
    assert finding.overall is not None
    assert (finding.overall.mean, finding.overall.known) == (80, False)
    assert finding.agreeing == 2


def test_accuracies_that_differ_by_the_same_sample_on_every_seed_have_no_interval() -> None:
    """One of 359 test samples twice is no proof, nor is one round; one byte twice is."""
    for counted, expected in ((True, "undecided"), (False, "holds")):
        found = cells(a=sample(90.28, 80.28, counted=counted), b=sample(90.0, 80.0, counted=counted))
        finding = judged(A_BEATS_B, found, ROWS, COLUMNS)
        assert (finding.verdict, finding.agreeing) == (expected, 2)
        assert finding.overall and finding.overall.known == (not counted)


def test_equal_cells_are_undecided() -> None:
    assert judged(A_BEATS_B, cells(a=sample(1, 2, 3), b=sample(1, 2, 3)), ROWS, COLUMNS).verdict == "undecided"


@pytest.mark.parametrize(
    ("margin", "expected"), [(0.0, "does not hold"), (0.8, "does not hold"), (0.95, "undecided"), (1.2, "holds")]
)
def test_a_margin_moves_the_line(margin: float, expected: str) -> None:
    # Differences -0.95, -1.0, -1.05: the interval is -1 ± 4.302653 × 0.05 / sqrt(3) = -1 ± 0.124.
    claim = replace(A_BEATS_B, margin=margin)
    finding = judged(claim, cells(a=sample(9.05, 9.0, 8.95), b=sample(10, 10, 10)), ROWS, COLUMNS)
    assert finding.verdict == expected
    assert finding.agreeing == (2 if margin > 1 else 0)


def test_the_line_itself_decides_nothing() -> None:
    found = interval([1.0, 1.0])
    assert verdict(found, margin=-1.0) == "undecided"
    assert verdict(found, margin=-0.999) == "holds"
    assert verdict(found, margin=-1.001) == "does not hold"
    assert verdict(None) == "undecided"


def test_only_seeds_that_both_have() -> None:
    found = {("a", "one"): Sample({0: 5.0, 1: 7.0, 2: 9.0}), ("b", "one"): Sample({1: 1.0, 2: 2.0, 3: 100.0})}
    finding = judged(A_BEATS_B, found, ROWS, COLUMNS)
    assert [pair.differences for pair in finding.pairs] == [{1: 6.0, 2: 7.0}]


def test_seeds_are_averaged_over_the_pairs_that_have_them_all() -> None:
    found = {
        ("a", "one"): Sample({0: 1.0, 1: 2.0}),
        ("b", "one"): Sample({0: 0.0, 1: 0.0}),
        ("a", "two"): Sample({0: 5.0, 1: 9.0, 2: -1000.0}),
        ("b", "two"): Sample({0: 0.0, 1: 1.0, 2: 0.0}),
    }
    finding = judged(A_BEATS_B, found, ROWS, COLUMNS)
    assert finding.overall is not None
    assert (finding.overall.mean, finding.overall.n) == ((3 + 5) / 2, 2)
    assert finding.agreeing == 1  # the third seed still counts in its own pair


def test_cells_without_results_are_told_and_cells_that_do_not_exist_are_not() -> None:
    found = {
        ("a", "one"): sample(2, 3),
        ("b", "one"): sample(1, 1),
        ("a", "two"): sample(2, 3),
        ("b", "two"): sample(),
        ("c", "one"): sample(1, 1),
    }
    claim = Claim("a beats all", ("a", "a"), ("b", "c"))
    finding = judged(claim, found, ROWS, COLUMNS)
    assert [(pair.better, pair.than) for pair in finding.pairs] == [
        (("a", "one"), ("b", "one")),
        (("a", "one"), ("c", "one")),
    ]
    assert finding.missing == ((("a", "two"), ("b", "two")),)
    far = found | {("a", "one"): sample(20, 20.1, 20), ("b", "one"): sample(1, 1, 1), ("c", "one"): sample(1, 1, 1)}
    finding = judged(claim, far, ROWS, COLUMNS)
    assert (finding.so_far, finding.verdict) == ("holds", "undecided"), "nobody knows of the other pair"
    whole = judged(claim, far | {("b", "two"): sample(1, 1)}, ROWS, COLUMNS)
    assert whole.so_far == whole.verdict
    nothing = judged(claim, cells(a=sample(), b=sample(), c=sample()), ROWS, COLUMNS)
    assert (nothing.verdict, nothing.overall, nothing.agreeing) == ("undecided", None, 0)


def one_of_three(third: Sample) -> Finding:
    """`a` is far ahead of two cells, and compared with a third."""
    near = sample(1.0, 1.1, 0.9, 1.0, 1.0)
    found = {("a", "one"): sample(9.0, 9.1, 8.9, 9.0, 9.1), ("b", "one"): near, ("c", "one"): near, ("d", "one"): third}
    claim = Claim("a beats all", ("a", "a", "a"), ("b", "c", "d"))
    return judged(claim, found, ["a", "b", "c", "d"], ["one"])


def test_a_mean_over_pairs_does_not_hide_one_that_is_on_the_other_side() -> None:
    """Of three comparisons two are won by far: on average, as anybody can see, but not by each."""
    assert one_of_three(sample(8.0, 8.2, 7.9, 8.1, 8.0)).verdict == "holds"
    slightly = one_of_three(sample(9.1, 9.0, 9.3, 8.8, 9.2))
    assert (slightly.verdict, slightly.on_average, slightly.agreeing) == ("undecided", "holds", 2)
    far = one_of_three(sample(12.0, 12.2, 11.9, 12.1, 12.0))
    assert (far.verdict, far.on_average) == ("does not hold", "holds")
    assert [pair.than for pair in far.against] == [("d", "one")]


def test_a_single_pair_must_be_beyond_what_chance_makes_of_many() -> None:
    """With five seeds, t = 3.1 is beyond 95 % by itself and not as one of three (which needs 3.96)."""
    behind = sample(*(9.0 + d for d in (0.2, 1.1, 0.5, 0.4, 0.6)))
    alone = {("a", "one"): sample(9.0, 9.0, 9.0, 9.0, 9.0), ("d", "one"): behind}
    assert judged(Claim("a beats d", ("a",), ("d",)), alone, ["a", "d"], ["one"]).verdict == "does not hold"
    near = sample(1.0, 1.1, 0.9, 1.0, 1.0)
    among = alone | {("b", "one"): near, ("c", "one"): near}
    found = judged(Claim("a beats all", ("a", "a", "a"), ("b", "c", "d")), among, ["a", "b", "c", "d"], ["one"])
    assert found.verdict == "undecided"


def test_one_pair_refutes_a_claim_of_which_others_were_not_run() -> None:
    worse, better = sample(1.0, 1.1, 0.9, 1.0, 1.1), sample(9.0, 9.1, 8.9, 9.0, 9.1)
    found = {("a", "one"): worse, ("b", "one"): better, ("a", "two"): sample(), ("b", "two"): sample()}
    finding = judged(A_BEATS_B, found, ROWS, COLUMNS)
    assert (finding.verdict, len(finding.missing)) == ("does not hold", 1)


def test_rounding_is_on_nobodys_side() -> None:
    pair = cells(a=sample(0.1 + 0.2, 1e6), b=sample(0.3, 1e6 * (1 - 1e-16)))
    assert judged(Claim("a beats b", ("a",), ("b",)), pair, ROWS, COLUMNS).agreeing == 0


def rounds(*values: float, until: int = 100) -> Sample:
    return sample(*values, higher=False, spent={seed: (float(until), until) for seed in range(len(values))})


def test_who_never_reaches_the_target_has_at_least_one_round_more() -> None:
    # b never gets there in seed 0, neither does in seed 1: 101 - 40, nothing, and 60 - 50.
    finding = judged(A_BEATS_B, cells(a=rounds(40, inf, 50), b=rounds(inf, inf, 60)), ROWS, COLUMNS)
    assert finding.pairs[0].differences == {0: 61.0, 1: 0.0, 2: 10.0}
    assert finding.pairs[0].unreached == 3
    last = judged(A_BEATS_B, cells(a=rounds(100, 100), b=rounds(inf, inf)), ROWS, COLUMNS)
    assert last.verdict == "holds"
    assert last.pairs[0].differences == {0: 1.0, 1: 1.0}


def test_reaching_the_target_is_never_held_against_a_cell() -> None:
    # a sends ten times as much in a round and gets there; b does not, though it sent less in all.
    a = sample(900.0, 1000.0, higher=False, spent={0: (1000.0, 100), 1: (1000.0, 100)})
    b = sample(inf, inf, higher=False, spent={0: (100.0, 100), 1: (100.0, 100)})
    finding = judged(A_BEATS_B, cells(a=a, b=b), ROWS, COLUMNS)
    assert finding.pairs[0].differences == pytest.approx({0: 9.0, 1: 10.0})
    assert judged(replace(A_BEATS_B, better=("b",), than=("a",)), cells(a=a, b=b), ROWS, COLUMNS).agreeing == 0


def test_a_run_without_a_number_leaves_the_claim_open() -> None:
    finding = judged(A_BEATS_B, cells(a=sample(9, 9.1, nan), b=sample(1, 1, 1)), ROWS, COLUMNS)
    assert finding.pairs[0].differences == pytest.approx({0: 8.0, 1: 8.1})
    assert finding.pairs[0].no_number == 1
    assert finding.verdict == "undecided"
    only = judged(A_BEATS_B, cells(a=sample(nan), b=sample(1)), ROWS, COLUMNS)
    assert (only.verdict, only.missing, len(only.pairs)) == ("undecided", (), 2)


def test_rounds_and_accuracies_are_not_compared() -> None:
    with pytest.raises(UserError, match="cannot be compared"):
        judged(A_BEATS_B, cells(a=sample(1, 2), b=rounds(1, 2)), ROWS, COLUMNS)


def test_cells_are_named_by_row_or_whole() -> None:
    found = {("a", "one"): sample(9, 9.5), ("a", "two"): sample(1, 1), ("b", "one"): sample(), ("b", "two"): sample()}
    finding = judged(Claim("more in one than in two", ("a @ one",), ("a @ two",)), found, ROWS, COLUMNS)
    assert [(pair.better, pair.than) for pair in finding.pairs] == [(("a", "one"), ("a", "two"))]
    assert finding.verdict == "holds"


def test_several_kinds_of_numbers_count_relative_to_the_other_cell() -> None:
    found = {
        ("a", "one"): sample(60.0, 63.0, unit="points"),
        ("b", "one"): sample(48.0, 52.0, unit="points"),
        ("a", "two"): sample(8e6, 8e6, higher=False, unit="bytes"),
        ("b", "two"): sample(1e7, 1e7, higher=False, unit="bytes"),
    }
    finding = judged(A_BEATS_B, found, ROWS, COLUMNS)
    assert finding.overall is not None
    assert finding.unit == "% of the other's mean"
    # 12/50 and 11/50, and twice 2/10, in per cent
    assert [pair.differences for pair in finding.pairs] == [
        {0: pytest.approx(24), 1: pytest.approx(22)},
        {0: 20, 1: 20},
    ]
    assert finding.overall.mean == pytest.approx(21.5)
    across = judged(
        Claim("", ("a @ one",), ("a @ two",)), {**found, ("a", "two"): sample(59, 60, unit="%")}, ROWS, COLUMNS
    )
    assert (across.unit, across.pairs[0].differences) == ("", {0: 1.0, 1: 3.0})  # asked for as they are
    alike = judged(A_BEATS_B, {place: replace(found[place], unit="points") for place in list(found)[:2]}, ROWS, COLUMNS)
    assert (alike.unit, alike.pairs[0].differences) == ("points", {0: 12.0, 1: 11.0})
