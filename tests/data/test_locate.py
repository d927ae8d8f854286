"""Looking for data sets without reading them."""

from inspect import signature

from fedbraid import data
from fedbraid.data.locate import LAYOUTS, Availability, locate_dataset

ENTRIES = {entry.name: entry for entry in data.describe()}


def test_every_set_that_comes_as_files_can_be_looked_for():
    assert set(LAYOUTS) == {name for name, e in ENTRIES.items() if "data_dir" in signature(e.make).parameters}


def test_the_four_places(tmp_path):
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte.gz"):
        (tmp_path / "mnist").mkdir(exist_ok=True)
        (tmp_path / "mnist" / name).touch()  # never read, so it may be empty
    half = locate_dataset(ENTRIES["mnist"], tmp_path)
    assert half.state == "missing" and half.folder is None and "fedbraid data get mnist" in half.way
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").touch()
    assert locate_dataset(ENTRIES["mnist"], tmp_path) == Availability("here", tmp_path / "mnist")
    assert locate_dataset(ENTRIES["cifar10"], tmp_path).state == "missing"
    assert locate_dataset(ENTRIES["digits"], tmp_path) == Availability("built in")
    assert locate_dataset(ENTRIES["csv"], tmp_path) == Availability("yours")
