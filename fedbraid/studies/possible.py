"""What can be said against a cell's run before its data are there."""

from __future__ import annotations

import numpy as np

from fedbraid import data
from fedbraid.config import Config, PartitionConfig
from fedbraid.data import Dataset, Split
from fedbraid.errors import UserError
from fedbraid.experiment import KNOW_THEIR_CLIENTS

FROM_ELSEWHERE = {"assignment", "flower"}
"""Partitions that need a file or a package which another machine may have."""
FEW = 2
"""Clients that any options do with, if some number does."""


def check_possible(config: Config) -> None:
    """Refuse what no data set would make possible."""
    part, sampled = config.partition, config.sampling.clients
    if part.name not in FROM_ELSEWHERE:
        _check_partition(part)
    if part.clients and sampled > part.clients:
        raise UserError(
            f"sampling.clients is {sampled}, but there are {part.clients} clients; choose at most {part.clients}"
        )


def _check_partition(part: PartitionConfig) -> None:
    """Options that two quite different data sets refuse in the same words are refused by every one."""
    reasons = [_refusal(part, classes, each) for classes, each in ((10, 60), (7, 90))]
    if reasons[0] and reasons[0] == reasons[1]:
        raise UserError(f"partition {part.name!r}: {reasons[0]}")


def _refusal(part: PartitionConfig, classes: int, each: int) -> str:
    labels = np.repeat(np.arange(classes), each)
    split = Split(labels, labels, users=labels)
    clients = (part.clients or None) if part.name in KNOW_THEIR_CLIENTS else FEW
    try:
        data.make_partition(Dataset("", split, split, classes), part.name, clients, 0, **part.options)
    except UserError as error:
        return str(error)
    return ""
