"""Tests of a table's claims: differences between cells, paired over seeds, with their confidence interval.

A pair of cells is compared seed by seed, in the metric's own direction: a difference above zero speaks for the cell
that is claimed to be better. A claim may have many pairs, and is of each of them; each seed gives the mean over them,
and the claim

- holds if the 95 % Student-t interval of these means lies above -margin, and so does the mean of every pair,
- does not hold if the interval lies below, or that of one pair by itself, which is as much wider as there are pairs for
  chance to try (Bonferroni),
- and is undecided otherwise: also with one seed, which has no interval, or where accuracies differ by the same few test
  samples on every seed, or targets are reached by as many rounds sooner, which says that they are counted and not how
  far they spread; where a run diverged to no number; and as long as some of its pairs were not run and none refutes it.
  What the others say stands beside it.

With a margin of 0 that is: above zero, below zero. Accuracies and bytes have no common mean: where the pairs of a claim
are of several kinds, differences are taken relative to the mean of the other cell.

Metrics that wait for a target (rounds, bytes) have no number where a run never got there. Such a run is taken to need
one round more than it had, or than the other of its pair needed if that is more: the least that is possible, so that
the pair speaks for the one that reached the target, by no more than is known. Where neither got there the pair says
nothing: the difference is zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, isnan, sqrt
from statistics import fmean, stdev
from typing import Literal

from fedbraid.errors import UserError
from fedbraid.studies import naming
from fedbraid.studies.naming import AT, Place
from fedbraid.studies.recipe import Claim

CONFIDENCE = 0.95
ROUNDING = 1e-9
"""Differences below this, relative to the numbers if those are large, are none."""
POINTS = "points"
"""What accuracies differ by, in per cent."""
RELATIVE = "% of the other's mean"
"""What differences are counted in where a claim has pairs of several kinds, such as accuracies and bytes."""

Verdict = Literal["holds", "does not hold", "undecided"]


@dataclass(frozen=True)
class Sample:
    """A cell's numbers, one for each seed, in the unit in which they are shown."""

    values: Mapping[int, float]  # inf: never got there
    higher: bool = True  # is better
    unit: str = ""  # what differences are counted in
    counted: bool = False  # in test samples or rounds, so that equal differences are no exact ones
    spent: Mapping[int, tuple[float, int]] = field(default_factory=dict)
    """What the runs cost until their end, and in how many rounds; needed where a value is infinite."""
    no_value: bool = False  # runs are there, but their records lack what is read


@dataclass(frozen=True)
class Interval:
    """A mean with the confidence interval around it; one number has none, nor have accuracies that differ alike."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def known(self) -> bool:
        return isfinite(self.low)


@dataclass(frozen=True)
class Pair:
    """Two cells compared: `differences` above zero speak for the first."""

    better: Place
    than: Place
    differences: Mapping[int, float]
    unreached: int = 0  # runs that never got to the target
    neither: int = 0  # seeds on which both did not
    no_number: int = 0  # seeds left out because a run diverged
    counted: bool = False  # as the samples are

    @property
    def interval(self) -> Interval | None:
        return interval(list(self.differences.values()), counted=self.counted)


@dataclass(frozen=True)
class Finding:
    """A claim and what the results say of it."""

    claim: Claim
    so_far: Verdict  # of the pairs that were run
    overall: Interval | None  # of the mean over these, by seed; None where nothing was run
    unit: str  # of the differences
    pairs: tuple[Pair, ...]  # those with results
    missing: tuple[tuple[Place, Place], ...]  # those without
    no_value: bool = False  # some of these were run, and have no such number
    in_paper: tuple[int, int] = (0, 0)  # by the paper's own numbers: pairs on the claimed side, of those that it gives

    @property
    def verdict(self) -> Verdict:
        return "undecided" if self.missing and not self.against else self.so_far

    @property
    def lost(self) -> int:
        """Differences that a diverged run left out."""
        return sum(pair.no_number for pair in self.pairs)

    @property
    def none_reached(self) -> bool:
        """True if every difference is of two runs of which neither reached the target."""
        return any(pair.neither for pair in self.pairs) and all(
            pair.neither == len(pair.differences) for pair in self.pairs
        )

    @property
    def agreeing(self) -> int:
        return sum(agrees(pair, self.claim.margin) for pair in self.pairs)

    @property
    def against(self) -> tuple[Pair, ...]:
        """The pairs that speak against the claim beyond chance, each by itself."""
        return refuting(self.pairs, self.claim.margin, len(self.pairs) + len(self.missing))

    @property
    def on_average(self) -> Verdict:
        """The verdict by the mean over the pairs, whatever single ones say."""
        return verdict(self.overall, self.claim.margin)


def judged(claim: Claim, samples: Mapping[Place, Sample], rows: Sequence[str], columns: Sequence[str]) -> Finding:
    """The claim on what is there; cells that do not exist are no key of `samples`, cells without results are empty."""
    places = [
        (better, than) for better, than in naming.pairs(claim, rows, columns) if better in samples and than in samples
    ]
    units = {samples[place].unit for pair in places for place in pair}
    relative = len(units) > 1 and all(samples[better].unit == samples[than].unit for better, than in places)
    compared = [paired(samples[better], samples[than], better, than, relative=relative) for better, than in places]
    pairs = tuple(pair for pair in compared if pair.differences or pair.no_number)
    missing = tuple((pair.better, pair.than) for pair in compared if pair not in pairs)
    overall = interval(by_seed(pairs), counted=any(pair.counted for pair in pairs))
    # Leaving the lost runs out would favour the cell that lost them.
    lost = any(pair.no_number for pair in pairs)
    decided = "undecided" if lost else of_all(pairs, overall, claim.margin, len(places))
    unit = RELATIVE if relative else "".join(units) if len(units) == 1 else ""
    no_value = any(samples[place].no_value for pair in missing for place in pair)
    return Finding(claim, decided, overall, unit, pairs, missing, no_value)


def paired(one: Sample, other: Sample, better: Place, than: Place, *, relative: bool = False) -> Pair:
    """The differences over the seeds that both cells have; relative ones in per cent of the other's mean."""
    if one.higher != other.higher:
        raise UserError(f"{AT.join(better)} and {AT.join(than)} cannot be compared: more is better in one only")
    both = sorted(one.values.keys() & other.values.keys())
    numbers = [seed for seed in both if not isnan(one.values[seed]) and not isnan(other.values[seed])]
    finite = [abs(other.values[seed]) for seed in numbers if isfinite(other.values[seed])]
    scale = 100 / fmean(finite) if relative and any(finite) else 1.0
    return Pair(
        better,
        than,
        {seed: scale * difference(one, other, seed) for seed in numbers},
        unreached=sum(not isfinite(sample.values[seed]) for seed in numbers for sample in (one, other)),
        neither=sum(not isfinite(one.values[seed]) and not isfinite(other.values[seed]) for seed in numbers),
        no_number=len(both) - len(numbers),
        counted=one.counted,
    )


def difference(one: Sample, other: Sample, seed: int) -> float:
    """By how much `one` is better than `other`."""
    first, second = one.values[seed], other.values[seed]
    if first == second:
        return 0.0
    first, second = (
        _at_least(sample, seed, beside) if mine == inf else mine
        for sample, mine, beside in ((one, first, second), (other, second, first))
    )
    return first - second if one.higher else second - first


def by_seed(pairs: Sequence[Pair]) -> list[float]:
    """The mean difference of each seed that all pairs have; a mean over changing pairs would say nothing."""
    if not pairs:
        return []
    seeds = sorted(set.intersection(*[set(pair.differences) for pair in pairs]))
    return [fmean(pair.differences[seed] for pair in pairs) for seed in seeds]


def of_all(pairs: Sequence[Pair], overall: Interval | None, margin: float, tries: int) -> Verdict:
    """Return the verdict on a claim about each pair: one refutes it, and one on the other side leaves it undecided."""
    if refuting(pairs, margin, tries):
        return "does not hold"
    found = verdict(overall, margin)
    return found if found != "holds" or all(agrees(pair, margin) for pair in pairs) else "undecided"


def agrees(pair: Pair, margin: float) -> bool:
    """Tell if its mean lies on the claimed side, by more than rounding."""
    found = pair.interval
    return found is not None and found.mean + margin > ROUNDING * max(1.0, abs(found.mean))


def refuting(pairs: Sequence[Pair], margin: float, tries: int) -> tuple[Pair, ...]:
    """The pairs that are on the other side beyond what chance makes of so many tries."""
    confidence = 1 - (1 - CONFIDENCE) / max(tries, 1)
    return tuple(
        pair
        for pair in pairs
        if verdict(interval(list(pair.differences.values()), confidence, counted=pair.counted), margin)
        == "does not hold"
    )


def interval(values: Sequence[float], confidence: float = CONFIDENCE, *, counted: bool = False) -> Interval | None:
    """The mean and its Student-t interval."""
    from scipy.special import stdtrit  # half a second, and only reports need it

    if not values:
        return None
    mean, n = fmean(values), len(values)
    if n == 1 or (counted and max(values) - min(values) <= ROUNDING < abs(mean)):
        return Interval(mean, -inf, inf, n)
    reach = float(stdtrit(n - 1, 0.5 + confidence / 2)) * stdev(values) / sqrt(n)
    return Interval(mean, mean - reach, mean + reach, n)


def verdict(found: Interval | None, margin: float = 0.0) -> Verdict:
    if found is None:
        return "undecided"
    if found.low > -margin:
        return "holds"
    return "does not hold" if found.high < -margin else "undecided"


def _at_least(sample: Sample, seed: int, beside: float) -> float:
    """Return the least that a run without the target would have needed: a round more than it, or the other, had."""
    cost, rounds = sample.spent[seed]
    return max(cost, beside) * (rounds + 1) / rounds
