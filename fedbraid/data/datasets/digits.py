"""The handwritten digits that come with scikit-learn: real data without a download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedbraid.core.random import stream
from fedbraid.data.dataset import Array, Dataset, Split
from fedbraid.errors import UserError

TEST_SHARE = 0.2


def digits() -> Dataset:
    """1,797 grey images of 8x8 pixels with values 0 to 16, split 80/20 within each class.

    The split is the same in every run, whatever the run's seed: accuracies stay comparable between seeds.
    """
    table = _table()
    x = table[:, :-1].astype(np.uint8).reshape(-1, 1, 8, 8)
    y = table[:, -1].astype(np.int64)
    is_test = _stratified(y)
    train = Split(x[~is_test], y[~is_test])
    return Dataset(
        name="digits",
        train=train,
        test=Split(x[is_test], y[is_test]),
        classes=10,
        mean=(float(train.x.mean()),),
        std=(float(train.x.std()),),
    )


def _table() -> Array:
    """[1797, 65] the pixels and the label of each image, read where scikit-learn keeps them: it is slow to import."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise UserError("the digits come with scikit-learn, which is not installed; pip install scikit-learn")
    file = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits  # another release may keep them elsewhere

    return np.column_stack(load_digits(return_X_y=True))


def _stratified(labels: Array) -> Array:
    """Marks the test samples: the same share of every class."""
    rng = stream(0, "digits split")
    is_test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        is_test[members[: round(TEST_SHARE * len(members))]] = True
    return is_test
