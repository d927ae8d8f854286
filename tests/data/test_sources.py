"""The data sets that need no download, and the registry they are found in."""

import numpy as np
import pytest

from fedbraid import data
from fedbraid.config.registry import Entry
from fedbraid.data import data_sets
from fedbraid.errors import UserError


@pytest.fixture(scope="module")
def digits():
    return data.load("digits")


def test_digits_are_all_there_once(digits):
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    together = [np.c_[split.x.reshape(-1, 64), split.y] for split in (digits.train, digits.test)]
    assert sorted(map(tuple, np.concatenate(together).tolist())) == sorted(
        map(tuple, np.c_[pixels, labels].astype(int).tolist())
    )


def test_digits_keep_their_type_and_shape(digits):
    assert digits.shape == (1, 8, 8)
    assert digits.train.x.dtype == np.uint8
    assert digits.train.y.dtype == np.int64
    assert digits.train.x.max() == 16
    assert digits.classes == 10


def test_digits_have_a_fifth_of_every_class_for_testing(digits):
    train, test = (np.bincount(split.y) for split in (digits.train, digits.test))
    assert (abs(test - 0.2 * (train + test)) <= 0.5).all()


def test_normalised_digits_have_mean_zero_and_scale_one(digits):
    x = (digits.train.x - digits.mean[0]) / digits.std[0]
    assert abs(x.mean()) < 1e-6
    assert x.std() == pytest.approx(1)


def test_the_split_of_digits_is_fixed_and_shuffled(digits):
    np.random.seed(1)
    again = data.load("digits")
    assert np.array_equal(again.test.x, digits.test.x)
    assert np.array_equal(again.train.y, digits.train.y)
    from sklearn.datasets import load_digits

    source = load_digits()
    zeros, tested = source.images[source.target == 0], digits.test.x[digits.test.y == 0, 0]
    assert not np.array_equal(zeros[: len(tested)], tested)
    assert not np.array_equal(zeros[-len(tested) :], tested)


def test_synthetic_users_all_train_and_test():
    made = data.load("synthetic", clients=12, max_size=2)
    assert list(np.bincount(made.train.users)) == [1] * 12
    assert list(np.bincount(made.test.users)) == [1] * 12
    assert made.train.x.dtype == np.float32
    assert made.shape == (60,)


def test_synthetic_sizes_are_those_of_fedprox():
    made = data.load("synthetic", clients=400, features=1, classes=2)
    train, test = np.bincount(made.train.users), np.bincount(made.test.users)
    sizes = train + test
    assert sizes.min() >= 50
    assert (train == (0.9 * sizes).astype(int)).all()
    # int() takes half a sample on average; 400 draws of log-normal(4, 2) settle the mean to 0.1 and the spread to 0.07.
    logs = np.log(sizes - 50 + 0.5)
    assert logs.mean() == pytest.approx(4, abs=0.3)
    assert logs.std() == pytest.approx(2, abs=0.25)


def test_more_synthetic_users_disturb_nobody():
    few, many = (data.load("synthetic", clients=n, max_size=80) for n in (4, 9))
    assert np.array_equal(few.train.x, many.train.x[: len(few.train)])
    assert np.array_equal(few.test.y, many.test.y[: len(few.test)])
    assert not np.array_equal(few.train.x[:10], many.train.x[-10:])


def test_a_limit_keeps_the_first_samples():
    free, limited = (data.load("synthetic", clients=1, max_size=n) for n in (None, 50))
    assert len(limited.train) == 45
    assert np.array_equal(free.train.x[:45], limited.train.x)
    assert np.array_equal(free.train.y[:45], limited.train.y)


def test_another_seed_makes_other_users():
    first, second = (data.load("synthetic", clients=2, max_size=50, seed=s) for s in (0, 1))
    assert not np.array_equal(first.train.x, second.train.x)


def test_beta_is_the_standard_deviation_between_users():
    made = data.load("synthetic", beta=4.0, clients=300, max_size=10)
    centres = np.array([made.train.x[made.train.users == k].mean() for k in range(300)])
    assert centres.std() == pytest.approx(4.0, rel=0.12)


def test_alpha_shifts_all_logits_alike_and_so_moves_no_label():
    calm, wild = (data.load("synthetic", alpha=a, clients=5, max_size=100) for a in (0.0, 5.0))
    assert np.array_equal(calm.train.x, wild.train.x)
    assert np.array_equal(calm.train.y, wild.train.y)


def test_variances_within_a_user_fall_as_published():
    made = data.load("synthetic", iid=True, clients=40, features=6, max_size=400)
    assert made.train.x.mean(axis=0) == pytest.approx(0, abs=0.05)
    assert made.train.x.var(axis=0) == pytest.approx(np.arange(1, 7) ** -1.2, rel=0.08)


def test_iid_users_share_a_linear_model_and_others_do_not():
    def fit(**options):
        """The accuracy of the best least-squares plane through everyone's samples."""
        made = data.load("synthetic", classes=2, features=10, clients=30, max_size=300, **options)
        x = np.c_[made.train.x, np.ones(len(made.train))]
        plane, *_ = np.linalg.lstsq(x, 2.0 * made.train.y - 1, rcond=None)
        return ((x @ plane > 0) == made.train.y).mean()

    assert fit(iid=True) > 0.9
    assert fit() < 0.8


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("alpha", -1.0),
        ("beta", float("nan")),
        ("clients", 0),
        ("classes", 1),
        ("features", 2.5),
        ("iid", "yes"),
        ("seed", -1),
        ("max_size", 1),
    ],
)
def test_synthetic_refuses_what_it_cannot_make(option, value):
    with pytest.raises(UserError, match=f"^{option} must be"):
        data.load("synthetic", **{option: value})


def test_the_registry_describes_every_set_it_loads():
    assert data.names() == [entry.name for entry in data.describe()]
    assert len(set(data.names())) == len(data.names())
    assert {"digits", "synthetic", "cifar10", "shakespeare", "csv"} < set(data.names())
    told = {entry.name: entry.options for entry in data.describe()}
    assert told["digits"] == {}
    assert told["synthetic"]["alpha"] == 1.0
    assert all(entry.summary for entry in data.describe())


def test_mistakes_are_answered_with_what_is_known():
    with pytest.raises(UserError, match="did you mean 'digits'"):
        data.load("digit")
    with pytest.raises(UserError, match=r"did you mean 'alpha'\?.*max_size"):
        data.load("synthetic", alfa=1)
    with pytest.raises(UserError, match=r"no option of data set 'digits' is called 'side'; known: .*pixels"):
        data.load("digits", side=8)


def test_only_sets_that_come_as_files_are_told_where_to_look(monkeypatch, tmp_path, digits):
    def from_files(data_dir, size=3):
        return (data_dir, size)

    monkeypatch.setattr(data_sets, "DATASETS", (*data.DATASETS, Entry("filed", "a set of files", from_files)))
    assert data.load("filed", tmp_path, size=5) == (tmp_path, 5)
    assert data.describe()[-1].options == {"size": 3}
    assert np.array_equal(data.load("digits", tmp_path).train.x, digits.train.x)
