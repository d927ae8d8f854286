"""Checks of a cell's run that need none of its data."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np

from fedbraid import data
from fedbraid.config.schema import Config
from fedbraid.data import Dataset, Split
from fedbraid.errors import UserError
from fedbraid.training.simulation import KNOW_THEIR_CLIENTS

FROM_ELSEWHERE = {"assignment", "flower"}
"""Partitions that need a file or a package which another machine may have."""
FEW = 2
"""Clients that any options do with, if some number does."""


def check_possible(config: Config) -> None:
    """Refuse what no data set would make possible."""
    part, sampled = config.partition, config.sampling.clients
    options = json.dumps(part.options, sort_keys=True)
    if part.name not in FROM_ELSEWHERE and (reason := _never(part.name, part.clients, options)):
        raise UserError(f"partition {part.name!r}: {reason}")
    if part.clients and sampled > part.clients:
        raise UserError(
            f"sampling.clients is {sampled}, but there are {part.clients} clients; choose at most {part.clients}"
        )


@cache  # a table's cells share few partitions
def _never(name: str, clients: int, options: str) -> str:
    """Options that two quite different data sets refuse in the same words are refused by every one."""
    one, other = (_refusal(name, clients, json.loads(options), *sizes) for sizes in ((10, 60), (7, 90)))
    return one if one == other else ""


def _refusal(name: str, clients: int, options: dict[str, Any], classes: int, each: int) -> str:
    labels = np.repeat(np.arange(classes), each)
    split = Split(labels, labels, users=labels)
    some = (clients or None) if name in KNOW_THEIR_CLIENTS else FEW
    try:
        data.make_partition(Dataset("", split, split, classes), name, some, 0, **options)
    except UserError as error:
        return str(error)
    return ""
