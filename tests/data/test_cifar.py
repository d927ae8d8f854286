"""CIFAR's two layouts: bytes, and pickles that must not run anything."""

import hashlib
import os
import pickle
import struct
import subprocess
import sys

import numpy as np
import pytest

from fedbraid import data
from fedbraid.data.datasets import cifar
from fedbraid.data.datasets.cifar_labels import CIFAR100_COARSE, CIFAR100_FINE
from fedbraid.data.formats.cifar_batches import CifarKind, read_binary, read_python
from fedbraid.data.formats.pickles import read_pickle, restricted
from fedbraid.errors import UserError

TWO = CifarKind((("coarse_labels", 20), ("fine_labels", 100)))
ROWS = 3
X = (np.arange(ROWS * 3072) * 7 % 251).astype(np.uint8).reshape(ROWS, 3072)
COARSE, FINE = [4, 19, 0], [99, 0, 7]


class Python2:
    """Writes what Python 2 and its NumPy wrote: byte strings, old module names, protocol 2."""

    def dump(self, value):
        return b"\x80\x02" + self.code(value) + b"."

    def code(self, value):
        if isinstance(value, str):
            return b"T" + struct.pack("<i", len(value)) + value.encode("latin1")
        if isinstance(value, int):
            return b"J" + struct.pack("<i", value)
        if isinstance(value, list):
            return b"](" + b"".join(map(self.code, value)) + b"e"
        if isinstance(value, dict):
            return b"}(" + b"".join(self.code(key) + self.code(held) for key, held in value.items()) + b"u"
        return self.array(value)

    def array(self, value):
        made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\0t" + self.code("b") + b"tR"
        dtype = b"cnumpy\ndtype\n(" + self.code("u1") + b"K\0K\1tR(K\3" + self.code("|")
        dtype += b"NNN" + self.code(-1) + self.code(-1) + b"K\0tb"
        shape = b"(" + b"".join(map(self.code, value.shape)) + b"t"
        raw = b"T" + struct.pack("<i", value.nbytes) + value.tobytes()
        return made + b"(K\1" + shape + dtype + b"\x89" + raw + b"tb"


def dumped(**changes):
    held = {"data": X, "coarse_labels": COARSE, "fine_labels": FINE, "filenames": ["a.png", "b.png", "ä.png"]}
    return Python2().dump({key: value for key, value in (held | changes).items() if value is not None})


def laid(tmp_path, content):
    file = tmp_path / "batch"
    file.write_bytes(content)
    return file


def md5(content):
    return hashlib.md5(content).hexdigest()


def binary(coarse=COARSE, fine=FINE):
    return b"".join(bytes([c, f]) + row.tobytes() for c, f, row in zip(coarse, fine, X, strict=True))


def test_both_layouts_hold_the_same(tmp_path):
    from_bytes = read_binary(laid(tmp_path, binary()), TWO, ROWS)
    from_pickle = read_python(laid(tmp_path, dumped()), TWO, ROWS, md5(dumped()))
    for batch in (from_bytes, from_pickle):
        assert batch.x.shape == (ROWS, 3, 32, 32)
        assert np.array_equal(batch.x.reshape(ROWS, -1), X)
        assert batch.x[1, 2, 31, 5] == X[1, 2 * 1024 + 31 * 32 + 5]  # channel, row, column
        assert {key: list(column) for key, column in batch.labels.items()} == {
            "coarse_labels": COARSE,
            "fine_labels": FINE,
        }


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (binary()[:-1], "has 9,221 bytes; 3 images are 9,222"),
        (binary() + b"\0", "has 9,223 bytes"),
        (b"", "has 0 bytes"),
        (binary(coarse=[4, 20, 0]), r"has coarse_labels in 0\.\.20; they must lie in 0\.\.19"),
        (binary(fine=[100, 3, 7]), r"has fine_labels in 3\.\.100; they must lie in 0\.\.99"),
    ],
)
def test_binary_files_of_another_make_are_refused(tmp_path, content, reason):
    with pytest.raises(UserError, match=f"batch {reason}"):
        read_binary(laid(tmp_path, content), TWO, ROWS)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (dumped(fine_labels=None), "holds no images with coarse_labels and fine_labels"),
        (dumped(data=X[:2]), "does not hold 3 images of 3,072 bytes"),
        (dumped(data=[1, 2, 3]), "does not hold 3 images"),
        (dumped(data=X.tolist()), "does not hold 3 images"),
        (dumped(fine_labels=[1, 2]), "does not hold 3 images"),
        (dumped(fine_labels=[1, 2, -1]), r"has fine_labels in -1\.\.2"),
        (Python2().dump([1, 2]), "holds no images"),
        (dumped()[:-40], "is no pickle of plain arrays"),
    ],
)
def test_pickles_of_another_make_are_refused(tmp_path, content, reason):
    with pytest.raises(UserError, match=reason):
        read_python(laid(tmp_path, content), TWO, ROWS, md5(content))


class Harmful:
    """Pickled, it is a call that leaves a trace when it is made."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_a_pickle_that_nobody_vouches_for_is_not_even_opened(tmp_path, monkeypatch):
    monkeypatch.setattr("fedbraid.data.formats.pickles.restricted", lambda *_: pytest.fail("it was opened"))
    with pytest.raises(UserError, match=r"batch is a pickle, which can run code, and not the published one.*binary"):
        read_python(laid(tmp_path, dumped()), TWO, ROWS, md5(b"another"))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("function", [os.mkdir, np.savetxt, eval, getattr, np.load])
def test_a_vouched_pickle_calls_nothing_but_what_makes_arrays(tmp_path, function, protocol):
    trace = tmp_path / "trace"
    arguments = {os.mkdir: (str(trace),), np.savetxt: (str(trace), [1]), eval: (f"open({str(trace)!r}, 'w')",)}
    content = pickle.dumps({"data": Harmful(function, *arguments.get(function, (str(trace), "x")))}, protocol)
    with pytest.raises(UserError, match=r"is no pickle of plain arrays \(it asks for "):
        read_pickle(laid(tmp_path, content), md5(content), "")
    assert not trace.exists()


def test_arrays_of_objects_do_not_smuggle_calls_in(tmp_path):
    trace = tmp_path / "trace"
    content = pickle.dumps(np.array([Harmful(os.mkdir, str(trace))], dtype=object), 4)
    with pytest.raises(UserError, match=r"it asks for (posix|nt)[.]mkdir"):
        restricted(tmp_path, content)
    assert not trace.exists()


def write_binary_cifar10(folder):
    folder.mkdir(parents=True)
    for number, name in enumerate(cifar.PYTHON10):
        table = np.zeros((10000, 3073), np.uint8)
        table[:, 0], table[:, 1] = np.arange(10000) % 10, number
        table.tofile(folder / f"{name}.bin")


def test_cifar10_is_five_batches_and_a_test_batch_decoded_once(tmp_path, monkeypatch):
    write_binary_cifar10(tmp_path / "cifar10" / "cifar-10-batches-bin")
    made = data.load("cifar10", tmp_path)
    assert made.train.x.shape == (50000, 3, 32, 32)
    assert list(made.train.x[::10000, 0, 0, 0]) == [0, 1, 2, 3, 4]
    assert made.test.x[0, 0, 0, 0] == 5
    assert list(made.train.y[:12]) == [*range(10), 0, 1]
    assert made.labels[3] == "cat"
    assert made.mean == (125.3, 123.0, 113.9)
    monkeypatch.setattr(cifar, "read_binary", lambda *_: pytest.fail("it was decoded again"))
    again = data.load("cifar10", tmp_path, normalise="half")
    assert isinstance(again.train.x, np.memmap)
    assert np.array_equal(again.train.y, made.train.y)
    assert again.std == (127.5,)


def test_cifar100_has_classes_and_groups(tmp_path):
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    for part, rows in (("train", 50000), ("test", 10000)):
        table = np.zeros((rows, 3074), np.uint8)
        table[:, 0], table[:, 1], table[:, 2] = np.arange(rows) % 20, np.arange(rows) % 100, rows == 10000
        table.tofile(folder / f"{part}.bin")
    fine, coarse = data.load("cifar100", tmp_path), data.load("cifar100", tmp_path, coarse=True)
    assert (fine.classes, coarse.classes) == (100, 20)
    assert list(fine.train.y[98:102]) == [98, 99, 0, 1]
    assert list(coarse.test.y[18:22]) == [18, 19, 0, 1]
    assert (fine.train.x[7, 0, 0, 0], coarse.test.x[7, 0, 0, 0]) == (0, 1)


def test_a_cut_batch_leaves_no_entry_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBRAID_CACHE", str(tmp_path / "cache"))
    write_binary_cifar10(tmp_path / "cifar-10-batches-bin")
    os.truncate(tmp_path / "cifar-10-batches-bin" / "data_batch_4.bin", 3073 * 9999)
    with pytest.raises(UserError, match=r"data_batch_4.bin has 30,726,927 bytes; 10,000 images are 30,730,000"):
        data.load("cifar10", tmp_path)
    assert [p.name for p in (tmp_path / "cache/decoded").iterdir() if not p.name.endswith(".lock")] == []


def test_a_users_pickles_are_refused_with_the_way_out(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in cifar.PYTHON10:
        (folder / name).write_bytes(Python2().dump({"data": X, "labels": FINE}))
    with pytest.raises(UserError, match=r"data_batch_1 is a pickle.*whose MD5 is c99cafc1.*lay out the binary version"):
        data.load("cifar10", tmp_path)


def test_the_real_names_of_cifar100(real_data):
    meta = real_data("cifar100/meta") / "cifar100/meta"
    told = read_pickle(meta, "7973b15100ade9c7d40fb424638fde48", "")
    assert tuple(told["fine_label_names"]) == CIFAR100_FINE
    assert tuple(told["coarse_label_names"]) == CIFAR100_COARSE


def test_the_real_cifar10(real_data):
    place = real_data("cifar-10-batches-bin/test_batch.bin")
    made = data.load("cifar10", place)
    assert list(np.bincount(made.train.y)) == [5000] * 10
    assert list(np.bincount(made.test.y)) == [1000] * 10
    # The official files, put together again from what was decoded of them.
    test = np.concatenate([made.test.y[:, None].astype(np.uint8), made.test.x.reshape(-1, 3072)], axis=1)
    assert hashlib.sha1(test.tobytes()).hexdigest() == "67eb016db431130d61cd03c7ad570b013799c88c"
    third = slice(20000, 30000)
    batch = np.concatenate([made.train.y[third, None].astype(np.uint8), made.train.x[third].reshape(-1, 3072)], axis=1)
    assert hashlib.sha1(batch.tobytes()).hexdigest() == "1dd00a74ab1d17a6e7d73e185b69dbf31242f295"
    some = made.train.x[::10]
    assert made.mean == pytest.approx(some.mean((0, 2, 3)), abs=1)
    assert made.std == pytest.approx(some.std((0, 2, 3)), abs=1)


def test_the_real_cifar100(real_data):
    place = real_data("cifar-100-binary/train.bin")
    fine, coarse = data.load("cifar100", place), data.load("cifar100", place, coarse=True)
    assert list(np.bincount(fine.train.y)) == [500] * 100
    assert list(np.bincount(coarse.test.y)) == [500] * 20
    groups = np.unique(np.c_[fine.train.y, coarse.train.y], axis=0)
    assert len(groups) == 100  # every class lies in one group
    assert {fine.labels[f] for f, c in groups if coarse.labels[c] == "people"} == {
        "baby",
        "boy",
        "girl",
        "man",
        "woman",
    }
    with pytest.raises(UserError, match=r"^coarse must be true or false, not 1"):
        data.load("cifar100", place, coarse=1)


MEASURE = """
import sys, time
from fedbraid import data

def resident():
    told = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return {key: int(told[key].split()[0]) * 1024 for key in ("VmRSS", "RssAnon")}

before, began = resident(), time.perf_counter()
made = data.load("cifar100", sys.argv[1])
seconds, loaded = time.perf_counter() - began, resident()
arrays = [array for split in (made.train, made.test) for array in (split.x, split.y)]
for array in arrays:
    array.reshape(-1)[::256].sum()  # a value of every page
after = resident()
size = sum(array.nbytes for array in arrays)
grown = loaded["VmRSS"] - before["VmRSS"], after["VmRSS"] - before["VmRSS"], after["RssAnon"] - before["RssAnon"]
print(seconds, *grown, size)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_the_second_start_of_cifar100_is_quick_and_takes_no_memory_but_the_arrays(real_data):
    place = real_data("cifar-100-binary/train.bin")
    data.load("cifar100", place)
    done = subprocess.run([sys.executable, "-c", MEASURE, str(place)], capture_output=True, text=True, check=True)
    seconds, loaded, touched, anonymous, size = map(float, done.stdout.split())
    assert seconds < 2
    assert loaded < 16 << 20  # nothing is read before it is needed
    assert touched < size + (16 << 20)
    assert anonymous < 16 << 20  # all of it the disk's cache, which processes share and the system can take back
