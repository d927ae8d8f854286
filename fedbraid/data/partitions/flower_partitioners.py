"""The partitioners of Flower Datasets, put to use on a data set of FedBraid's."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib import import_module
from inspect import Parameter, signature
from typing import Any

import numpy as np

from fedbraid.data.dataset import Array, Partition
from fedbraid.data.partitions.shares import Shares, number, some
from fedbraid.errors import UserError, unknown


def flower(
    labels: Array,
    users: Array | None,
    clients: int | None,
    rng: np.random.Generator,
    partitioner: str = "",
    **arguments: Any,
) -> Partition:
    """The partition that `partitioner` of flwr-datasets makes, such as "PathologicalPartitioner", with its arguments.

    It sees a table with the columns `label` and (where known) `user`, in random order as Flower's own data sets are.
    Its `num_partitions` is the number of clients, its `seed` comes from the run's, and `partition_by` is "label" unless
    it is given.
    """
    some(labels)
    package = _package("flwr_datasets.partitioner")
    known = [name for name in package.__all__ if name != "Partitioner"]
    if partitioner not in known:
        raise unknown("partitioner of flwr-datasets", partitioner, known)
    kind = getattr(package, partitioner)
    order = rng.permutation(len(labels))
    columns = {"sample": order, "label": labels[order]} | ({} if users is None else {"user": users[order]})
    rows = _package("datasets").Dataset.from_dict({name: values.tolist() for name, values in columns.items()})
    complete = _complete(partitioner, kind, clients, int(rng.integers(2**31)), arguments)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what they warn of, such as unused classes, is in the partition's summary
            made = kind(**complete)
            made.dataset = rows
            parts = [made.load_partition(k) for k in range(made.num_partitions)]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, ZeroDivisionError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{partitioner} of flwr-datasets refuses this: {reason}") from error
    if not all("sample" in part.column_names for part in parts):
        raise UserError(f"{partitioner} shares out columns, not samples; choose one that gives clients whole samples")
    shares = tuple(np.sort(np.array(part["sample"][:], dtype=np.int64)) for part in parts)
    _check(partitioner, shares, clients)
    return Partition(shares)


def _complete(
    name: str, kind: type[Any], clients: int | None, seed: int, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """The partitioner's arguments, those that FedBraid knows put in."""
    takes = {p.name: p for p in signature(kind).parameters.values()}
    for argument in arguments:
        if argument not in takes:
            raise unknown(f"argument of {name}", argument, takes)
    complete: dict[str, Any] = {"partition_by": "label", "seed": seed, **arguments}
    if "num_partitions" in takes and "num_partitions" not in complete:
        complete["num_partitions"] = number(clients)
    missing = [p.name for p in takes.values() if p.default is Parameter.empty and p.name not in complete]
    if missing:
        raise UserError(f"{name} needs a value for {missing[0]}; give it beside partitioner={name}")
    return {argument: _array(value) for argument, value in complete.items() if argument in takes}


def _array(value: Any) -> Any:
    """A table that is written as lists of numbers as the array that partitioners want it to be."""
    return (
        np.array(value) if isinstance(value, list | tuple) and value and isinstance(value[0], list | tuple) else value
    )


def _check(name: str, shares: Shares, clients: int | None) -> None:
    together = np.concatenate(shares)
    if len(np.unique(together)) < len(together):
        raise UserError(f"{name} gives a sample to several clients; choose one that gives each sample to one")
    empty = next((k for k, share in enumerate(shares) if not len(share)), None)
    if empty is not None:
        raise UserError(f"{name} leaves client {empty} without samples; ask for fewer clients, or other arguments")
    if clients is not None and clients != len(shares):
        raise UserError(f"{name} makes {len(shares)} clients of this, not {clients}; leave the number of clients out")


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise UserError(
            "Flower's partitioners need flwr-datasets, which is not installed: pip install 'fedbraid[flower-data]'"
        ) from None
