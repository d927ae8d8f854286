"""Data sets made smaller, long-tailed or of other pixels: what is kept is exactly what the formulas say."""

from dataclasses import replace
from fractions import Fraction
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbraid import data
from fedbraid.core.random import stream
from fedbraid.data import Dataset, Split
from fedbraid.data.cache import ArrayWriter
from fedbraid.data.shaping import portion, scale, scaled, shaped, tail
from fedbraid.errors import UserError


def made_of(sizes, test_sizes=(8, 8, 8), task="classification"):
    """Every sample carries its own number, and its user is derived from it."""

    def split(sizes):
        labels = stream(0, "labels").permutation(np.repeat(np.arange(len(sizes)), sizes))
        numbers = np.arange(len(labels))
        return Split(numbers[:, None].astype(np.float32), labels, numbers * 3)

    return Dataset("made", split(sizes), split(test_sizes), classes=max(len(sizes), len(test_sizes)), task=task)


COUNTS = st.lists(st.integers(0, 60), min_size=1, max_size=9).filter(any).map(np.array)


@given(COUNTS, st.data())
def test_a_portion_is_as_near_to_the_shares_as_whole_samples_can_be(counts, data):
    occurring = np.count_nonzero(counts)
    total = data.draw(st.integers(occurring, counts.sum()))
    kept = portion(counts, total)
    assert kept.sum() == total
    assert ((kept > 0) == (counts > 0)).all()
    assert (kept <= counts).all()
    exact = [Fraction(int(n) * total, int(counts.sum())) for n in counts]
    if all(share >= 1 for share in exact if share):
        assert all(abs(k - share) < 1 for k, share in zip(kept.tolist(), exact, strict=True))


def test_samples_stay_with_their_labels_and_users_in_their_order():
    whole = made_of([50, 30, 20])
    some = shaped(whole, samples=20)
    assert list(np.bincount(some.train.y)) == [10, 6, 4]
    numbers = some.train.x[:, 0].astype(int)
    assert (np.diff(numbers) > 0).all()
    assert np.array_equal(some.train.y, whole.train.y[numbers])
    assert np.array_equal(some.train.users, numbers * 3)
    assert some.test is whole.test
    assert np.array_equal(shaped(whole, samples=20).train.x, some.train.x)


def test_fewer_samples_are_some_of_the_more():
    whole = made_of([50, 30, 20])
    few, many = (set(shaped(whole, samples=n).train.x[:, 0]) for n in (10, 60))
    assert few < many
    first = np.concatenate([np.flatnonzero(whole.train.y == k)[:n] for k, n in enumerate((5, 3, 2))])
    assert few != set(first.tolist())  # they are drawn


def test_more_samples_than_there_are_change_nothing():
    whole = made_of([5, 3, 2])
    assert shaped(whole, samples=10, test_samples=99).train is whole.train
    assert shaped(whole) is whole


@pytest.mark.parametrize(
    ("largest", "rho", "classes"), [(5000, 10, 10), (500, 100, 100), (1000, 50, 10), (49, 49, 7), (6000, 1, 10)]
)
def test_the_tail_falls_as_published(largest, rho, classes):
    """int(n ρ^(-k/(K-1))) without rounding: the largest whole m with m^(K-1) ρ^k <= n^(K-1)."""

    def exactly(k):
        m = int(largest * rho ** (-k / (classes - 1))) + 1
        while m ** (classes - 1) * rho**k > largest ** (classes - 1):
            m -= 1
        return m

    kept = tail(np.full(classes, largest), rho)
    assert kept.tolist() == [exactly(k) for k in range(classes)]
    assert (kept[0], kept[-1]) == (largest, largest // rho)


def test_the_tail_of_feddisco_on_cifar10():
    assert tail(np.full(10, 5000), 10).tolist() == [5000, 3871, 2997, 2320, 1796, 1391, 1077, 834, 645, 500]


@given(COUNTS, st.floats(1, 1e9))
def test_no_class_grows_in_a_tail(counts, rho):
    kept = tail(counts, rho)
    assert (kept <= counts).all()
    assert kept[0] == min(counts[0], counts.max())


def test_the_tail_comes_first_then_the_number():
    whole = made_of([100, 100, 100], [40, 40, 40])
    both = shaped(whole, long_tail=100, samples=37, test_long_tail=4, test_samples=0)
    assert tail(np.full(3, 100), 100).tolist() == [100, 10, 1]
    assert np.bincount(both.train.y).tolist() == portion(np.array([100, 10, 1]), 37).tolist() == [33, 3, 1]
    assert np.bincount(both.test.y).tolist() == [40, 20, 10]


def test_a_regression_keeps_so_many_at_random():
    whole = replace(made_of([60]), task="regression", classes=1)
    whole = replace(whole, train=replace(whole.train, y=np.linspace(0, 1, 60)))
    some = shaped(whole, samples=30)
    assert len(some.train) == 30
    assert np.array_equal(some.train.y, whole.train.y[some.train.x[:, 0].astype(int)])
    with pytest.raises(UserError, match="long_tail needs classes, and made is a regression"):
        shaped(whole, long_tail=2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"samples": 2}, "samples=2 cannot keep one of each of 3 classes; samples=3 would work"),
        ({"test_samples": 1}, "test_samples=1 cannot keep .* test_samples=3 would work"),
        ({"samples": -1}, "samples must be a whole number of at least 0"),
        ({"pixels": 2.5}, "pixels must be a whole number"),
        ({"long_tail": 0.5}, "long_tail is how much rarer the last class is"),
        ({"long_tail": 51}, "long_tail=51 leaves nothing of the last class; long_tail=50 would work"),
        *(
            ({"test_long_tail": value}, "test_long_tail is how much rarer .* at least 1, such as 10, not")
            for value in (0, -1, float("nan"), float("inf"), 10**400, "10")
        ),
        ({"pixels": 28}, r"pixels scales images, but made's samples have shape \(1,\)"),
    ],
)
def test_what_cannot_be_is_refused(options, sentence):
    with pytest.raises(UserError, match=sentence):
        shaped(made_of([50, 30, 20]), **options)
    assert len(shaped(made_of([50, 30, 20]), long_tail=50, samples=3, test_samples=3).train) == 3


def test_what_lies_on_disk_is_read_only_where_it_is_kept(tmp_path):
    x = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.uint8, shape=(90, 1, 4, 4))
    x[:] = np.arange(90, dtype=np.uint8)[:, None, None, None]
    whole = made_of([30, 30, 30])
    whole = replace(whole, train=replace(whole.train, x=x))
    assert shaped(whole, pixels=4, samples=90, test_samples=3).train.x is x
    assert shaped(whole, samples=9).train.x.shape == (9, 1, 4, 4)


# --- images


def test_colour_images_are_scaled_as_pillow_scales_them():
    from PIL import Image

    images = stream(0, "images").integers(0, 256, (3, 3, 32, 32), dtype=np.uint8)
    for pixels in (28, 56):
        made = scaled(images, pixels)
        assert made.dtype == np.uint8
        for image, out in zip(images, made, strict=True):
            picture = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
            expected = picture.resize((pixels, pixels), Image.Resampling.BILINEAR)
            assert np.array_equal(out.transpose(1, 2, 0), np.asarray(expected))


def test_colours_are_scaled_one_by_one():
    images = stream(0, "images").integers(0, 256, (2, 3, 9, 9), dtype=np.uint8)
    for channel in range(3):
        assert np.array_equal(scaled(images, 5)[:, channel], scaled(images[:, channel : channel + 1], 5)[:, 0])


def test_smaller_images_are_means_over_triangles():
    """Half the size: each new pixel weighs the four old ones along an axis by 1, 3, 3 and 1, cut at the border."""
    image = stream(0, "images").random((1, 1, 8, 8)).astype(np.float32)
    weights = np.zeros((4, 8))
    for row in range(4):
        for offset, weight in zip(range(-1, 3), (1, 3, 3, 1), strict=True):
            if 0 <= 2 * row + offset < 8:
                weights[row, 2 * row + offset] = weight
    weights /= weights.sum(axis=1, keepdims=True)
    assert scaled(image, 4)[0, 0] == pytest.approx(weights @ image[0, 0] @ weights.T, abs=1e-6)


def test_every_set_takes_these_options():
    small = data.load("digits", pixels=4, samples=50, test_samples=20, long_tail=3)
    assert small.shape == (1, 4, 4)
    assert small.test.x.shape == (20, 1, 4, 4)
    assert len(small.train) == 50
    assert small.train.x.dtype == np.uint8
    counts = np.bincount(small.train.y)
    assert counts[0] == pytest.approx(3 * counts[9], abs=2)


def test_images_are_scaled_once(monkeypatch):
    images = stream(0, "once").integers(0, 256, (3, 1, 9, 9), dtype=np.uint8)
    first = scaled(images, 5)
    with monkeypatch.context() as patch:
        patch.setattr("fedbraid.data.shaping.scale", lambda *_: pytest.fail("they are scaled again"))
        again = scaled(images.copy(), 5)
        assert isinstance(again, np.memmap) and np.array_equal(first, again)
    others = images.copy()
    others[2, 0, 8, 8] ^= 1
    for other, pixels in ((others, 5), (images, 6), (images[:2], 5), (images.astype(np.float32), 5)):
        assert scaled(other, pixels).shape == (len(other), 1, pixels, pixels)
        assert np.array_equal(scaled(other, pixels), fresh(other, pixels, monkeypatch))


def fresh(images, pixels, monkeypatch):
    """As scaled where nothing is kept."""
    with TemporaryDirectory() as folder, monkeypatch.context() as patch:
        patch.setenv("FEDBRAID_CACHE", folder)
        return np.array(scaled(images, pixels))


def test_images_too_large_for_any_disk_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"\Apixels must be at most 1024 a side, not 100000\Z"):
        data.load("digits", pixels=100000)
    many = np.broadcast_to(np.zeros((), dtype=np.uint8), (1 << 40, 1, 2, 2))  # takes no memory until it is scaled
    with pytest.raises(UserError, match=r"decoding needs 1073741824.0 GiB in .* make room there"):
        scale(many, 1024, ArrayWriter(tmp_path))


def test_images_that_are_not_square_become_so():
    tall = np.zeros((2, 1, 6, 4), dtype=np.uint8)
    assert scaled(tall, 4).shape == (2, 1, 4, 4)
    whole = made_of([1, 1], [1, 1])
    whole = replace(whole, train=replace(whole.train, x=tall), test=replace(whole.test, x=tall))
    assert shaped(whole, pixels=4).shape == (1, 4, 4)
