"""Notes beside a table's numbers: how they were read, what differs from the paper, what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf, isnan

from fedbraid.report.words import MARK, NOTHING, SAME, listed, pattern, signed
from fedbraid.studies.cell_evidence import EQUIVALENCES, Equivalence
from fedbraid.studies.claims import Finding, Interval, Verdict
from fedbraid.studies.naming import AT, Place
from fedbraid.studies.recipe import Recipe
from fedbraid.studies.table_entries import TableEntry
from fedbraid.studies.table_results import Results

CHOSEN_ON_TEST = "best round, chosen on the test set"

Entries = Mapping[Place, TableEntry]


def headline(entries: Entries, found: Sequence[Finding], variant: str = "") -> str:
    """The table in a sentence or two; numbers of other settings are not held against the paper's."""
    sentences = []
    if found:
        counts = Counter(one.verdict for one in found)
        words = [f"{n} {told_as[n > 1]}" for verdict, told_as in WORDS.items() if (n := counts[verdict])]
        sentences.append(
            f"Of {len(found)} claims, {listed(words)}." if len(found) > 1 else f"The claim {words[0][2:]}."
        )
        sentences += _so_far([one for one in found if one.missing])
    compared = [entry for entry in entries.values() if entry.difference is not None]
    if compared and not variant:
        sentences += _equivalent([entry.equivalence for entry in compared if entry.equivalence], compared[0].margin)
    return " ".join(sentences) or "Our numbers alone, with none beside them."


def _equivalent(judged: Sequence[Equivalence], margin: float) -> list[str]:
    """Count the accuracies that are the paper's, in a sentence."""
    if not judged:
        return []
    same, differ, undecided = (judged.count(verdict) for verdict in EQUIVALENCES)
    verdicts = (
        f"{same} {_are(same)} the same within {_points(margin)}, {differ} {'differs' if differ == 1 else 'differ'}"
    )
    return [f"Of {_count(len(judged), 'accuracy', 'accuracies')}, {verdicts} and {undecided} {_are(undecided)} open."]


def _points(margin: float) -> str:
    return f"{margin:g} point{'s' * (margin != 1)}"


def equivalence_words(margin: float) -> str:
    """Return what the marks at differences mean."""
    return (
        f"{SAME} the same within {_points(margin)}, {MARK} another one: the 95 % interval of our mean lies within, or "
        "outside of, that margin around the paper's; no mark: neither, as with one seed"
    )


def _so_far(found: Sequence[Finding]) -> list[str]:
    """Return the verdicts so far of claims of which only some pairs were run."""
    counts = Counter(one.so_far for one in found)
    words = [f"{n} {WORDS[v][n > 1]}" for v in WORDS if v != "undecided" and (n := counts[v])]
    return [f"As far as it was run, {listed(words)}."] if words else []


WORDS: dict[Verdict, tuple[str, str]] = {
    "holds": ("holds", "hold"),
    "does not hold": ("does not hold", "do not hold"),
    "undecided": ("is undecided", "are undecided"),
}
"""Of one claim, of several."""


def warnings(recipe: Recipe, results: Results, entries: Entries) -> list[str]:
    """Return what stands before all numbers: in what the runs are not those of the recipe."""
    sentences = []
    if results.variant:
        sentences.append(
            f"NOT THE PAPER'S SETTINGS: everything here was run with {results.variant}. The numbers cannot be "
            "compared with the paper's, and the claims are tested on these settings only."
            if recipe.numbers
            else f"NOT THE RECIPE'S SETTINGS: everything here was run with {results.variant}."
        )
    if len(results.seeds) != recipe.seeds:
        sentences.append(f"{_count(len(results.seeds), 'seed')} instead of the recipe's {recipe.seeds}.")
    wanted = [entry for entry in entries.values() if not entry.skipped]
    refused = sum(bool(entry.refused and not entry.values) for entry in wanted)
    wanted = [entry for entry in wanted if entry.values or not entry.refused]
    absent = sum(not entry.values and not entry.without for entry in wanted)
    partly = sum(bool((entry.values or entry.without) and entry.missing) for entry in wanted)
    if absent:
        sentences.append(f"{absent} of {_count(len(wanted), 'cell')} {_were(absent)} not run yet.")
    if refused:
        sentences.append(
            f"{_count(refused, 'cell')} cannot be run as {'it is' if refused == 1 else 'they are'} asked for."
        )
    if partly:
        sentences.append(f"{_count(partly, 'cell')} {_lack(partly)} some of {'its' if partly == 1 else 'their'} seeds.")
    for metric in dict.fromkeys(entry.metric.text for entry in wanted if entry.without):
        sentences.append(f"Runs have no value of {metric}: their log does not have it.")
    return sentences


def notes(recipe: Recipe, results: Results, entries: Entries) -> list[str]:
    """Return the notes below the table: what its numbers are."""
    there = [entry for entry in entries.values() if entry.values]
    sentences = _about_metrics(recipe, entries)
    if any(len(entry.values) > 1 for entry in there):
        fewer = " where no other number stands beside it" if any(entry.missing for entry in there) else ""
        sentences.append(f"± sample standard deviation over {_count(len(results.seeds), 'seed')}{fewer}")
    elif there:
        sentences.append("one seed: no spread known")
    if not recipe.compare:
        sentences.append("no difference: the paper's numbers are of other settings than ours")
    elif any(entry.paper for entry in entries.values()):
        marks = f"; {equivalence_words(recipe.equivalence)}" if any(e.equivalence for e in there) else ""
        sentences.append(f"difference: ours minus the paper's{marks}")
    else:
        figure = recipe.item.lower().startswith("fig")
        sentences.append(
            "the paper gives a picture only, no numbers" if figure else "the recipe has no numbers of a paper"
        )
    if any(inf in entry.values.values() for entry in there):
        sentences.append("never: no run reached the target; (2/3 reached): mean over those that did")
    if any(entry.never and not entry.metric.never for entry in there):
        sentences.append("(2/3 reached), of a speedup: a run that never got there counts as 0")
    if any(any(map(isnan, entry.values.values())) for entry in there):
        sentences.append("diverged: at least one run ended without a number")
    sentences += _about_lost(recipe, there)
    choices = dict.fromkeys(cell.choice for cell in results.cells.values() if cell.choice)
    for choice in choices:
        places = {place for place, cell in results.cells.items() if cell.choice == choice}
        sentences.append(f"{_named(places, recipe)}, tuned: {choice}")
    sentences += [f"{line.name}: {line.note}" for line in (*recipe.columns, *recipe.rows) if line.note]
    reasons = dict.fromkeys(entry.skipped for entry in entries.values() if entry.skipped)
    for reason in reasons:
        places = {place for place, entry in entries.items() if entry.skipped == reason}
        sentences.append(f"{NOTHING} {_named(places, recipe)}: {reason}")
    for reason in dict.fromkeys(entry.refused for entry in entries.values() if entry.refused):
        places = {place for place, entry in entries.items() if entry.refused == reason}
        sentences.append(f"{_named(places, recipe)} cannot be run: {reason}")
    return sentences


def _about_lost(recipe: Recipe, there: Sequence[TableEntry]) -> list[str]:
    """Runs that diverged and have a number all the same, which nothing in the table would tell."""
    groups: dict[str, set[Place]] = {}
    for entry in there:
        rounds = [entry.lost[seed] for seed, value in entry.values.items() if seed in entry.lost and not isnan(value)]
        if rounds:
            since = f"round{'s' * (len({*rounds}) > 1)} {listed([str(number) for number in sorted({*rounds})])}"
            best = entry.metric.text.split("(")[0] == "best"
            words = f"{len(rounds)} of {_count(len(entry.values), 'run')} diverged, not finite from {since} on; " + (
                "the best is of the rounds before" if best else "scores from there on do not count"
            )
            groups.setdefault(words, set()).add(entry.place)
    return [f"{_named(places, recipe)}: {words}" for words, places in groups.items()]


def finding_words(finding: Finding, digits: int) -> str:
    """A claim's numbers: `mean difference +1.20 points, 95 % interval +0.80 to +1.60 (5 seeds); 8 of 8 pairs …`."""
    agreeing, given = finding.in_paper
    contradicted = f"in the paper's own numbers {agreeing} of {_count(given, 'pair')}" if agreeing < given else ""
    return "; ".join(filter(None, [_our_words(finding, digits), contradicted]))


def _our_words(finding: Finding, digits: int) -> str:
    overall = finding.overall
    if overall is None or finding.none_reached:
        return _why_nothing(finding)
    parts = [f"mean difference {interval_words(overall, digits, finding.unit)}"]
    if finding.claim.margin:
        parts[0] += f", against a margin of {finding.claim.margin:g}"
    parts.append(f"{finding.agreeing} of {_count(len(finding.pairs), 'pair')} on the claimed side")
    if finding.against:
        names = listed([f"{AT.join(pair.better)} behind {AT.join(pair.than)}" for pair in finding.against])
        parts.append(f"beyond chance on the other: {names}")
    elif finding.on_average == "holds" and finding.so_far != "holds" and not finding.lost:
        parts.append("so it holds on average, not for every pair")
    if finding.missing:
        run, pairs = len(finding.pairs), len(finding.pairs) + len(finding.missing)
        parts.insert(0, f"with {run} of {_count(pairs, 'pair')} run it {WORDS[finding.so_far][0]}")
    neither = sum(pair.neither for pair in finding.pairs)
    if neither:
        parts.append(f"{_count(neither, 'difference')} {_are(neither)} 0 because neither run reached the target")
    unreached = sum(pair.unreached for pair in finding.pairs) - 2 * neither
    if unreached:
        parts.append(
            f"{_count(unreached, 'run')} never reached the target and {_count_as(unreached)} "
            "one round more than the longer of the pair, so that the one that reached it is the better"
        )
    if finding.lost:
        parts.append(
            f"{_count(finding.lost, 'difference')} left out because a run diverged, which leaves the claim undecided"
        )
    return "; ".join(parts)


def _why_nothing(finding: Finding) -> str:
    if finding.none_reached:
        return "nothing to compare: no run reached the target"
    if finding.lost:
        return "nothing to compare: in every seed a run of some pair diverged"
    if finding.pairs:
        return "nothing to compare: the pairs that were run have no seed in common"
    return "nothing to compare: the runs have no such value" if finding.no_value else "nothing to compare was run yet"


def interval_words(found: Interval, digits: int, unit: str) -> str:
    """`+1.20 points, 95 % interval +0.80 to +1.60 (5 seeds)`."""
    largest = max(map(abs, (found.mean, found.low, found.high) if found.known else (found.mean,)))
    how = pattern(largest, digits, share=unit.startswith(("points", "%")))
    size = f"{signed(found.mean, how)} {unit}".strip()
    if not found.known:
        return f"{size} ({'one seed' if found.n == 1 else f'on each of {found.n} seeds: no interval'})"
    return f"{size}, 95 % interval {signed(found.low, how)} to {signed(found.high, how)} ({found.n} seeds)"


def _about_metrics(recipe: Recipe, entries: Entries) -> list[str]:
    groups: dict[str, set[Place]] = {}
    for place, entry in entries.items():
        if not entry.skipped:
            groups.setdefault(_metric_words(entry, recipe), set()).add(place)
    if len(groups) == 1:
        return [f"numbers: {next(iter(groups))}"]
    return [f"{_named(places, recipe)}: {words}" for words, places in groups.items()]


def _metric_words(entry: TableEntry, recipe: Recipe) -> str:
    share = " in %" if recipe.unit == "%" and entry.metric.percent == 100.0 else ""
    chosen = f" ({CHOSEN_ON_TEST})" if entry.metric.text.split("(")[0] == "best" else ""
    way = "more is better" if entry.metric.higher_is_better else "less is better"
    better = "" if entry.metric.describes else f"; {way}"
    nothing = ", nothing is trained" if recipe.calculation else ""
    return f"{entry.metric.label}{nothing}{share}{chosen}{better}"


def _named(places: set[Place], recipe: Recipe) -> str:
    """Cells by as few names as will do: whole columns, whole rows, or one by one."""
    rows, columns = ([line.name for line in lines] for lines in (recipe.rows, recipe.columns))
    of_rows, of_columns = {row for row, _ in places}, {column for _, column in places}
    if len(places) == len(rows) * len(of_columns):
        return listed([column for column in columns if column in of_columns])
    if len(places) == len(columns) * len(of_rows):
        return listed([row for row in rows if row in of_rows])
    return listed([AT.join((row, column)) for row in rows for column in columns if (row, column) in places])


def _count(number: int, noun: str, several: str = "") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {several or f'{noun}s'}"


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _lack(number: int) -> str:
    return "lacks" if number == 1 else "lack"


def _count_as(number: int) -> str:
    return "counts as" if number == 1 else "count as"
