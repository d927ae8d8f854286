"""LEAF's synthetic set: users whose linear models are variations of a few common ones."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedbraid.config.registry import whole
from fedbraid.core.random import stream
from fedbraid.data.dataset import Dataset
from fedbraid.data.datasets.common_options import share
from fedbraid.data.datasets.synthetic import Floats, around, split

FEWEST, MOST = 5, 1000


def synthetic_leaf(
    clients: int = 1000,
    classes: int = 5,
    features: int = 60,
    clusters: int = 1,
    seed: int = 0,
    test_share: float = 0.1,
) -> Dataset:
    """User k labels its inputs by y = argmax(x W_k + N(0, 0.1)), where x has a leading 1 that the set leaves out.

    Once for all: Q ~ N(0, 1) of shape [features + 1, classes, clusters]; of each cluster, its mean m ~ N(l, 1) in
    R^clusters around l ~ N(0, 1). Of user k, in a random cluster: W_k = Q u_k with u_k ~ N(m, 0.1); inputs
    x ~ N(v_k, diag(j^-1.2)) with v_k ~ N(B_k, 1) and B_k ~ N(0, 1); min(int(lognormal(3, 2)) + 5, 1000) samples.
    Second arguments of N are standard deviations. FedSkip used 5 classes, 60 features and one cluster, and left users
    with fewer than 64 samples out (partition natural with min_size=64).
    """
    clients, classes, features = whole("clients", clients), whole("classes", classes, 2), whole("features", features)
    clusters, seed = whole("clusters", clusters), whole("seed", seed, 0)
    train_share = 1 - share("test_share", test_share)

    rng = stream(seed, "synthetic-leaf")
    shared = rng.normal(0, 1, (features + 1, classes, clusters))
    means = rng.normal(rng.normal(0, 1, (clusters, 1)), 1, (clusters, clusters))
    streams = [partial(stream, seed, "synthetic-leaf", client=k) for k in range(clients)]
    sizes = [_size(begun()) for begun in streams]
    train, test = split((_user(begun(), shared, means) for begun in streams), sizes, features, train_share)
    return Dataset(name="synthetic-leaf", train=train, test=test, classes=classes)


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
