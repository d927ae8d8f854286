"""Series of a run's rounds, read from its record: the values of a key of the log, and what was spent."""

from __future__ import annotations

from itertools import accumulate

from fedbraid.core.metrics import METRICS as FURTHER
from fedbraid.studies.run_records import Record

ACCURACY = "accuracy"
SHARES = ACCURACY, "client_accuracy", "personal_accuracy", "group_accuracy", "validation_accuracy"
"""Keys of the log, or tables in it, whose numbers are shares."""

Course = list[tuple[int, float]]


def course(record: Record, of: str) -> Course:
    """The rounds that have a value of `of`, and the value. What a model that is not finite scores says nothing."""
    values, finite = record.series.get(of, ()), record.series["finite"]
    return [
        (number, float(value))
        for number, value, counts in zip(record.rounds, values, finite, strict=False)
        if value is not None and (counts or not is_score(of))
    ]


def is_score(of: str) -> bool:
    """Tell if it scores the model, and is not what was spent or seen on the way."""
    return is_share(of) or of in ("loss", "validation_loss") or of in FURTHER


def diverged(record: Record, of: str, by: int = 0) -> bool:
    """Tell if the model that `of` scores was not finite at the end, or by a round."""
    last = sum(number <= by for number in record.rounds) - 1 if by else -1
    lost = not record.series["finite"][last] and of in record.series
    return lost and (is_score(of) or record.series[of][last] is None)


def is_share(of: str) -> bool:
    return of.split(".")[0] in SHARES or (of in FURTHER and FURTHER[of].is_share)


def more_is_better(of: str) -> bool:
    return FURTHER[of].higher_is_better if of in FURTHER else is_share(of) and not of.endswith(".std")


def aggregations(record: Record) -> list[int]:
    """Return the number of aggregations after each round: FedSkip's does only now and then."""
    skip = record.config.get("strands", {}).get("skip", {"every": 1, "final_aggregate": False})
    rounds = record.config["rounds"]
    averaged = [n % skip["every"] == 0 or (n == rounds and skip["final_aggregate"]) for n in record.rounds]
    return list(accumulate(map(int, averaged)))


def moved(record: Record) -> list[float]:
    """The bytes of each round, down and up."""
    return [down + up for down, up in zip(record.series["bytes_down"], record.series["bytes_up"], strict=True)]
