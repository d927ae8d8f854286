"""LEAF's synthetic set: sizes, moments and labels as its generator makes them."""

import hashlib

import numpy as np
import pytest

from fedbraid import data
from fedbraid.errors import UserError


def test_sizes_are_leafs():
    made = data.load("synthetic-leaf", clients=600, features=1, classes=2)
    train, test = np.bincount(made.train.users), np.bincount(made.test.users)
    sizes = train + test
    assert (sizes.min(), sizes.max()) == (5, 1000)
    assert (train == (0.9 * sizes).astype(int)).all()
    # Both tails are cut, so quantiles: those of lognormal(3, 2) plus 5, a twentieth of a deviation away at most.
    logs = np.log(sizes - 5 + 0.5)
    assert np.median(logs) == pytest.approx(3, abs=0.3)
    assert np.quantile(logs, 0.8) - np.median(logs) == pytest.approx(2 * 0.8416, abs=0.35)


def test_inputs_vary_between_and_within_users_as_published():
    made = data.load("synthetic-leaf", clients=900, features=6, classes=2)
    sizes = np.bincount(made.train.users)
    large = np.flatnonzero(sizes >= 300)
    within = np.mean([made.train.x[made.train.users == k].var(axis=0) for k in large], axis=0)
    assert within == pytest.approx(np.arange(1, 7) ** -1.2, rel=0.06)
    centres = np.array([made.train.x[made.train.users == k].mean(axis=0) for k in large])
    # v ~ N(B, 1), B ~ N(0, 1): variance 2, and covariance 1 between any two features.
    covariance = np.cov(centres.T)
    assert np.diag(covariance).mean() == pytest.approx(2, rel=0.3)
    assert covariance[~np.eye(6, dtype=bool)].mean() == pytest.approx(1, rel=0.4)


def test_users_of_one_cluster_have_nearly_the_same_model():
    """u ~ N(m, 0.1) scales one common Q, so users agree on labels except where the noise decides."""

    def fit(**options):
        made = data.load("synthetic-leaf", clients=200, classes=2, features=10, **options)
        x = np.c_[made.train.x, np.ones(len(made.train))]
        plane, *_ = np.linalg.lstsq(x, 2.0 * made.train.y - 1, rcond=None)
        return ((x @ plane > 0) == made.train.y).mean()

    assert fit(clusters=1) > 0.9
    assert fit(clusters=12) < 0.85


def test_the_boundary_between_two_classes_need_not_pass_through_zero():
    made = data.load("synthetic-leaf", clients=100, classes=2, features=1)
    x, y = made.train.x[:, 0], made.train.y
    right = [((x > threshold) == y).mean() for threshold in np.linspace(-3, 3, 61)]
    right = np.maximum(right, 1 - np.array(right))  # either side may be the first class
    assert right.max() > 0.9
    assert right[30] < right.max() - 0.04  # at zero


def test_more_users_disturb_nobody_and_seeds_make_others():
    few, many, other = (data.load("synthetic-leaf", clients=n, seed=s) for n, s in ((4, 0), (9, 0), (4, 1)))
    assert np.array_equal(few.train.x, many.train.x[: len(few.train)])
    assert np.array_equal(few.test.y, many.test.y[: len(few.test)])
    assert not np.array_equal(few.train.x[:5], other.train.x[:5])


def test_defaults_are_fedskips():
    made = data.load("synthetic-leaf", clients=20)
    assert made.classes == 5
    assert made.shape == (60,)
    assert set(np.unique(made.train.y)) <= set(range(5))


@pytest.mark.parametrize(
    ("option", "value"),
    [("clients", 0), ("classes", 1), ("features", 0), ("clusters", 0), ("seed", -1), ("test_share", 1.0)],
)
def test_what_cannot_be_made_is_refused(option, value):
    with pytest.raises(UserError, match=f"^{option} must be"):
        data.load("synthetic-leaf", **{option: value})


LEAF = {"draws": "leaf", "seed": 931231, "test_share": 0.4}
"""LEAF's default seed and FedSkip's share for training."""


def test_leafs_own_seed_gives_fedskips_clients():
    made = data.load("synthetic-leaf", **LEAF, min_train=64)
    assert len(np.unique(made.train.users)) == 212
    assert (len(made.train), len(made.test)) == (51_650, 34_554)
    assert np.array_equal(np.unique(made.test.users), np.arange(212))  # of nobody else
    assert hashlib.sha256(made.train.y.astype(np.uint8).tobytes()).hexdigest() == LABELS
    everybody = data.load("synthetic-leaf", **LEAF)
    assert data.make_partition(everybody, "natural", None, 0, min_size=64).sizes.tolist() == [
        *np.bincount(made.train.users)
    ]


LABELS = "a540f33adc931d920817179786889b50faaf65ffc659be93b5790a54a966a933"
"""Of the training labels, equal to those of LEAF's generator, run once with its default seed."""


@pytest.mark.parametrize("clusters", [1, 3])
def test_leafs_draws_are_the_published_steps_in_their_order(clusters):
    """Written once more with NumPy's global functions, a full covariance and a softmax."""
    seed, users, dims, classes = 7, 12, 4, 3
    np.random.seed(seed)
    sizes = [min(s + 5, 1000) for s in np.random.lognormal(3, 2, users).astype(int)]
    np.random.seed(seed)
    Q = np.random.normal(0, 1, (dims + 1, classes, clusters))
    means = [np.random.normal(np.random.normal(0, 1), 1, clusters) for _ in range(clusters)]
    xs, ys = [], []
    for size in sizes:
        mean = means[np.random.choice(clusters, p=[1 / clusters] * clusters)]
        v = np.random.normal(np.random.normal(0, 1), 1, dims)
        x = np.ones((size, dims + 1))
        x[:, 1:] = np.random.multivariate_normal(v, np.diag(np.arange(1, dims + 1) ** -1.2), size)
        w = Q @ np.random.normal(mean, 0.1)
        scores = np.exp(x @ w + np.random.normal(0, 0.1, (size, classes)))
        xs.append(x[:, 1:])
        ys.append((scores / scores.sum(1, keepdims=True)).argmax(1))
    made = data.load(
        "synthetic-leaf", clients=users, features=dims, classes=classes, clusters=clusters, draws="leaf", seed=seed
    )
    cut = [max(1, int(0.9 * size)) for size in sizes]
    np.testing.assert_allclose(made.train.x, np.concatenate([x[:c] for x, c in zip(xs, cut, strict=True)]), atol=1e-6)
    assert np.array_equal(made.train.y, np.concatenate([y[:c] for y, c in zip(ys, cut, strict=True)]))
    assert np.array_equal(made.test.y, np.concatenate([y[c:] for y, c in zip(ys, cut, strict=True)]))


def test_small_users_are_left_out_of_both_splits():
    made, everybody = (data.load("synthetic-leaf", clients=50, min_train=n) for n in (20, 1))
    kept = np.flatnonzero(np.bincount(everybody.train.users) >= 20)
    assert np.array_equal(made.train.x, everybody.train.x[np.isin(everybody.train.users, kept)])
    assert np.array_equal(made.test.y, everybody.test.y[np.isin(everybody.test.users, kept)])
    assert len(np.unique(made.train.users)) == len(kept)


@pytest.mark.parametrize(
    ("options", "refusal"),
    [({"draws": "lead"}, "draws must be"), ({"min_train": 2000}, "no user has 2000"), ({"min_train": 0}, "min_train")],
)
def test_further_options_that_cannot_be_are_refused(options, refusal):
    with pytest.raises(UserError, match=refusal):
        data.load("synthetic-leaf", clients=5, **options)
