"""Every image set from the hub's Parquet files, made small."""

import io
import json

import numpy as np
import pytest

from fedbraid import data
from fedbraid.data.datasets import hub_images
from fedbraid.errors import UserError

arrow = pytest.importorskip("pyarrow")

RNG = np.random.default_rng(0)


def picture(side, channels=3, height=None):
    """Random pixels, [height, width, channels] or [height, width], and the PNG that holds them."""
    from PIL import Image

    shape = (height or side, side, 3) if channels == 3 else (height or side, side)
    pixels = RNG.integers(0, 256, shape, dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return pixels, {"bytes": buffer.getvalue(), "path": None}


@pytest.fixture
def hub(tmp_path):
    """Writes files of a set as the hub has them."""

    def write(name, file, names=None, **columns):
        from pyarrow.parquet import write_table

        path = tmp_path / name / "hub" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        table = arrow.table(columns)
        if names:
            features = {column: {"names": own, "_type": "ClassLabel"} for column, own in names.items()}
            table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        write_table(table, path, row_group_size=2)
        return tmp_path

    return write


def refused(sentence):
    return pytest.raises(UserError, match=rf"\A[^\n]*{sentence}[^\n]*\Z")


def pictures(count, *args, **more):
    pixels, cells = zip(*(picture(*args, **more) for _ in range(count)), strict=True)
    return np.stack(pixels), list(cells)


def channels_first(pixels):
    return pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)


@pytest.mark.parametrize("at_once", [2, 256])
@pytest.mark.parametrize(
    ("name", "folder", "side", "channels", "image"),
    [
        ("mnist", "mnist", 28, 1, "image"),
        ("fashion-mnist", "fashion_mnist", 28, 1, "image"),
        ("cifar10", "plain_text", 32, 3, "img"),
    ],
)
def test_pixels_and_labels_come_through(hub, monkeypatch, at_once, name, folder, side, channels, image):
    monkeypatch.setattr(hub_images, "AT_ONCE", at_once)
    pixels, cells = pictures(7, side, channels)
    hub(name, f"{folder}/train-00000-of-00002.parquet", **{image: cells[:3], "label": [9, 0, 4]})
    hub(name, f"{folder}/train-00001-of-00002.parquet", **{image: cells[3:5], "label": [2, 2]})
    where = hub(name, f"{folder}/test-00000-of-00001.parquet", **{image: cells[5:], "label": [7, 1]})
    made = data.load(name, where)
    assert np.array_equal(made.train.x, channels_first(pixels)[:5])
    assert np.array_equal(made.test.x, channels_first(pixels)[5:])
    assert made.train.y.tolist() == [9, 0, 4, 2, 2]
    assert made.test.y.tolist() == [7, 1]
    assert made.classes == 10
    assert made.source.endswith(f"{name}/hub")


def test_cifar100_has_fine_and_coarse_labels(hub):
    _, cells = pictures(3, 32)
    hub("cifar100", "cifar100/train-00000-of-00001.parquet", img=cells[:2], fine_label=[99, 3], coarse_label=[19, 8])
    where = hub("cifar100", "cifar100/test-00000-of-00001.parquet", img=cells[2:], fine_label=[5], coarse_label=[1])
    assert data.load("cifar100", where).train.y.tolist() == [99, 3]
    assert data.load("cifar100", where, coarse=True).train.y.tolist() == [19, 8]
    assert data.load("cifar100", where, coarse=True).test.y.tolist() == [1]


def test_cinic10_joins_its_validation_part_or_not(hub):
    pixels, cells = pictures(4, 32)
    for part, own in (("train", [0, 1]), ("validation", [2]), ("test", [3])):
        images = [cells[i] for i in own]
        where = hub("cinic10", f"data/{part}-00000-of-00001.parquet", image=images, label=own)
    joined, alone = (data.load("cinic10", where, valid=valid) for valid in ("train", "ignore"))
    assert joined.train.y.tolist() == [0, 1, 2]
    assert alone.train.y.tolist() == [0, 1]
    assert joined.test.y.tolist() == alone.test.y.tolist() == [3]
    assert np.array_equal(joined.train.x, channels_first(pixels)[:3])


def test_tiny_imagenet_takes_its_classes_names_from_the_file(hub):
    ids = [f"n{i:08}" for i in range(200)]
    (colour, grey), cells = zip(picture(64), picture(64, channels=1), strict=True)
    train = "data/train-00000-of-00001-1359597a978bc4fa.parquet"
    hub("tiny-imagenet", train, {"label": ids}, image=list(cells), label=[199, 0])
    where = hub("tiny-imagenet", "data/valid-00000-of-00001-70d5.parquet", image=list(cells), label=[1, 2])
    made = data.load("tiny-imagenet", where)
    assert made.labels == tuple(ids)
    assert np.array_equal(made.train.x[0], colour.transpose(2, 0, 1))
    assert (made.train.x[1] == grey).all()  # grey photographs have three equal channels
    assert made.test.y.tolist() == [1, 2]


def test_imagenet100_cuts_the_middle_out(hub):
    pixels, cells = pictures(2, 8, height=4)
    hub("imagenet100", "data/train-00000-of-00001.parquet", image=cells, label=[0, 99])
    where = hub("imagenet100", "data/validation-00000-of-00001.parquet", image=cells[:1], label=[5])
    made = data.load("imagenet100", where, pixels=4)
    assert np.array_equal(made.train.x, channels_first(pixels[:, :, 2:6]))
    assert made.classes == 100
    assert made.labels[:2] == ("0", "1")


def test_femnist_is_split_within_each_writer(hub):
    pixels, cells = pictures(61, 28, 1)
    writers = [f"f{i % 6:04}_00" for i in range(60)] + ["f0009_00"]
    columns = {"image": cells, "writer_id": writers, "hsf_id": [0] * 61, "character": list(range(61))}
    made = data.load("femnist", hub("femnist", "data/train-00000-of-00001.parquet", **columns))
    assert sorted(made.test.users.tolist()) == [f"f{i:04}_00" for i in range(6)]
    assert len(made.train) == 55
    for split in (made.train, made.test):
        for x, y, writer in zip(split.x, split.y, split.users, strict=True):
            assert np.array_equal(x[0], pixels[y])
            assert writer == writers[y]


def test_ham10000_takes_every_image_once_and_keeps_lesions_together(hub):
    words = ["actinic_keratoses", "basal_cell_carcinoma", "benign_keratosis-like_lesions", "dermatofibroma"]
    words += ["melanocytic_Nevi", "vascular_lesions", "melanoma"]
    pixels, cells = pictures(28, 6, height=4)
    names = [f"ISIC_{i:07}" for i in range(28)]
    lesions = [f"HAM_{i // 2:07}" for i in range(28)]  # two images of each
    classes = [words[i // 4] for i in range(28)]
    parts = {"train": range(20), "validation": range(10, 28), "test": range(5)}  # they overlap
    for part, own in parts.items():
        columns = {
            "image": [cells[i] for i in own],
            "image_id": [names[i] for i in own],
            "lesion_id": [lesions[i] for i in own],
            "dx": [classes[i] for i in own],
        }
        where = hub("ham10000", f"data/{part}-00000-of-00001.parquet", **columns)
    made = data.load("ham10000", where, pixels=6, held_out=2)
    assert (len(made.train), len(made.test)) == (14, 14)
    assert np.bincount(made.train.y).tolist() == np.bincount(made.test.y).tolist() == [2] * 7
    assert len({x.tobytes() for x in np.concatenate([made.train.x, made.test.x])}) == 28
    from PIL import Image

    scaled = [np.asarray(Image.fromarray(p).resize((6, 6), Image.Resampling.BILINEAR)) for p in pixels]
    known = {x.transpose(2, 0, 1).tobytes(): i for i, x in enumerate(scaled)}
    tested = {lesions[known[x.tobytes()]] for x in made.test.x}
    assert not tested & {lesions[known[x.tobytes()]] for x in made.train.x}
    assert made.test.y.tolist() == [known[x.tobytes()] // 4 for x in made.test.x]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"image": [None], "label": [0]}, "train-00000-of-00001.parquet, row 1 has no image in the column 'image'"),
        ({"image": [{"bytes": b"GIF89a?", "path": ""}], "label": [0]}, "parquet, row 1 cannot be decoded as an image"),
        ({"image": [picture(5, 1)[1]], "label": [0]}, "parquet, row 1 has 5 x 5 pixels"),
        ({"image": [picture(28, 1)[1]], "label": [10]}, "has the label 10; it must lie in 0..9"),
        ({"image": [picture(28, 1)[1]], "label": [None]}, "has the label None; it must lie in 0..9"),
        ({"picture": [picture(28, 1)[1]], "label": [1]}, "has no column 'image'; its columns are picture, label"),
        ({"image": [picture(28, 1)[1]]}, "has no column 'label'; its columns are image"),
    ],
)
def test_files_that_are_not_the_set_are_refused(hub, columns, sentence):
    hub("mnist", "mnist/train-00000-of-00001.parquet", **columns)
    good = {"image": [picture(28, 1)[1]], "label": [1]}
    with refused(sentence):
        data.load("mnist", hub("mnist", "mnist/test-00000-of-00001.parquet", **good))


def test_a_class_that_ham10000_does_not_know_is_named(hub):
    columns = {"image": [picture(6)[1]], "image_id": ["a"], "lesion_id": ["b"], "dx": ["wart"]}
    for part in ("train", "validation", "test"):
        where = hub("ham10000", f"data/{part}-00000-of-00001.parquet", **columns)
    with refused("has the class 'wart'; known are akiec, bcc"):
        data.load("ham10000", where)
