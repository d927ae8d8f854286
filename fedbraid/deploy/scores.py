"""Scores of a model on a client's own samples, and their form in messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fedbraid.core.task import Task
from fedbraid.deploy.messages import Message, MessageRefused

SamplePart = Literal["test", "validation"]
"""Samples that a client does not train on: those it came with, and those it holds out of its training samples."""
PARTS: tuple[SamplePart, ...] = get_args(SamplePart)
COUNTED: dict[SamplePart, str] = {"test": "tests", "validation": "validation"}
"""Under which word a client tells how many it has."""


@dataclass(frozen=True)
class Score:
    """Sums over a client's samples of one part."""

    samples: int
    loss: float
    hits: int | None  # how many were right; None in a regression

    def payload(self, part: SamplePart) -> dict[str, Any]:
        before = _before(part)
        hits = {} if self.hits is None else {f"{before}hits": self.hits}
        return {COUNTED[part]: self.samples, f"{before}loss": self.loss, **hits}

    @staticmethod
    def read(answer: Message, part: SamplePart) -> Score:
        before = _before(part)
        samples, loss = answer.count(COUNTED[part], 1), answer.number(f"{before}loss")
        hits = answer.count(f"{before}hits") if f"{before}hits" in answer.payload else None
        if hits is not None and hits > samples:
            raise MessageRefused(f"it says that {hits:,} of its {samples:,} {part} samples were right")
        return Score(samples, loss, hits)


def _before(part: SamplePart) -> str:
    """Return the prefix of a part's keys; test scores, which came first, have none."""
    return "" if part == "test" else f"{part}_"


def fits(score: Score, task: Task) -> bool:
    """Return whether a score counts right answers exactly where the task is classification."""
    return (score.hits is not None) == (task == "classification")


def counts_of(answer: Message) -> dict[SamplePart, int]:
    """Read how many samples of each part a client has; of validation only if some are held out."""
    return {
        part: answer.count(word) if word in answer.payload or part == "test" else 0 for part, word in COUNTED.items()
    }


def asking(parts: Sequence[SamplePart]) -> dict[str, Any]:
    """Return the payload of a request for these parts; empty for test samples alone."""
    return {} if list(parts) == ["test"] else {"parts": list(parts)}


def asked(message: Message) -> list[SamplePart]:
    """The inverse."""
    wanted = message.payload.get("parts", ["test"])
    if not isinstance(wanted, list) or not wanted or not all(part in PARTS for part in wanted):
        raise MessageRefused("it asks for scores on samples that nobody knows of")
    return [part for part in PARTS if part in wanted]


def accuracy(scores: Sequence[Score]) -> float | None:
    """Over all samples together."""
    hits = [score.hits for score in scores if score.hits is not None]
    return sum(hits) / sum(score.samples for score in scores) if hits else None


def loss(scores: Sequence[Score]) -> float | None:
    return sum(score.loss for score in scores) / sum(score.samples for score in scores) if scores else None


def of_part(scores: Mapping[str, Mapping[SamplePart, Score]], part: SamplePart) -> dict[str, Score]:
    """The clients that told of a part."""
    return {name: parts[part] for name, parts in scores.items() if part in parts}
