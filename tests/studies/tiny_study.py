"""A made-up table on the built-in digits, small enough to be run in a second, also by other processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedbraid.studies import recipe_files
from fedbraid.studies.run_records import Record, record_of
from fedbraid.studies.study_plan import Changes, PlannedRun, planned, table
from fedbraid.studies.study_runner import State, conduct

RECIPE = """
paper = "made up"
item = "Table 1"
title = "Two methods on two splits"
metric = "last"
seeds = 2

[base]
rounds = 4
data = { name = "digits", samples = 120, test_samples = 60 }
model = { name = "logistic" }
local = { batch = 8 }
sampling = { clients = 4 }
strands = { disco = { a = 0.4 } }
engine = { kind = "stack", device = "cpu", dtype = "float64" }
save = { every = 2 }

[small]
rounds = 2

[[columns]]
name = "skewed"
set = { partition = { name = "dirichlet", clients = 6, beta = 0.3, min_size = 3 } }
x = 0.3
[[columns]]
name = "alike"
set = { partition = { name = "iid", clients = 6 } }
small = { local = { batch = 16 } }
x = 100

[[rows]]
name = "FedAvg"
set = { method = "fedavg" }
[[rows]]
name = "FedAvg+Disco"
set = { method = "fedavg+disco" }
[[rows]]
name = "FedAvg again"
metric = "rounds_to(target=0.5)"
set = { method = "fedavg" }

[[overrides]]
rows = ["*+Disco"]
columns = ["alike"]
set = { strands = { disco = { a = 0.2 } } }
[[overrides]]
rows = ["FedAvg again"]
columns = ["skewed"]
skip = "the paper has no such number"

[numbers."FedAvg"]
"skewed" = [68.47, 0.25]
"alike" = 70

[[claims]]
says = "Disco helps"
better = ["FedAvg+Disco"]
than = ["FedAvg"]

[[pictures]]
kind = "curves"
rows = ["FedAvg", "*+Disco"]
"""
RUNS = 8
"""Its distinct runs: three cells share what two ask for."""


def written(folder: Path, text: str = RECIPE, name: str = "tiny") -> Path:
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path


def runs_of(path: Path, **changes: Any) -> list[PlannedRun]:
    return planned([table(recipe_files.load(path), Changes(**changes))])


def conducted(path: Path, out: Path, **options: Any) -> State:
    """The whole table; for other processes too."""
    return conduct(runs_of(path), out, **options)


def timeless(out: Path) -> dict[str, Any]:
    """All records, apart from how long anything took."""
    found = {}
    for file in sorted((out / "runs").glob("*/*.json")):
        values = json.loads(file.read_text())
        values["series"].pop("seconds")
        values["totals"].pop("seconds")
        found[str(file.relative_to(out))] = values
    return found


def made_up_record(accuracies: list[float | None], **more: Any) -> Record:
    """A record of rounds with these accuracies; `more` are other keys of the log, a value a round."""
    rounds = [
        {
            "round": k + 1,
            "finite": True,
            "accuracy": accuracy,
            "loss": None if accuracy is None else 1 - accuracy,
            "per_class": None if accuracy is None else [accuracy, accuracy / 2, None],
            "bytes_down": 10,
            "bytes_up": 5,
            "forward_samples": 100,
            "backward_samples": 50,
            "seconds": 2.0,
            **{key: values[k] for key, values in more.items()},
        }
        for k, accuracy in enumerate(accuracies)
    ]
    config = {"seed": 0, "rounds": len(rounds)}
    return record_of("0" * 16, config, rounds, [[3, 4]], {"kind": "stack"}, {"torch": "2"})
