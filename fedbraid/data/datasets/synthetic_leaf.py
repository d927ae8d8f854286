"""LEAF's synthetic set: users whose linear models are variations of a few common ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from fedbraid.config.registry import whole
from fedbraid.core.random import stream
from fedbraid.data.common_options import share
from fedbraid.data.dataset import Dataset
from fedbraid.data.datasets.synthetic import Floats, around, split, train_size
from fedbraid.errors import UserError

FEWEST, MOST = 5, 1000
LEAF = "leaf"


def synthetic_leaf(
    clients: int = 1000,
    classes: int = 5,
    features: int = 60,
    clusters: int = 1,
    seed: int = 0,
    test_share: float = 0.1,
    min_train: int | None = None,
    draws: str | None = None,
) -> Dataset:
    """User k labels its inputs by y = argmax(x W_k + N(0, 0.1)), where x has a leading 1 that the set leaves out.

    Once for all: Q ~ N(0, 1) of shape [features + 1, classes, clusters]; of each cluster, its mean m ~ N(l, 1) in
    R^clusters around l ~ N(0, 1). Of user k, in a random cluster: W_k = Q u_k with u_k ~ N(m, 0.1); inputs
    x ~ N(v_k, diag(j^-1.2)) with v_k ~ N(B_k, 1) and B_k ~ N(0, 1); min(int(lognormal(3, 2)) + 5, 1000) samples.
    Second arguments of N are standard deviations. FedSkip used 5 classes, 60 features and one cluster, and left users
    with fewer than 64 samples out: the partition natural with min_size=64 takes them from the clients, `min_train=64`
    their test samples too.

    `draws="leaf"` draws the users as LEAF's generator does from NumPy's legacy generator; its default seed is 931231.
    Of the 1,000 users there, 212 have 64 training samples or more with test_share=0.4, as many as FedSkip has clients.
    LEAF shuffles each user's samples by the clock before it splits them; here the first ones are for training.
    """
    clients, classes, features = whole("clients", clients), whole("classes", classes, 2), whole("features", features)
    clusters, seed = whole("clusters", clusters), whole("seed", seed, 0)
    train_share, min_train = (
        1 - share("test_share", test_share),
        1 if min_train is None else whole("min_train", min_train),
    )
    if draws not in (None, LEAF):
        raise UserError(f"draws must be {LEAF}, or left out, not {draws!r}")
    make = _drawn_by_leaf if draws == LEAF else _drawn
    sizes, users = make(clients, classes, features, clusters, seed)
    kept = [train_size(size, train_share) >= min_train for size in sizes]
    if not any(kept):
        most = max(train_size(size, train_share) for size in sizes)
        raise UserError(f"no user has {min_train} training samples; min_train={most} would keep the largest")
    train, test = split(compress(users, kept), list(compress(sizes, kept)), features, train_share)
    return Dataset(name="synthetic-leaf", train=train, test=test, classes=classes)


User = tuple[Floats, NDArray[np.int64]]
"""Samples [n, features] and their labels [n]."""


def _drawn(clients: int, classes: int, features: int, clusters: int, seed: int) -> tuple[list[int], Iterator[User]]:
    """Return the users' sizes, and their samples as they are asked for, each user from a stream of its own."""
    rng = stream(seed, "synthetic-leaf")
    shared = rng.normal(0, 1, (features + 1, classes, clusters))
    means = rng.normal(rng.normal(0, 1, (clusters, 1)), 1, (clusters, clusters))
    streams = [partial(stream, seed, "synthetic-leaf", client=k) for k in range(clients)]
    return [_size(begun()) for begun in streams], (_user(begun(), shared, means) for begun in streams)


def _drawn_by_leaf(
    clients: int, classes: int, features: int, clusters: int, seed: int
) -> tuple[list[int], Iterator[User]]:
    """Return the same from LEAF's generator: the sizes at once; then, seeded again, Q, the means, user after user."""
    if seed >= 2**32:
        raise UserError(f"seed must be below 2**32, as NumPy's legacy generator takes it, not {seed}")
    drawn = np.random.RandomState(seed).lognormal(3, 2, clients).astype(int)
    sizes = [min(size + FEWEST, MOST) for size in drawn.tolist()]
    rng = np.random.RandomState(seed)
    shared = rng.normal(0, 1, (features + 1, classes, clusters))
    means = [rng.normal(rng.normal(0, 1), 1, clusters) for _ in range(clusters)]
    deviations = np.sqrt(np.arange(1, features + 1) ** -1.2)

    def user(size: int) -> User:
        mean = means[rng.choice(clusters, p=np.full(clusters, 1 / clusters))]
        centre = rng.normal(rng.normal(0, 1), 1, features)
        x = centre + deviations * rng.standard_normal((size, features))  # multivariate_normal of a diagonal covariance
        weight = shared @ rng.normal(mean, 0.1)
        scores = weight[0] + x @ weight[1:] + rng.normal(0, 0.1, (size, classes))
        return x, np.argmax(scores, axis=1)

    return sizes, (user(size) for size in sizes)


def _size(rng: np.random.Generator) -> int:
    return min(int(rng.lognormal(3, 2)) + FEWEST, MOST)


def _user(rng: np.random.Generator, shared: Floats, means: Floats) -> tuple[Floats, NDArray[np.int64]]:
    size = _size(rng)
    mean = means[rng.integers(len(means))]
    weight = shared @ rng.normal(mean, 0.1)
    centre = rng.normal(rng.normal(0, 1), 1, len(shared) - 1)
    x = around(centre, size, rng)
    scores = weight[0] + x @ weight[1:] + rng.normal(0, 0.1, (size, shared.shape[1]))
    return x, np.argmax(scores, axis=1)
