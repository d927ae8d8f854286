"""rFedAvg's split by similarity: a share of the samples at random, the rest by label."""

from __future__ import annotations

import numpy as np

from fedbraid.config.registry import not_negative
from fedbraid.data.dataset import Array, Partition
from fedbraid.data.partitions.shares import NOBODY, Indices, Shares, held, number, some
from fedbraid.errors import UserError


def similarity(
    labels: Array,
    test_labels: Array,
    clients: int | None,
    rng: np.random.Generator,
    s: float = 0.1,
    split_test: bool = True,
) -> Partition:
    """Of all samples, round(s n) are dealt at random and the others in the order of their labels.

    Both parts are cut into equal pieces, one of either for each client; what is left over stays unused. s=1 is IID, s=0
    gives a client the fewest classes. With `split_test` the test samples are split in the same way, for each client's
    own accuracy.
    """
    some(labels)
    clients, s = number(clients), not_negative("s", s)
    if s > 1:
        raise UserError(f"s is the share of samples that are dealt at random, such as 0.1, and at most 1, not {s:g}")
    if not isinstance(split_test, bool):
        raise UserError(f"split_test must be true or false, not {split_test!r}")
    most, most_tested = (max(_parts(len(y), s)) for y in (labels, test_labels))
    if clients > most:
        works = min(most, most_tested) if split_test else most
        raise UserError(
            f"{clients} clients cannot each have a piece of {len(labels)} samples at s={s:g}; "
            f"clients={works} would work"
        )
    shares = _split(labels, clients, rng, s)
    if not split_test:
        return Partition(shares)
    if clients > most_tested:
        raise UserError(
            f"{len(test_labels)} test samples at s={s:g} are too few for {clients} clients; "
            f"clients={most_tested} or split_test=false would work"
        )
    return Partition(shares, client_tests=_split(test_labels, clients, rng, s))


def _parts(total: int, s: float) -> tuple[int, int]:
    """Return the number of samples that are dealt at random, and that of those by label."""
    random = round(s * total)
    return random, total - random


def _split(labels: Array, clients: int, rng: np.random.Generator, s: float) -> Shares:
    order = rng.permutation(len(labels)).astype(np.int64)
    cut, _ = _parts(len(labels), s)
    rest = order[cut:]
    by_label = rest[np.argsort(labels[rest], kind="stable")]
    owners = np.full(len(labels), NOBODY, dtype=np.int64)
    for part in (order[:cut], by_label):
        pieces = _pieces(part, clients)
        owners[pieces] = np.arange(clients)[:, None]
    return held(owners, clients)


def _pieces(part: Indices, clients: int) -> Indices:
    """[clients, size]: consecutive pieces of the same size."""
    size = len(part) // clients
    return part[: clients * size].reshape(clients, size)
