"""A study made up for the tests, small and fully known: its runs are records like those of real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedbraid.config.schema import to_dict
from fedbraid.studies.cell_metrics import parse
from fedbraid.studies.cells import cells
from fedbraid.studies.recipe import Claim, FigureRequest, Line, Override, Recipe
from fedbraid.studies.run_digest import digest
from fedbraid.studies.run_records import Record, record_of
from fedbraid.studies.table_results import CellResult, Results

ENVIRONMENT = {"fedbraid": "0.1.0", "torch": "2", "python": "3.11", "machine": "<b>two</b> cores", "gpu": "none"}
Course = Sequence[float]


def recipe(**changes: Any) -> Recipe:
    """Two rows, two columns; the paper has numbers for three of the cells."""
    return Recipe(
        **{
            "name": "made-table1",
            "paper": "made",
            "item": "Table 1",
            "title": "Two methods & 50 % of <clients>",
            "metric": "best",
            "base": {"rounds": 3, "data": {"name": "digits"}, "model": {"name": "mlp", "hidden": [8, 8]}},
            "rows": (
                Line("FedAvg", {"method": "fedavg"}, note="the baseline"),
                Line("FedAvg+Disco", {"method": "fedavg+disco"}),
            ),
            "columns": (
                Line("β = 0.1", {"partition": {"name": "dirichlet", "beta": 0.1}}, x=0.1),
                Line("β = 0.5", {"partition": {"name": "dirichlet", "beta": 0.5}}, x=0.5),
            ),
            "overrides": (Override(("*Disco",), ("β = 0.5",), {"strands": {"disco": {"a": 0.3}}}),),
            "numbers": {
                "FedAvg": {"β = 0.1": [60.0, 0.5], "β = 0.5": [70.0]},
                "FedAvg+Disco": {"β = 0.1": [61.0, 0.4]},
            },
            "claims": (Claim("Disco improves FedAvg", ("FedAvg+Disco",), ("FedAvg",)),),
            "readings": ("The paper's text says 10 clients & its code says 20.",),
        }
        | changes
    )


COURSES: dict[tuple[str, str], Mapping[int, Course]] = {
    ("FedAvg", "β = 0.1"): {0: (0.3, 0.6, 0.58), 1: (0.3, 0.59, 0.602), 2: (0.31, 0.5, 0.606)},
    ("FedAvg", "β = 0.5"): {0: (0.4, 0.65, 0.66), 1: (0.4, 0.62, 0.65), 2: (0.41, 0.6, 0.655)},
    ("FedAvg+Disco", "β = 0.1"): {0: (0.3, 0.64, 0.63), 1: (0.3, 0.6, 0.652), 2: (0.3, 0.62, 0.651)},
    ("FedAvg+Disco", "β = 0.5"): {0: (0.5, 0.68, 0.70), 1: (0.5, 0.66, 0.681), 2: (0.5, 0.65, 0.70)},
}
"""Accuracies after rounds 1, 2, 3, by seed."""


def results(
    of: Recipe | None = None,
    courses: Mapping[tuple[str, str], Mapping[int, Course]] = COURSES,
    skipped: Mapping[tuple[str, str], str] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    variant: str = "",
) -> Results:
    """What a runner would have found for these courses of its runs."""
    of, skipped = of or recipe(), skipped or {}
    made = {}
    for place, cell in cells(of).items():
        settings, metric, reason = cell.config, parse(cell.metric), cell.skip or skipped.get(place, "")
        found = {
            seed: record(settings, seed, course)
            for seed, course in courses.get(place, {}).items()
            if settings is not None and not reason
        }
        values = {seed: value for seed, run in found.items() if (value := metric.read(run)) is not None}
        without = tuple(seed for seed in found if seed not in values)
        missing = () if reason else tuple(seed for seed in seeds if seed not in found)
        made[place] = CellResult(*place, settings, cell.metric, values, found, missing, without, cell.label, reason)
    return Results(made, tuple(seeds), variant)


def record(config: Any, seed: int, course: Course) -> Record:
    rounds = [
        {
            "round": number,
            "accuracy": accuracy,
            "loss": 1 - accuracy,
            "finite": True,
            "train_loss": 1.0 / number,
            "bytes_down": 1000,
            "bytes_up": 500,
            "forward_samples": 20,
            "backward_samples": 10,
            "seconds": 30.0 + seed,
        }
        for number, accuracy in enumerate(course, start=1)
    ]
    values = to_dict(config) | {"seed": seed}
    return record_of(digest(config), values, rounds, [[3, 1], [0, 4]], {"kind": "stack", "device": "cpu"}, ENVIRONMENT)


PICTURES = (
    FigureRequest("curves"),
    FigureRequest("curves", rows=("FedAvg",), columns=("β = 0.1",), x="bytes"),
    FigureRequest("line", x="β", log_x=True),
    FigureRequest("bars"),
)
