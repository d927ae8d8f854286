"""Partitions of the training samples over clients, by name."""

from __future__ import annotations

from dataclasses import replace
from inspect import Parameter, signature
from os import PathLike, fspath
from typing import Any

import numpy as np

from fedbraid.config.registry import Entry, find, whole
from fedbraid.config.terms import terms
from fedbraid.core.random import stream
from fedbraid.data.dataset import Dataset, Partition
from fedbraid.data.partitions.assignment import assignment
from fedbraid.data.partitions.dirichlet import dirichlet, dirichlet_equal, quantity
from fedbraid.data.partitions.even import iid, noise, stratified
from fedbraid.data.partitions.few_classes import classes, shards
from fedbraid.data.partitions.flower_partitioners import flower
from fedbraid.data.partitions.natural import natural
from fedbraid.data.partitions.niid2 import niid2
from fedbraid.data.partitions.similarity import similarity
from fedbraid.errors import UserError

PARTITIONS: tuple[Entry[Partition], ...] = (
    Entry("iid", "a random split into equal parts", iid),
    Entry("stratified", "every client the same share of each class", stratified),
    Entry("dirichlet", "each class cut over the clients by Dir(beta): skewed labels and sizes", dirichlet),
    Entry(
        "dirichlet_equal",
        "each client draws classes from its own Dir(delta): skewed labels, equal sizes",
        dirichlet_equal,
    ),
    Entry("niid2", "FedDisco's biased clients of few classes and unbiased ones of all, equal sizes", niid2),
    Entry("similarity", "rFedAvg's split: a share s at random, the rest by label", similarity),
    Entry("shards", "samples sorted by label, cut into shards, a few to each client", shards),
    Entry("classes", "every client holds the same number of classes", classes),
    Entry("quantity", "sizes by Dir(beta), labels alike", quantity),
    Entry("noise", "labels and sizes alike, more noise on the inputs from client to client", noise),
    Entry("natural", "one client per user of the data set, with the user's own test samples", natural),
    Entry("assignment", "who holds what, from a CSV or Parquet file", assignment),
    Entry("flower", "a partitioner of Flower Datasets, by its name and with its arguments", flower),
)

GIVEN = {"labels", "users", "test_labels", "test_users", "clients", "rng"}
"""What a partition may ask for by the names of its parameters. Labels and users are those of the training samples where
nothing else is said; users may be unknown, and the number of clients not given (None). Options are those with defaults.
"""


def make_partition(dataset: Dataset, name: str, clients: int | None, seed: int, **params: Any) -> Partition:
    """The partition called `name` of the data set's training samples; the same arguments give the same partition."""
    seed = whole("seed", seed, 0)
    entry = find_partition(name, params)
    given = {
        "labels": dataset.train.y,
        "users": dataset.train.users,
        "test_labels": dataset.test.y,
        "test_users": dataset.test.users,
        "clients": clients,
        "rng": stream(seed, "partition"),
    }
    asked = signature(entry.make).parameters
    made = entry.make(**{key: value for key, value in given.items() if key in asked}, **params)
    recipe = {
        "name": name,
        "clients": len(made),
        "seed": seed,
        "params": {key: _plain(value) for key, value in (entry.options | params).items()},
    }
    return replace(made, recipe=recipe | made.recipe)


def parse_partition(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the options of a partition as it is written.

    >>> parse_partition("dirichlet(beta=0.5)")
    ('dirichlet', {'beta': 0.5})
    """
    wanted = "a partition; write a name with its options, such as dirichlet(beta=0.5)"
    found = terms(text, wanted)
    if len(found) != 1:
        raise UserError(f"{text!r} is not {wanted}")
    name, params = found[0]
    find_partition(name, params)
    return name, params


def find_partition(name: str, params: dict[str, Any]) -> Entry[Partition]:
    """The partition called `name`, once it is known to take `params`; some pass on whatever else they get."""
    return find("partition", name, PARTITIONS, params, also=set(params) - GIVEN if name in PASSING else ())


def _passes_on(entry: Entry[Partition]) -> bool:
    return any(p.kind is Parameter.VAR_KEYWORD for p in signature(entry.make).parameters.values())


PASSING = {entry.name for entry in PARTITIONS if _passes_on(entry)}


def _plain(value: Any) -> Any:
    """numpy's numbers and arrays as Python's, paths as text: what JSON can write."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return fspath(value) if isinstance(value, PathLike) else value
