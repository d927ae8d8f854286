"""SYNTHETIC(alpha, beta) of FedProx: users whose models and inputs differ by as much as one asks for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedbraid.config.registry import not_negative, whole
from fedbraid.core.random import stream
from fedbraid.data.dataset import Dataset, Split
from fedbraid.errors import UserError

Floats = NDArray[np.float64]
TRAIN_SHARE = 0.9


def synthetic(
    alpha: float = 1.0,
    beta: float = 1.0,
    clients: int = 30,
    classes: int = 10,
    features: int = 60,
    iid: bool = False,
    seed: int = 0,
    max_size: int | None = None,
) -> Dataset:
    """Each user k labels its own inputs by its own linear model: y = argmax(x W_k + b_k).

    `alpha` spreads the models: u_k ~ N(0, alpha), then every entry of W_k and b_k ~ N(u_k, 1).
    `beta` spreads the inputs: B_k ~ N(0, beta), v_k ~ N(B_k, 1), x ~ N(v_k, diag(j^-1.2)).
    Both are standard deviations, as in FedProx's code, which made the published data; its paper calls them variances
    (for that reading pass their square roots). With `iid` all users share one model and x ~ N(0, diag(j^-1.2)), so
    neither matters. (u_k adds the same to all logits, so `alpha` moves no label: models differ by the N(u_k, 1) alone.)
    A user has int(lognormal(4, 2)) + 50 samples, at most `max_size`, of which 90 % are for training.
    """
    alpha, beta = not_negative("alpha", alpha), not_negative("beta", beta)
    clients, classes, features = whole("clients", clients), whole("classes", classes, 2), whole("features", features)
    seed = whole("seed", seed, 0)
    limit = None if max_size is None else whole("max_size", max_size, 2)
    if not isinstance(iid, bool):
        raise UserError(f"iid must be true or false, not {iid!r}")

    shared = _model(stream(seed, "synthetic"), 0.0, features, classes) if iid else None
    streams = [partial(stream, seed, "synthetic", client=k) for k in range(clients)]
    sizes = [_size(begun()) if limit is None else min(_size(begun()), limit) for begun in streams]
    users = (_user(s(), n, alpha, beta, features, classes, shared) for s, n in zip(streams, sizes, strict=True))
    train, test = split(users, sizes, features, TRAIN_SHARE)
    return Dataset(name="synthetic", train=train, test=test, classes=classes)


def _size(rng: np.random.Generator) -> int:
    return int(rng.lognormal(4, 2)) + 50


def _user(
    rng: np.random.Generator,
    size: int,
    alpha: float,
    beta: float,
    features: int,
    classes: int,
    shared: tuple[Floats, Floats] | None,
) -> tuple[Floats, NDArray[np.int64]]:
    """One user's samples, all from the user's own stream, so that neither other users nor a limit change them."""
    _size(rng)  # the stream's first draw
    if shared is None:
        weight, bias = _model(rng, rng.normal(0, alpha), features, classes)
        centre = rng.normal(rng.normal(0, beta), 1, features)
    else:
        weight, bias = shared
        centre = np.zeros(features)
    x = around(centre, size, rng)
    return x, np.argmax(x @ weight + bias, axis=1)


def around(centre: Floats, size: int, rng: np.random.Generator) -> Floats:
    """Samples ~ N(centre, diag(j^-1.2)), j = 1, 2, …"""
    deviations = np.arange(1, len(centre) + 1) ** -0.6
    return centre + deviations * rng.standard_normal((size, len(centre)))


def _model(rng: np.random.Generator, mean: float, features: int, classes: int) -> tuple[Floats, Floats]:
    return rng.normal(mean, 1, (features, classes)), rng.normal(mean, 1, classes)


def train_size(size: int, share: float) -> int:
    """At least one sample on either side of the split."""
    return min(max(1, int(share * size)), size - 1)


def split(
    users: Iterable[tuple[Floats, NDArray[np.int64]]], sizes: Sequence[int], features: int, share: float
) -> tuple[Split, Split]:
    """Each user's first samples for training, the others to test, written where they stay as they are made."""
    # A user's samples are independent draws, so cutting them in order is as random as shuffling first.
    cuts = np.array([train_size(size, share) for size in sizes])
    train, test = _room(cuts, features), _room(np.array(sizes) - cuts, features)
    at = test_at = 0
    for (x, y), cut in zip(users, cuts.tolist(), strict=True):
        end, test_end = at + cut, test_at + len(y) - cut
        train.x[at:end], train.y[at:end] = x[:cut], y[:cut]
        test.x[test_at:test_end], test.y[test_at:test_end] = x[cut:], y[cut:]
        at, test_at = end, test_end
    return train, test


def _room(sizes: NDArray[np.int64], features: int) -> Split:
    """A split to fill with so many samples of each user."""
    total = int(sizes.sum())
    x, y = np.empty((total, features), dtype=np.float32), np.empty(total, dtype=np.int64)
    return Split(x, y, np.repeat(np.arange(len(sizes)), sizes))
