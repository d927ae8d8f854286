"""Clients as they are in the world: one for each user of the data set."""

from __future__ import annotations

import numpy as np

from fedbraid.config.registry import whole
from fedbraid.data.dataset import Array, Partition
from fedbraid.data.partitions.shares import NOBODY, Shares, held
from fedbraid.errors import UserError

CHOICES = ("random", "largest")


def natural(
    users: Array | None,
    test_users: Array | None,
    clients: int | None,
    rng: np.random.Generator,
    min_size: int = 1,
    choose: str = "random",
    tested: bool = False,
) -> Partition:
    """One client per user with at least `min_size` training samples, and the user's own test samples where known.

    If a number of clients is given, so many of these users are chosen at random, or the "largest" (rFedAvg takes the
    500 most active users of Sent140). Clients are in the order of their users' names. With `tested`, only users who
    have test samples too count: LEAF drops the others (of Shakespeare's roles, 660 are left at a tenth for testing, as
    many as FedSkip has).
    """
    min_size = whole("min_size", min_size)
    if choose not in CHOICES:
        raise UserError(f"choose must be one of {', '.join(CHOICES)}, not {choose!r}")
    if not isinstance(tested, bool):
        raise UserError(f"tested must be true or false, not {tested!r}")
    if users is None:
        raise UserError(
            "this data set does not say which user each sample came from, which a natural partition needs; "
            "choose another one, such as dirichlet"
        )
    names, sizes = np.unique(users, return_counts=True)
    if tested:
        if test_users is None:
            raise UserError("this data set does not say which user each test sample came from; leave tested out")
        kept = np.isin(names, test_users)
        names, sizes = names[kept], sizes[kept]
    chosen = np.flatnonzero(sizes >= min_size)
    if not len(chosen):
        most = f"; min_size={sizes.max()} would keep the largest" if len(names) else ", or any at all"
        raise UserError(f"no user has {min_size} training samples{most}")
    if clients is not None:
        if whole("clients", clients) > len(chosen):
            raise UserError(
                f"{clients} clients were asked for and {len(chosen)} users have at least {min_size} training samples; "
                f"ask for at most {len(chosen)} clients, or leave their number out to take them all"
            )
        if choose == "largest":
            chosen = np.sort(chosen[np.argsort(-sizes[chosen], kind="stable")[:clients]])
        else:
            chosen = np.sort(rng.choice(chosen, clients, replace=False))
    tests = None if test_users is None else _by_user(test_users, names[chosen])
    return Partition(_by_user(users, names[chosen]), client_tests=tests)


def _by_user(users: Array, chosen: Array) -> Shares:
    index = np.minimum(np.searchsorted(chosen, users), len(chosen) - 1)
    return held(np.where(chosen[index] == users, index, NOBODY), len(chosen))
