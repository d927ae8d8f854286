"""The IDX format, and the sets that come in it: MNIST with its writers, Fashion-MNIST."""

import gzip
import hashlib
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedbraid import data
from fedbraid.data.datasets import mnist
from fedbraid.data.formats.idx import read_idx
from fedbraid.errors import UserError

CODES = {"uint8": 0x08, "int8": 0x09, "int16": 0x0B, "int32": 0x0C, "float32": 0x0D, "float64": 0x0E}


def idx(values):
    """A second description of the format: magic number, sizes, big-endian values."""
    head = struct.pack(">HBB", 0, CODES[values.dtype.name], values.ndim)
    return (
        head + struct.pack(f">{values.ndim}I", *values.shape) + values.astype(values.dtype.newbyteorder(">")).tobytes()
    )


@given(st.data(), st.sampled_from(sorted(CODES)), st.booleans())
def test_arrays_come_back_as_they_were(tmp_path_factory, draw, dtype, packed):
    values = draw.draw(
        arrays.arrays(dtype, arrays.array_shapes(max_dims=4), elements={"allow_nan": False} if "f" in dtype else {})
    )
    content = idx(values)
    file = tmp_path_factory.getbasetemp() / "values.idx"
    file.write_bytes(gzip.compress(content) if packed else content)
    read = read_idx(file, hashlib.md5(content).hexdigest())
    assert read.shape == values.shape
    assert read.dtype.newbyteorder("=") == values.dtype
    assert np.array_equal(read, values)


IMAGES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "does not start as an IDX file does"),
        (b"\0\1\x08\3" + idx(IMAGES)[4:], "does not start as an IDX file does"),
        (b"\0\0\x07\3" + idx(IMAGES)[4:], "does not start as an IDX file does"),
        (b"\0\0\x08\0", "does not start as an IDX file does"),
        (b"<html>404 not found</html>", "does not start as an IDX file does"),
        (idx(IMAGES)[:9], "ends within its header"),
        (idx(IMAGES)[:-1], r"fewer or more values than the \(2, 3, 4\)"),
        (idx(IMAGES) + b"\0", r"fewer or more values than the \(2, 3, 4\)"),
        (
            b"\0\0\x0e\2" + struct.pack(">2I", 2**32 - 1, 2**32 - 1),
            r"promises [0-9,]{27} bytes, and 2,147,483,648 are the most",
        ),
        (gzip.compress(idx(IMAGES), mtime=0)[:-12], "damaged or cut"),
        (gzip.compress(idx(IMAGES), mtime=0)[:20] + b"\xff" * 9, "damaged or cut"),
        (gzip.compress(idx(IMAGES) + bytes(1 << 20), mtime=0), r"fewer or more values than the \(2, 3, 4\)"),
    ],
)
def test_other_files_are_refused_in_a_sentence(tmp_path, content, reason):
    file = tmp_path / "values.idx"
    file.write_bytes(content)
    with pytest.raises(UserError, match=reason) as told:
        read_idx(file)
    assert str(file) in str(told.value)


def test_another_content_than_the_published_one_is_refused(tmp_path):
    file = tmp_path / "values.idx"
    file.write_bytes(idx(IMAGES))
    with pytest.raises(UserError, match="is not the published file"):
        read_idx(file, hashlib.md5(idx(IMAGES + 1)).hexdigest())


@pytest.fixture
def small_mnist(tmp_path, monkeypatch):
    """MNIST in miniature, laid out as torchvision does."""
    parts = {"train": (5, 0), "t10k": (3, 100)}
    contents = {}
    for part, (count, first) in parts.items():
        x = (first + np.arange(count * 784) % 100).astype(np.uint8).reshape(count, 28, 28)
        contents[f"{part}-images"] = idx(x)
        contents[f"{part}-labels"] = idx((np.arange(count) % 10).astype(np.uint8))
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, content in contents.items():
        ending = "idx3-ubyte" if "images" in name else "idx1-ubyte"
        (raw / f"{name}-{ending}.gz").write_bytes(gzip.compress(content))
    checksums = {name: hashlib.md5(content).hexdigest() for name, content in contents.items()}
    assert list(checksums) == list(mnist.DIGITS)
    monkeypatch.setattr(mnist, "DIGITS", checksums)
    return tmp_path


def test_images_and_labels_are_paired(small_mnist):
    made = data.load("mnist", small_mnist)
    assert made.train.x.shape == (5, 1, 28, 28)
    assert made.test.x.shape == (3, 1, 28, 28)
    assert made.train.x[0, 0, 0, 1] == 1
    assert made.test.x[0, 0, 0, 1] == 101
    assert list(made.train.y) == [0, 1, 2, 3, 4]
    assert list(made.test.y) == [0, 1, 2]
    assert made.train.y.dtype == np.int64
    assert made.source == str(small_mnist / "MNIST/raw")
    assert made.train.users is None


def test_normalisation_is_chosen_by_name(small_mnist):
    ways = {"channels": (0.1307, 0.3081), "half": (0.5, 0.5), "unit": (0, 1)}
    for way, (mean, std) in ways.items():
        made = data.load("mnist", small_mnist, normalise=way)
        assert made.mean == pytest.approx((255 * mean,))
        assert made.std == pytest.approx((255 * std,))
    with pytest.raises(UserError, match=r"^normalise must be 'channels' or 'half' or 'unit', not 'zca'"):
        data.load("mnist", small_mnist, normalise="zca")


def writers(digits, first):
    table = np.zeros((len(digits), 8), np.int32)
    table[:, 0], table[:, 2] = digits, first + np.arange(len(digits)) // 2
    return gzip.compress(idx(table))


def test_writers_are_the_users(small_mnist):
    place = small_mnist / "qmnist-writers"
    place.mkdir()
    (place / "qmnist-train-labels-idx2-int.gz").write_bytes(writers([0, 1, 2, 3, 4], 7))
    (place / "qmnist-test-labels-idx2-int.gz").write_bytes(writers([0, 1, 2, 9, 9], 50))
    made = data.load("mnist", small_mnist, users=True)
    assert list(made.train.users) == [7, 7, 8, 8, 9]
    assert list(made.test.users) == [50, 50, 51]  # QMNIST has more test images than MNIST
    (place / "qmnist-train-labels-idx2-int.gz").write_bytes(writers([0, 1, 2, 3, 5], 7))
    with pytest.raises(UserError, match="its digits are not MNIST's labels"):
        data.load("mnist", small_mnist, users=True)


def test_missing_writers_and_odd_options_are_told(small_mnist):
    with pytest.raises(UserError, match="'qmnist-writers' is not in"):
        data.load("mnist", small_mnist, users=True)
    with pytest.raises(UserError, match=r"^users must be true or false"):
        data.load("mnist", small_mnist, users="yes")


def test_a_damaged_file_leaves_no_entry_behind(small_mnist, monkeypatch):
    monkeypatch.setenv("FEDBRAID_CACHE", str(small_mnist / "cache"))
    file = small_mnist / "MNIST/raw/t10k-labels-idx1-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"t10k-labels-idx1-ubyte.gz is a damaged or cut"):
        data.load("mnist", small_mnist)
    assert [p.name for p in (small_mnist / "cache/decoded").iterdir() if not p.name.endswith(".lock")] == []


def digest(values):
    return hashlib.md5(np.ascontiguousarray(values).tobytes()).hexdigest()


def test_the_real_mnist(real_data):
    made = data.load("mnist", real_data("mnist/train-images-idx3-ubyte.gz"))
    assert made.train.x.shape == (60000, 1, 28, 28)
    assert made.test.x.shape == (10000, 1, 28, 28)
    assert list(made.train.y[:8]) == [5, 0, 4, 1, 9, 2, 1, 3]
    assert list(np.bincount(made.test.y)) == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert made.mean[0] == pytest.approx(made.train.x.mean(), abs=0.02)
    assert made.std[0] == pytest.approx(made.train.x.std(), abs=0.02)


def test_the_real_writers(real_data):
    place = real_data("mnist/train-images-idx3-ubyte.gz")
    real_data("qmnist-writers/qmnist-train-labels-idx2-int.gz")
    made = data.load("mnist", place, users=True)
    assert len(np.unique(made.train.users)) == 539
    assert len(np.unique(made.test.users)) == 297
    assert not len(np.intersect1d(made.train.users, made.test.users))
    partition = data.make_partition(made, "natural", None, 0)
    assert len(partition) == 539
    assert partition.sizes.sum() == 60000


def test_the_real_fashion_mnist(real_data):
    made = data.load("fashion-mnist", real_data("fashion-mnist/train-images-idx3-ubyte.gz"))
    assert list(np.bincount(made.train.y)) == [6000] * 10
    assert list(np.bincount(made.test.y)) == [1000] * 10
    assert made.labels[made.train.y[0]] == "Ankle boot"
    assert made.mean[0] == pytest.approx(made.train.x.mean(), abs=0.02)
    assert made.std[0] == pytest.approx(made.train.x.std(), abs=0.02)
