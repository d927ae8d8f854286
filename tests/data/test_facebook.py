"""Facebook comment volume: a small table of its form, and the real one where it is."""

import gzip

import numpy as np
import pytest

from fedbraid import data
from fedbraid.errors import UserError


def post(page=(100, 0, 5, 1), feature=0.5, comments=3):
    return [*page, feature, *range(48), comments]


def table(*posts):
    return "".join(",".join(map(str, row)) + "\n" for row in posts)


@pytest.fixture
def root(tmp_path):
    def write(train, test=None, variant=1):
        folder = tmp_path / "facebook-comment-volume"
        folder.mkdir(exist_ok=True)
        (folder / f"Features_Variant_{variant}.csv").write_text(train)
        (folder / "Features_TestSet.csv.gz").write_bytes(gzip.compress((test or train).encode()))
        return tmp_path

    return write


def refused(sentence):
    return pytest.raises(UserError, match=rf"\A[^\n]*{sentence}[^\n]*\Z")


OTHER = (100, 0, 5, 2)
TRAIN = table(post(feature=1.0), post(feature=4.0, comments=0), post(OTHER, feature=4.0))
TEST = table(post(OTHER, comments=7), post((9, 9, 9, 9)))


def test_pages_are_users_also_those_that_only_the_test_knows(root):
    made = data.load("facebook", root(TRAIN, TEST), log=False)
    assert made.task == "regression"
    assert made.classes == 1
    assert made.train.users.tolist() == [0, 0, 1]
    assert made.test.users.tolist() == [1, 2]
    assert made.train.y.tolist() == [3, 0, 3]
    assert made.test.y.tolist() == [7, 3]
    assert made.train.x.shape == (3, 53)
    assert made.train.x[:, 4].tolist() == [1, 4, 4]
    assert np.issubdtype(made.train.y.dtype, np.floating)


def test_comments_are_counted_in_logarithms_unless_one_asks(root):
    made = data.load("facebook", root(TRAIN, TEST))
    assert made.train.y == pytest.approx(np.log([4, 1, 4]))
    assert made.test.y == pytest.approx(np.log([8, 4]))


def test_features_are_standardised_over_the_training_posts(root):
    made = data.load("facebook", root(TRAIN, TEST))
    x = (made.train.x - np.array(made.mean)) / np.array(made.std)
    assert x.mean(axis=0) == pytest.approx(0, abs=1e-6)
    assert x[:, [3, 4]].std(axis=0) == pytest.approx(1)
    assert made.std[0] == 1  # a feature that never changes
    plain = data.load("facebook", root(TRAIN, TEST), standardise=False)
    assert (plain.mean, plain.std) == ((0.0,), (1.0,))


def test_variants_are_other_files(root):
    where = root(TRAIN, variant=2)
    assert len(data.load("facebook", where, variant=2).train) == 3
    with refused("data set 'facebook' is not in .*Features_Variant_1.csv"):
        data.load("facebook", where)


def test_the_publishers_cases_will_do_as_a_test_set(tmp_path):
    folder = tmp_path / "Dataset"
    for name, content in (
        ("Training/Features_Variant_1.csv", TRAIN),
        ("Testing/TestSet/Test_Case_1.csv", table(post(comments=1))),
        ("Testing/TestSet/Test_Case_2.csv", TEST),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    made = data.load("facebook", tmp_path, log=False)
    assert made.test.y.tolist() == [1, 7, 3]
    assert made.test.users.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        ("1,2,3\n", "Features_Variant_1.csv, line 1 has 3 cells; it must have 54"),
        (
            table(post(), post(feature="much")),
            "line 2, column 5 is 'much'; it must be a number, and one that fits 32 bits",
        ),
        (table(post(feature="")), "line 1, column 5 is empty"),
        (table(post(comments=-1)), "line 1 tells of -1 comments; there can be no fewer than 0"),
        ("\n", "Features_Variant_1.csv has no rows"),
    ],
)
def test_posts_that_cannot_be_are_refused(root, train, sentence):
    with refused(sentence):
        data.load("facebook", root(train, TEST))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"variant": 6}, "variant must be one of 1 to 5, not 6"),
        ({"log": "yes"}, "log must be true or false, not 'yes'"),
        ({"standardise": 1}, "standardise must be true or false, not 1"),
    ],
)
def test_options_that_cannot_be_are_refused(root, options, sentence):
    with refused(sentence):
        data.load("facebook", root(TRAIN), **options)


def test_real_posts(real_data):
    made = data.load("facebook", real_data("facebook-comment-volume/Features_Variant_1.csv.gz"), log=False)
    assert (len(made.train), len(made.test)) == (40949, 10044)
    assert made.shape == (53,)
    assert len(np.unique(made.train.users)) == 641
    assert len(np.unique(made.test.users)) == 979
    assert len(np.intersect1d(made.train.users, made.test.users)) == 363
    assert made.train.y.mean() == pytest.approx(7.32289, abs=1e-4)
    assert made.train.x[0, :4].tolist() == [634995, 0, 463, 1]
