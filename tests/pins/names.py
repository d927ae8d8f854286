"""Names, digests and streams that others rely on: what a user writes, and what is drawn."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from recorded_folders import fedbraid

import fedbraid as fb
from fedbraid import data, models
from fedbraid.core.optimizer import OPTIMIZERS
from fedbraid.core.random import stream
from fedbraid.strands import METHODS, STRANDS
from fedbraid.studies import recipe_files
from fedbraid.studies.study_plan import planned, table

QUICK = ("example", "fedskip-table2", "feddisco-table4", "asd-figure3")
"""Recipes that are planned in little time."""
COMMANDS = (
    *(
        "run",
        "compare",
        "methods",
        "models",
        "check",
        "bench",
        "predict",
        "analyze",
        "privacy",
        "keys",
        "serve",
        "join",
    ),
    *("data list", "data inspect", "data partition", "data get"),
    *("study list", "study check", "study run", "study report", "study overview"),
)


def names() -> dict[str, Any]:
    return {
        "public": sorted(fb.__all__),
        "hooks": sorted(name for name in dir(fb.Strand) if not name.startswith("_")),
        "methods": METHODS,
        "config": as_values(fb.Config()),
        "commands": {command: options(command) for command in COMMANDS},
        "options": options_of_entries(),
        "streams": streams(),
        "recipes": {file.stem: digests(file) for file in files()},
    }


def as_values(config: fb.Config) -> Any:
    """A configuration as JSON has it."""
    return json.loads(json.dumps(asdict(config)))


def options_of_entries() -> dict[str, dict[str, list[str]]]:
    """The options of every data set, partition, network and optimizer, and every strand's hyper-parameters."""
    shaping = set(data.SHAPING)
    return {
        "data": {entry.name: sorted({*entry.options, *shaping}) for entry in data.describe()},
        "partition": {entry.name: sorted(entry.options) for entry in data.PARTITIONS},
        "model": {entry.name: sorted(entry.options) for entry in models.describe()},
        "optimizer": {name: sorted(f.name for f in fields(kind)) for name, kind in OPTIMIZERS.items()},
        "strands": {strand.name: sorted(f.name for f in fields(strand)) for strand in STRANDS},
    }


def streams() -> dict[str, list[Any]]:
    """Draws of every kind from streams of some purposes, rounds and clients."""
    drawn: dict[str, list[Any]] = {}
    for purpose in ("order", "sampling", "partition", "mixup", "scaffold.noise"):
        for seed, round, client in ((0, 0, None), (7, 3, 5), (2**63 - 1, 199, 3399)):
            of = partial(stream, seed, purpose, round=round, **({} if client is None else {"client": client}))
            drawn[f"{purpose} {seed} {round} {client}"] = [
                of().random(2).tolist(),
                of().normal(size=2).tolist(),
                of().permutation(6).tolist(),
                of().integers(0, 1000, 2).tolist(),
                of().dirichlet(np.ones(2)).tolist(),
            ]
    return drawn


def options(command: str) -> list[str]:
    """The options and arguments that a command's help has."""
    with contextlib.redirect_stdout(io.StringIO()) as said, patch.dict(os.environ, {"COLUMNS": "300", "TERM": "dumb"}):
        assert fedbraid(*command.split(), "--help") == 0
    return sorted(set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", said.getvalue())))


def files() -> Sequence[Path]:
    return recipe_files.files([])


def digests(file: Path) -> list[Any]:
    """How many runs a recipe has, a digest of theirs, and one of the recipe's text."""
    runs = [run.digest for run in planned([table(recipe_files.load(file))])]
    texts = (json.dumps(runs).encode(), file.read_bytes())
    return [len(runs), *(hashlib.sha256(text).hexdigest()[:16] for text in texts)]
