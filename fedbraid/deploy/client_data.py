"""A client's data: samples of its own, or its part of a data set that is partitioned among clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedbraid import data
from fedbraid.config.schema import Config, from_dict
from fedbraid.data.dataset import Dataset, Partition, check_dataset, check_partition
from fedbraid.errors import UserError, unknown
from fedbraid.training.simulation import partition_of


@dataclass(frozen=True, eq=False)
class ClientData:
    """Samples, and which of them are the client's."""

    dataset: Dataset
    partition: Partition
    client: int  # of the partition

    @property
    def tests(self) -> np.ndarray:
        """The client's own test samples."""
        own = self.partition.client_tests
        return np.zeros(0, dtype=np.int64) if own is None else np.asarray(own[self.client], dtype=np.int64)


class ClientDataSource(Protocol):
    """A source of a client's samples."""

    def load(self) -> ClientData: ...


@dataclass(frozen=True)
class NamedData:
    """A data set by its name. All of it is the client's, or client number `part` of the partition has its part."""

    config: Config  # of which the data, the partition and the seed count
    part: int | None = None
    data_dir: Path | None = None

    @staticmethod
    def of(settings: Mapping[str, Any], part: int | None = None, data_dir: Path | None = None) -> NamedData:
        """From the tables `data` and `partition` of a configuration, and its `seed`."""
        known = {"data", "partition", "seed"}
        for key in settings:
            if key not in known:
                raise unknown("setting of a client", key, known)
        return NamedData(from_dict(settings), part, data_dir)

    def load(self) -> ClientData:
        named = self.config.data
        dataset = data.load(named.name, self.data_dir, **named.options)
        check_dataset(dataset)
        if self.part is None:
            everything = tuple(np.arange(len(split), dtype=np.int64) for split in (dataset.train, dataset.test))
            return ClientData(dataset, Partition(everything[:1], client_tests=everything[1:]), 0)
        partition = partition_of(self.config, dataset)
        check_partition(dataset, partition)
        if not 0 <= self.part < len(partition):
            raise UserError(f"the partition has clients 0 to {len(partition) - 1}, and no client {self.part}")
        return ClientData(dataset, partition, self.part)
