"""Objects that a user supplies instead of naming them in the configuration."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fedbraid import data, models
from fedbraid.config.schema import Config
from fedbraid.core.chain import Chain
from fedbraid.core.strand import Strand
from fedbraid.data.dataset import Dataset, Partition
from fedbraid.errors import UserError
from fedbraid.strands import parser as methods

HELD_ELSEWHERE = "roster"
"""Recorded as the partition of a real federation, where only the clients know what they hold."""


@dataclass(frozen=True)
class UserObjects:
    """Objects that a user supplies instead of naming them in the configuration.

    `strands` are classes beyond FedBraid's that a method may name; `chain` is a method put together in Python.
    """

    data: Dataset | None = None
    partition: Partition | None = None
    model: models.Own | None = None
    chain: Chain | None = None
    strands: tuple[type[Strand], ...] = ()
    data_dir: Path | None = None

    @property
    def supplied(self) -> list[str]:
        """Return the tables of the configuration that an object stands for."""
        return [table for table in ("data", "partition", "model") if getattr(self, table) is not None]

    @property
    def settled(self) -> list[str]:
        """Return those whose settings have no effect: all but a class of networks, which takes them as arguments."""
        makes = self.model is not None and not isinstance(self.model, nn.Module)
        return [table for table in self.supplied if not (table == "model" and makes)]

    def chain_of(self, config: Config) -> Chain:
        """Return the supplied chain, or parse the configured method; with the hyper-parameters of the configuration."""
        if self.chain is not None:
            return methods.with_settings(self.chain, config.strands)
        return methods.parse(config.method, config.strands, self.strands)


def check_supplied(config: Config, objects: UserObjects, place: Path, how: str) -> None:
    """Refuse to go on with a recorded run without the objects it was begun with; `how` says how to supply `{table}`."""
    if config.partition.name == HELD_ELSEWHERE:
        raise UserError(
            f"{place} is of a federation whose clients keep their data; only `fedbraid serve` goes on with it"
        )
    known = {"data": data.names(), "partition": [e.name for e in data.PARTITIONS], "model": models.names()}
    for table, names in known.items():
        name = getattr(config, table).name
        known_by_name = models.is_named(name) if table == "model" else name in names
        if not known_by_name and table not in objects.supplied:
            if table == "model":
                raise UserError(
                    f"{place} has a network of your own, {name!r}, whose code is not recorded; give it again with "
                    f"--model FILE.py:{name}, or {how.format(table=table)}"
                )
            raise UserError(
                f"{place} was given its {table} in Python: {name!r} is none of FedBraid's, and what it holds was not "
                f"recorded; {how.format(table=table)}"
            )


def __getattr__(name: str) -> type[UserObjects]:
    if name != "Given":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("Given is called UserObjects now", DeprecationWarning, stacklevel=2)
    return UserObjects
