"""Analyses: the quantities by which papers explain their methods, in a run or of recorded runs.

analyses = ["drift", "fairness"]          in a run's configuration: numbers in its log
analyze("runs/mine", ["drift"])           of a recorded run: a table, numbers and a picture
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbraid.analyses.analysis import Analysis
from fedbraid.analyses.index import OF_ONE, OF_SEVERAL
from fedbraid.config.registry import Entry, find
from fedbraid.config.terms import terms
from fedbraid.errors import UserError

if TYPE_CHECKING:
    from fedbraid.analyses.recorded import Recorded
    from fedbraid.training.user_objects import UserObjects

__all__ = ["Analysis", "analyze", "headline"]

AN_ANALYSIS = "an analysis; write a name such as drift, with options in brackets: features(clients=3)"


def analyze(
    run: str | PathLike[str] | Sequence[str | PathLike[str]],
    what: str | Sequence[str],
    *,
    objects: UserObjects | None = None,
    device: str = "",
    given: UserObjects | None = None,
) -> list[Analysis]:
    """Analyse a recorded run, or several; nothing in their directories changes.

    `what` is a name or several, perhaps with options: `["drift", "features(clients=3)"]`. Those that look at one run
    are made of each run in turn, those that look at several at once (cost, privacy) once of all of them. `objects` is
    what the runs were given beside their configuration: a data set, a network, strands of your own (`given` is its old
    name).
    """
    from fedbraid.analyses.recorded import Recorded
    from fedbraid.training.user_objects import UserObjects

    if given is not None:
        warnings.warn("analyze(given=…) is called objects now", DeprecationWarning, stacklevel=2)
    objects = objects or given or UserObjects()
    places = [run] if isinstance(run, str | PathLike) else list(run)
    wanted = [_found(text) for text in ([what] if isinstance(what, str) else what)]
    with ExitStack() as locks:
        runs = [Recorded(Path(place), objects, device) for place in places]
        for one in runs:
            locks.enter_context(one.directory.locked())
        return list(_made(wanted, runs))


def headline(run: str | PathLike[str], names: Sequence[str], **more: Any) -> dict[str, float]:
    """The numbers of these analyses of a run, as `name.quantity`; other arguments as in `analyze`."""
    return {key: value for analysis in analyze(run, names, **more) for key, value in analysis.numbers.items()}


def check(text: str) -> None:
    """Raise `UserError` if `text` names no analysis, or options that it does not take."""
    _found(text)


def of_several(text: str) -> bool:
    """Tell if `text` names an analysis of several runs at once."""
    return _found(text)[0] in OF_SEVERAL


def _found(text: str) -> tuple[Entry[Analysis], dict[str, Any]]:
    """Return the entry that `features(clients=3)` names, and its options."""
    found = terms(text, AN_ANALYSIS)
    if len(found) != 1:
        raise UserError(f"{text!r} is not {AN_ANALYSIS}")
    name, options = found[0]
    return find("analysis", name, (*OF_ONE, *OF_SEVERAL), options), options


def _made(wanted: Sequence[tuple[Entry[Analysis], dict[str, Any]]], runs: Sequence[Recorded]) -> Iterator[Analysis]:
    for entry, options in wanted:
        if entry in OF_SEVERAL:
            yield entry.make(runs, **options)
        else:
            for one in runs:
                yield entry.make(one, **options)
