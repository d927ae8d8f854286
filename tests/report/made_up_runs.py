"""Runs made up for the tests, small and fully known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedbraid.report.run_groups import RunRecord

HOSTILE = (
    "<script>alert(1)</script>",
    "\"quoted\" & 'single' | piped",
    "日本語 ünïcode ± 🎉",
    "_private $x^2$ [bold]b[/bold] **s** `c`",
    "line\nbreak \x1b[31mred \u202e turned",
    "a" * 200,
)


def entry(number: int, accuracy: float | None = None, **changes: Any) -> dict[str, Any]:
    return {
        "round": number,
        "accuracy": accuracy,
        "loss": None if accuracy is None else 1 - accuracy,
        "per_class": None if accuracy is None else [accuracy, accuracy / 2, 1.0],
        "train_loss": 1.0 / number,
        "bytes_down": 1_000_000,
        "bytes_up": 500_000,
        "forward_samples": 20,
        "backward_samples": 10,
        "seconds": 0.5,
        "clients": 2,
    } | changes


def run(label: str, accuracies: Sequence[float | None], seed: int = 0, **changes: Any) -> RunRecord:
    rounds = tuple(entry(number, accuracy, **changes) for number, accuracy in enumerate(accuracies, start=1))
    settings = {"data": {"name": "digits"}, "partition": {"alpha": 0.1, "seed": seed}, "rounds": 3, "method": label}
    return RunRecord(label, seed, rounds, settings, [[3, 0, 1], [0, 5, 2]])


def regression(label: str, losses: Sequence[float | None], seed: int = 0, **changes: Any) -> RunRecord:
    rounds = tuple(entry(number, loss=loss, **changes) for number, loss in enumerate(losses, start=1))
    return RunRecord(label, seed, rounds, {}, None)
