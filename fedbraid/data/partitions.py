"""Who holds which training samples: partitions by name."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedbraid.core.random import stream
from fedbraid.data.dataset import Array, Dataset, Partition
from fedbraid.data.dirichlet import dirichlet, dirichlet_equal
from fedbraid.data.shares import NOBODY, Shares, held
from fedbraid.errors import UserError
from fedbraid.registry import Entry, find, whole


def iid(labels: Array, clients: int, rng: np.random.Generator) -> Shares:
    """A random split into parts whose sizes differ by at most one."""
    clients, total = whole("clients", clients), len(labels)
    if not total:
        raise UserError("there are no training samples to share out; a partition needs at least one")
    if clients > total:
        raise UserError(f"{total} samples cannot feed {clients} clients; ask for at most {total} clients")
    owners = np.empty(total, dtype=np.int64)
    owners[rng.permutation(total)] = np.arange(total) % clients
    return held(owners, clients)


def natural(
    users: Array, test_users: Array | None, clients: int | None, rng: np.random.Generator, min_size: int = 1
) -> tuple[Shares, Shares | None]:
    """One client per user with at least `min_size` training samples; a random choice of them if `clients` is given.

    The second part is each client's own test samples (none for users without any), where the test users are known.
    """
    min_size = whole("min_size", min_size)
    names, sizes = np.unique(users, return_counts=True)
    chosen = names[sizes >= min_size]
    if not len(chosen):
        most = f"; min_size={sizes.max()} would keep the largest" if len(names) else ", or any at all"
        raise UserError(f"no user has {min_size} training samples{most}")
    if clients is not None:
        if whole("clients", clients) > len(chosen):
            raise UserError(
                f"{clients} clients were asked for and {len(chosen)} users have at least {min_size} training samples; "
                f"ask for at most {len(chosen)} clients, or leave their number out to take them all"
            )
        chosen = np.sort(rng.choice(chosen, clients, replace=False))
    tests = None if test_users is None else _by_user(test_users, chosen)
    return _by_user(users, chosen), tests


def _by_user(users: Array, chosen: Array) -> Shares:
    place = np.minimum(np.searchsorted(chosen, users), len(chosen) - 1)
    return held(np.where(chosen[place] == users, place, NOBODY), len(chosen))


PARTITIONS: tuple[Entry[Any], ...] = (
    Entry("iid", "a random split into equal parts", iid),
    Entry("dirichlet", "each class cut over the clients by Dir(beta): skewed labels and sizes", dirichlet),
    Entry(
        "dirichlet_equal",
        "each client draws classes from its own Dir(delta): skewed labels, equal sizes",
        dirichlet_equal,
    ),
    Entry("natural", "one client per user of the data set, with the user's own test samples", natural),
)


def make_partition(dataset: Dataset, name: str, clients: int | None, seed: int, **params: Any) -> Partition:
    """The partition called `name` of the data set's training samples; the same arguments give the same partition."""
    entry = find("partition", name, PARTITIONS, params)
    seed = whole("seed", seed, 0)
    rng = stream(seed, "partition")
    tests = None
    if name == "natural":
        if dataset.train.users is None:
            others = ", ".join(e.name for e in PARTITIONS if e.name != "natural")
            raise UserError(
                f"data set {dataset.name!r} does not say which user each sample came from, which 'natural' needs; "
                f"choose one of {others}"
            )
        shares, tests = entry.make(dataset.train.users, dataset.test.users, clients, rng, **params)
    elif clients is None:
        raise UserError(f"partition {name!r} needs a number of clients, such as clients=10")
    else:
        shares = entry.make(dataset.train.y, clients, rng, **params)
    recipe = {
        "name": name,
        "clients": len(shares),
        "seed": seed,
        "params": {key: _plain(value) for key, value in (entry.options | params).items()},
    }
    return Partition(shares, recipe, tests)


def _plain(value: Any) -> Any:
    """numpy's numbers as Python's, which JSON can write."""
    return value.item() if isinstance(value, np.generic) else value
