"""FEMNIST from LEAF's JSON and from an archive: the same pixels, the same writers."""

import json

import numpy as np
import pytest

from fedbraid import data
from fedbraid.core.random import stream
from fedbraid.errors import UserError

WRITERS = ["f0014_19", "f0022_10"]
X = stream(0, "femnist").integers(0, 256, (6, 784), dtype=np.uint8)
Y = [0, 61, 10, 36, 9, 35]
USER = np.array([0, 0, 0, 1, 1, 1])
IS_TEST = np.array([False, True, False, False, False, True])


def write_archive(root, **changes):
    members = {"x": X, "y": np.array(Y, np.uint8), "user": USER, "users": np.array(WRITERS), "is_test": IS_TEST}
    members = {name: values for name, values in (members | changes).items() if values is not None}
    (root / "femnist").mkdir(parents=True, exist_ok=True)
    np.savez_compressed(root / "femnist" / "femnist_leaf_subset.npz", **members)
    return root


def leaf(mask, **changes):
    """LEAF's JSON of some samples."""
    users = [name for k, name in enumerate(WRITERS) if (mask & (k == USER)).any()]
    own = {name: np.flatnonzero(mask & (WRITERS.index(name) == USER)) for name in users}
    samples = {name: {"x": np.round(X[at] / 255, 4).tolist(), "y": [Y[i] for i in at]} for name, at in own.items()}
    samples[users[0]] |= changes
    return {"users": users, "num_samples": [len(at) for at in own.values()], "user_data": samples}


def write_json(root, train=None, test=None):
    for part, content in (("train", train or leaf(~IS_TEST)), ("test", test or leaf(IS_TEST))):
        file = root / "femnist" / "data" / part / "all_data_0_niid.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content))
    return root


def test_both_forms_hold_the_same(tmp_path):
    made = [data.load("femnist", write(tmp_path / write.__name__)) for write in (write_archive, write_json)]
    for one in made:
        assert one.shape == (1, 28, 28)
        assert one.classes == 62
        assert np.array_equal(one.train.x.reshape(-1, 784), X[~IS_TEST])
        assert np.array_equal(one.test.x.reshape(-1, 784), X[IS_TEST])
        assert one.train.x[0, 0, 2, 5] == X[0, 2 * 28 + 5]
        assert list(one.train.y) == [0, 10, 36, 9]
        assert [one.labels[k] for k in one.test.y] == ["z", "Z"]
        assert one.train.users.tolist() == ["f0014_19", "f0014_19", "f0022_10", "f0022_10"]
        assert one.test.users.tolist() == ["f0014_19", "f0022_10"]
        assert len(data.make_partition(one, "natural", None, 0)) == 2
    assert data.load("femnist", tmp_path / "write_json", normalise="unit").std == (255.0,)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"x": [[0.5] * 783] * 2}, "user 'f0014_19' has samples that are not 784 numbers"),
        ({"x": [[0.5] * 784, [0.5]]}, "samples that are not 784 numbers"),
        ({"x": [["a"] * 784] * 2}, "samples that are not 784 numbers"),
        ({"x": [[None] * 784] * 2}, "not between 0 and 1|not 784 numbers"),
        ({"x": [[10**400] * 784] * 2}, "samples that are not 784 numbers"),
        ({"x": [[1.5] * 784] * 2}, "pixels that are not between 0 and 1"),
        ({"x": [[-0.1] * 784] * 2}, "pixels that are not between 0 and 1"),
        ({"y": [0, 62]}, r"labels that are not whole numbers in 0\.\.61"),
        ({"y": [0, 1.5]}, "labels that are not whole numbers"),
        ({"y": [0, -1]}, "labels that are not whole numbers"),
        ({"y": [0]}, "2 samples and 1 labels"),
    ],
)
def test_odd_json_is_refused_in_a_sentence(tmp_path, monkeypatch, changes, reason):
    monkeypatch.setenv("FEDBRAID_CACHE", str(tmp_path / "cache"))
    write_json(tmp_path, train=leaf(~IS_TEST, **changes))
    with pytest.raises(UserError, match=reason) as told:
        data.load("femnist", tmp_path)
    assert "all_data_0_niid.json" in str(told.value)
    assert [p.name for p in (tmp_path / "cache/decoded").iterdir() if not p.name.endswith(".lock")] == []


def test_an_empty_part_is_refused(tmp_path):
    write_json(tmp_path, test={"users": [], "num_samples": [], "user_data": {}})
    with pytest.raises(UserError, match="data/test has no samples"):
        data.load("femnist", tmp_path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"users": None}, "lacks the array 'users'"),
        ({"users": np.array("f0014_19")}, r"users must be a list of names or numbers, not <U8 \[\]"),
        ({"users": np.array([WRITERS])}, r"users must be a list of names or numbers, not <U8 \[1, 2\]"),
        ({"users": np.zeros(2)}, "users must be a list of names or numbers, not float64"),
        ({"x": X[:, :100]}, r"x must be bytes \[n, 784\], not uint8 \[6, 100\]"),
        ({"x": X / 255}, r"x must be bytes \[n, 784\], not float64"),
        ({"y": np.arange(5)}, "y must have one value for each of the 6 images"),
        ({"y": np.full(6, 0.5)}, "y must have one value for each of the 6 images"),
        ({"is_test": USER}, "is_test must have one value"),
        ({"y": np.full(6, 62)}, r"y must lie in 0\.\.61"),
        ({"user": np.full(6, 2)}, r"user must lie in 0\.\.1"),
        ({"user": np.full(6, -1)}, r"user must lie in 0\.\.1"),
        ({"is_test": np.zeros(6, bool)}, "is_test leaves no samples for the test split"),
    ],
)
def test_odd_archives_are_refused_in_a_sentence(tmp_path, changes, reason):
    with pytest.raises(UserError, match=f"femnist_leaf_subset.npz.*{reason}"):
        data.load("femnist", write_archive(tmp_path, **changes))


def test_the_real_subset(real_data):
    made = data.load("femnist", real_data("femnist/femnist_leaf_subset.npz"))
    assert len(made.train) + len(made.test) == 18796
    assert len(np.unique(np.concatenate([made.train.users, made.test.users]))) == 184
    assert len(np.unique(made.train.y)) == 62
    assert np.median(made.train.x) == 255  # dark on white
    assert made.mean[0] == pytest.approx(made.train.x.mean(), abs=1)
    assert made.std[0] == pytest.approx(made.train.x.std(), abs=2)
