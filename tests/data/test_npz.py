"""NumPy's archives: what is read, what is refused, and a user's own sets."""

import io
import pickle
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedbraid import data, models
from fedbraid.core.random import stream
from fedbraid.data.formats.npz import names_in, read_npz
from fedbraid.errors import UserError

TYPES = ["u1", "i2", "<i8", ">i4", "f4", "f8", "?", "U5", "S3"]


@given(st.data(), st.sampled_from(TYPES), st.booleans(), st.booleans())
def test_arrays_come_back_as_numpy_reads_them(tmp_path_factory, draw, dtype, packed, by_column):
    values = draw.draw(arrays.arrays(dtype, arrays.array_shapes(min_dims=0, min_side=0, max_dims=4)))
    file = tmp_path_factory.getbasetemp() / "values.npz"
    save = np.savez_compressed if packed else np.savez
    save(file, a=np.asfortranarray(values) if by_column else values, b=np.arange(3))
    with np.load(file) as expected:
        read = read_npz(file, "ab")
        assert list(read) == ["a", "b"]
        assert read["a"].dtype == expected["a"].dtype
        assert read["a"].shape == expected["a"].shape
        assert read["a"].tobytes() == expected["a"].tobytes()


def npy(values, **header):
    """An array's file whose header may say something else."""
    told = {"descr": values.dtype.str, "fortran_order": False, "shape": values.shape} | header
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, told)
    return file.getvalue() + values.tobytes()


def archive_of(file, **members):
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file


NUMBERS = np.arange(6, dtype=np.uint8)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (npy(NUMBERS, shape=(7,)), "x promises 7 bytes and has 6"),
        (npy(NUMBERS, shape=(5,)), "x promises 5 bytes and has 6"),
        (npy(NUMBERS, shape=(1 << 40, 1 << 20)), "x promises 1,152,921,504,606,846,976 bytes, and 17,179,869,184"),
        (npy(NUMBERS, descr="|O", shape=(1,)), "x holds Python objects, which can run code"),
        (npy(NUMBERS, shape=(-6,)), "is no whole .npz archive|promises"),
        (npy(NUMBERS[:0], shape=(0, 10**30)), "is no whole .npz archive of arrays"),
        (npy(NUMBERS, shape=(-2, -3)), "is no whole .npz archive of arrays"),
        (b"no array at all", "is no whole .npz archive of arrays"),
        (b"\x93NUMPY\x09\x00" + npy(NUMBERS)[8:], "is no whole .npz archive|unknown version"),
        (npy(NUMBERS)[:30], "is no whole .npz archive of arrays"),
    ],
)
def test_odd_members_are_refused_in_a_sentence(tmp_path, content, reason):
    file = archive_of(tmp_path / "odd.npz", x=content)
    with pytest.raises(UserError, match=reason) as told:
        read_npz(file, "x")
    assert str(file) in str(told.value)


def odd_header(text):
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + NUMBERS.tobytes()


@pytest.mark.parametrize(
    "text",
    [
        *(b"{'descr': '|u1', 'shape': (6,\n", b"{'descr'\n  'a'\n b", b"(" * 40, b"{[]: 1}\n", b"\\"),
        *(b"{'descr': ((),), 'fortran_order': False, 'shape': (6,)}\n", b"\xff\xff\n", b"1j\n", b"", b"\n"),
    ],
)
def test_damaged_headers_are_refused_in_a_sentence(tmp_path, text):
    file = archive_of(tmp_path / "odd.npz", x=odd_header(text))
    with pytest.raises(UserError, match=r"\A[^\n]*odd.npz[^\n]*(header|no whole .npz archive)[^\n]*\Z"):
        read_npz(file, "x")


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, zipfile.ZIP_DEFLATED])
def test_damage_within_any_kind_of_packing_is_refused_in_a_sentence(tmp_path, method):
    content = npy(stream(0, "noise").integers(0, 256, 20000, dtype=np.uint8))
    with zipfile.ZipFile(tmp_path / "odd.npz", "w", method) as archive:
        archive.writestr("x.npy", content)
    whole = (tmp_path / "odd.npz").read_bytes()
    assert read_npz(tmp_path / "odd.npz", "x")["x"].tobytes() == content[-20000:]
    for at in range(36, 18000, 500):
        (tmp_path / "odd.npz").write_bytes(whole[:at] + bytes(b ^ 0xFF for b in whole[at : at + 8]) + whole[at + 8 :])
        with pytest.raises(UserError, match=r"odd.npz"):
            read_npz(tmp_path / "odd.npz", "x")


def test_only_what_is_wanted_is_unpacked_and_into_its_own_memory(tmp_path):
    size = 48 << 20
    file = tmp_path / "large.npz"
    np.savez_compressed(file, x=np.ones(size, np.uint8), other=np.zeros(4 * size, np.uint8))
    assert names_in(file) == ("x", "other")
    tracemalloc.start()
    try:
        read = read_npz(file, ["x", "y"])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert list(read) == ["x"]
    assert (read["x"] == 1).all()
    assert peak < size + (8 << 20)


def test_sets_do_not_read_what_they_do_not_need(tmp_path):
    members = {name: npy(np.ascontiguousarray(values)) for name, values in toy().items()}
    file = archive_of(tmp_path / "own.npz", **members, other=npy(NUMBERS, shape=(7,)))
    assert len(data.load("npz", path=str(file)).train) == 32
    with pytest.raises(UserError, match="other promises"):
        read_npz(file, ["other"])


def test_objects_are_never_unpickled(tmp_path):
    class Trace:
        def __reduce__(self):
            return (open, (str(tmp_path / "trace"), "w"))

    header = npy(np.zeros(0, np.uint8), descr="|O", shape=(1,))
    file = archive_of(tmp_path / "odd.npz", x=header + pickle.dumps([Trace()]))
    with pytest.raises(UserError, match="holds Python objects"):
        read_npz(file, "x")
    assert not (tmp_path / "trace").exists()


def test_damaged_archives_are_refused_in_a_sentence(tmp_path):
    file = tmp_path / "values.npz"
    np.savez_compressed(file, x=np.arange(5000))
    whole = file.read_bytes()
    for end in [*range(0, len(whole), len(whole) // 40), len(whole) - 1]:
        file.write_bytes(whole[:end])
        with pytest.raises(UserError, match=r"values.npz is no whole .npz archive"):
            read_npz(file, "x")
    with pytest.raises(UserError, match=r"nowhere.npz cannot be read \(No such file"):
        read_npz(tmp_path / "nowhere.npz", "x")


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_no_flipped_byte_gets_through_as_other_numbers(tmp_path_factory, at, mask):
    file = tmp_path_factory.getbasetemp() / "flipped.npz"
    values = np.arange(300, dtype=np.int16)
    np.savez_compressed(file, x=values)
    content = bytearray(file.read_bytes())
    content[at % len(content)] ^= mask
    file.write_bytes(content)
    try:
        read = read_npz(file, names_in(file))
    except UserError:
        return
    for array in read.values():  # a byte that nobody looks at, or one of the name
        assert np.array_equal(array, values)


def toy(n=40, classes=4):
    rng = stream(0, "toy")
    return {"x": rng.integers(0, 256, (n, 8, 8), dtype=np.uint8), "y": np.arange(n) % classes}


def load(tmp_path, _options=None, **members):
    np.savez(tmp_path / "own.npz", **members)
    return data.load("npz", path=str(tmp_path / "own.npz"), **(_options or {}))


def test_grey_images_get_their_channel_and_a_share_of_each_class_is_held_out(tmp_path):
    held = toy()
    made = load(tmp_path, **held)
    assert made.shape == (1, 8, 8)
    assert made.classes == 4
    assert list(np.bincount(made.train.y)) == [8] * 4
    assert list(np.bincount(made.test.y)) == [2] * 4
    pairs = {(x.tobytes(), int(y)) for split in (made.train, made.test) for x, y in zip(split.x, split.y, strict=True)}
    assert pairs == {(x.tobytes(), int(y)) for x, y in zip(held["x"], held["y"], strict=True)}
    assert made.mean == pytest.approx((made.train.x.mean(),))
    assert made.std == pytest.approx((made.train.x.std(),))
    assert made.task == "classification"


@pytest.mark.parametrize("shape", [(12, 5, 7, 3), (12, 3, 5, 7), (12, 3, 5, 3)])
def test_channels_come_first_wherever_they_were(tmp_path, shape):
    x = np.arange(np.prod(shape)).astype(np.uint8).reshape(shape)
    y = np.zeros(12, int)
    made = load(tmp_path, x_train=x, y_train=y, x_test=x, y_test=y)
    assert np.array_equal(made.test.x, x if shape[1] == 3 else np.moveaxis(x, 3, 1))
    assert len(made.mean) == 3


def test_users_keep_their_samples_and_have_a_share_held_out(tmp_path):
    users = np.repeat(["ann", "bob"], 20)
    made = load(tmp_path, **toy(), users=users)
    assert made.train.users.tolist() == ["ann"] * 16 + ["bob"] * 16
    assert made.test.users.tolist() == ["ann"] * 4 + ["bob"] * 4
    assert len(data.make_partition(made, "natural", None, 0)) == 2
    split = load(
        tmp_path, x_train=np.eye(3), y_train=[0, 1, 2], users_train=[5, 5, 6], x_test=np.eye(3), y_test=[0, 1, 2]
    )
    assert split.train.users.tolist() == [5, 5, 6]
    assert split.test.users is None


def test_numbers_are_taken_as_they_are(tmp_path):
    made = load(tmp_path, x=np.arange(80.0).reshape(40, 2), y=toy()["y"])
    assert made.train.x.dtype == np.float32
    assert (made.mean, made.std) == ((0.0,), (1.0,))
    assert made.tokens == ()


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64])
def test_whole_numbers_are_words_that_networks_for_texts_take(tmp_path, dtype):
    words = load(tmp_path, x=np.arange(400, dtype=dtype).reshape(40, 10), y=toy()["y"])
    assert words.train.x.dtype == dtype
    assert (words.mean, words.std) == ((0.0,), (1.0,))
    assert words.tokens == tuple(str(number) for number in range(400))  # of both splits
    for name in ("lstm", "textcnn"):
        network = models.build(name, words.shape, words.classes, tokens=words.tokens)
        read = network(torch.from_numpy(np.concatenate([words.train.x, words.test.x])).long())
        assert read.logits.shape == (40, 4)


def test_a_regression_predicts_numbers(tmp_path):
    made = load(tmp_path, {"task": "regression", "test_share": 0.25}, x=np.eye(8), y=np.linspace(0, 1, 8))
    assert (made.task, made.classes) == ("regression", 1)
    assert made.train.y.dtype == np.float32
    assert (len(made.train), len(made.test)) == (6, 2)


@pytest.mark.parametrize("worst", [np.nan, np.inf, -1e300])
def test_a_regression_needs_finite_numbers(tmp_path, worst):
    with pytest.raises(UserError, match=r"own.npz: y has values that are not finite, or too large for 32 bits"):
        load(tmp_path, {"task": "regression"}, x=np.eye(8), y=np.array([worst] * 8))


ONE = {"x_train": np.eye(3), "y_train": np.arange(3), "x_test": np.eye(3), "y_test": np.arange(3)}


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"a": np.eye(2)}, r"must hold x and y, or x_train, y_train, x_test and y_test; it has a"),
        ({"x": np.arange(3), "y": np.arange(3)}, r"x must be at least \[samples, features\], not \[3\]"),
        ({"x": np.zeros((0, 3)), "y": np.zeros(0, int)}, "x must be at least"),
        ({"x": np.eye(3), "y": np.arange(4)}, "y must be one whole number for each of the 3 samples"),
        ({"x": np.eye(3), "y": np.arange(3.0)}, "y must be one whole number"),
        ({"x": np.eye(3), "y": np.arange(3) - 1}, r"y holds -1\.\.1; classes lie in 0\.\.1048575"),
        ({"x": np.eye(3), "y": np.eye(3, dtype=int)}, "y must be one whole number"),
        ({"x": np.full((3, 3), np.inf), "y": np.arange(3)}, "x has values that are not finite"),
        ({"x": np.full((3, 3), 1e300), "y": np.arange(3)}, "x has values that are not finite, or too large for 32 b"),
        ({"x": np.eye(3), "y": np.array([0, 1, 10**12])}, r"y holds 0\.\.1000000000000; classes lie in 0\.\.1048575"),
        ({"x": np.eye(3), "y": np.array([0, 1, 2**64 - 3], np.uint64)}, r"y holds 0\.\.18446744073709551613; classes"),
        ({"x": np.eye(3, dtype=int) - 1, "y": np.arange(3)}, r"x holds -1\.\.0; numbers of words lie in 0\.\.1048575"),
        ({"x": np.eye(3, dtype=int) << 20, "y": np.arange(3)}, r"x holds 0\.\.1048576; numbers of words lie in 0"),
        ({"x": np.eye(3, dtype=bool), "y": np.arange(3)}, "x is bool; save images as uint8"),
        ({"x": np.eye(3, dtype=complex), "y": np.arange(3)}, "x is complex128; save"),
        ({"x": np.eye(3), "y": np.arange(3), "users": np.arange(2)}, "users must be one whole number or name"),
        ({"x": np.eye(3), "y": np.arange(3), "users": np.eye(3)[0]}, "users must be one whole number or name"),
        (ONE | {"x_test": np.ones((3, 4))}, r"samples are \('float32', 3\) and test samples \('float32', 4\)"),
        (ONE | {"x_test": np.ones((3, 3), np.uint8)}, "they must be alike"),
        (
            ONE | {"y_train": np.array([0, 2, 2]), "y_test": np.array([0, 1, 2])},
            "class 1 is in the test samples and not",
        ),
        ({"x": np.eye(3), "y": np.arange(3)}, "is left for the test split"),
    ],
)
def test_odd_sets_are_refused_in_a_sentence(tmp_path, monkeypatch, members, reason):
    monkeypatch.setenv("FEDBRAID_CACHE", str(tmp_path / "cache"))
    with pytest.raises(UserError, match=reason) as told:
        load(tmp_path, **members)
    assert "own.npz" in str(told.value)
    assert [p.name for p in (tmp_path / "cache/decoded").iterdir() if not p.name.endswith(".lock")] == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"path": ""}, "^data set 'npz' needs the option path"),
        ({"path": "/nowhere.npz"}, "^path names /nowhere.npz, which is not there"),
        ({"task": "ranking"}, "^task must be 'classification' or 'regression', not 'ranking'"),
        ({"test_share": 0}, "^test_share must be"),
        ({"seed": -1}, "^seed must be"),
        ({"normalise": "no"}, "^normalise must be"),
    ],
)
def test_odd_options_are_told(tmp_path, options, reason):
    np.savez(tmp_path / "own.npz", **toy())
    with pytest.raises(UserError, match=reason):
        data.load("npz", **({"path": str(tmp_path / "own.npz")} | options))
