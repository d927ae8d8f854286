"""Sets that come as folders of image files: CINIC-10, Tiny ImageNet, ImageNet-100, a user's own."""

import os

import numpy as np
import pytest
from PIL import Image

from fedbraid import data
from fedbraid.data.datasets.cifar_labels import CIFAR10
from fedbraid.data.datasets.decoding import decoded_images
from fedbraid.data.formats.class_folders import class_folders, images_by_class
from fedbraid.data.formats.image_files import Frame
from fedbraid.errors import UserError


def save(path, value, size=(32, 32)):
    """A colour image of one value, which tells where it came from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, value, value)).save(path)


def values(split):
    return [int(image[0, 0, 0]) for image in split.x]


def test_listings_are_sorted_and_leave_other_files_out(tmp_path):
    many = [f"b/{name}.png" for name in "qwertyuiopasdfghjklzxcvbnm"]
    for name in ("b/2.png", "b/10.JPG", "a/x.jpeg", ".hidden/y.png", *many):
        save(tmp_path / name, 0)
    for name in ("b/.z.png", "b/notes.txt", "a/Thumbs.db", "readme.png"):
        (tmp_path / name).write_text("no image")
    assert class_folders(tmp_path) == ("a", "b")
    listing = images_by_class(tmp_path, ("a", "b", "c"))
    names = [str(file.relative_to(tmp_path)) for file in listing.files]
    assert names == ["a/x.jpeg", "b/10.JPG", "b/2.png", *sorted(many)]
    assert list(listing.y) == [0] + [1] * 28


def test_folders_without_images_are_told(tmp_path):
    with pytest.raises(UserError, match=r"nowhere cannot be listed \(No such file"):
        class_folders(tmp_path / "nowhere")
    with pytest.raises(UserError, match="has no class folders"):
        class_folders(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(UserError, match="hold no images"):
        images_by_class(tmp_path, ("a",))
    with pytest.raises(UserError, match=r"/a is a class that the training images lack"):
        images_by_class(tmp_path, ("b",))


@pytest.fixture
def cinic(tmp_path):
    for k, name in enumerate(CIFAR10):
        for part, first in (("train", 0), ("valid", 100), ("test", 200)):
            save(tmp_path / "CINIC-10" / part / name / "cifar10-train-1.png", first + k)
    return tmp_path


def test_cinic10_adds_the_validation_images_or_ignores_them(cinic):
    joined, alone = data.load("cinic10", cinic), data.load("cinic10", cinic, valid="ignore")
    assert values(joined.train) == [*range(10), *range(100, 110)]
    assert list(joined.train.y) == [*range(10)] * 2
    assert values(alone.train) == [*range(10)]
    assert values(joined.test) == values(alone.test) == [*range(200, 210)]
    assert joined.labels == CIFAR10
    assert joined.mean == pytest.approx((122.118, 120.431, 109.771), abs=1e-3)
    with pytest.raises(UserError, match=r"^valid must be 'train' or 'ignore', not 'test'"):
        data.load("cinic10", cinic, valid="test")


def test_cinic10_refuses_images_of_another_size(cinic, monkeypatch):
    monkeypatch.setenv("FEDBRAID_CACHE", str(cinic / "cache"))
    save(cinic / "CINIC-10/test/cat/big.png", 3, (33, 32))
    with pytest.raises(UserError, match=r"test/cat/big.png has 33 x 32 pixels"):
        data.load("cinic10", cinic)
    assert [p.name for p in (cinic / "cache/decoded").iterdir() if not p.name.endswith(".lock")] == []


@pytest.fixture
def tiny(tmp_path):
    root = tmp_path / "tiny-imagenet-200"
    for k, wnid in enumerate(("n02", "n01", "n03")):
        for image in range(2):
            save(root / "train" / wnid / "images" / f"{wnid}_{image}.JPEG", 10 * k + image, (64, 64))
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
    (root / "wnids.txt").write_text("n02\nn01\nn03\n")
    return tmp_path


def validation_table(root):
    told = [("val_0.JPEG", "n03", 222), ("val_1.JPEG", "n01", 111), ("val_2.JPEG", "n02", 33)]
    for name, _, value in told:
        save(root / "val/images" / name, value, (64, 64))
    lines = "".join(f"{name}\t{wnid}\t0\t0\t62\t62\n" for name, wnid, _ in told)
    (root / "val/val_annotations.txt").write_text(lines)


def test_tiny_imagenet_has_the_order_of_its_list_and_the_table_of_its_validation_images(tiny):
    root = tiny / "tiny-imagenet-200"
    validation_table(root)
    (root / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn02\tcat\nn99\tother\n")
    made = data.load("tiny-imagenet", tiny)
    assert made.shape == (3, 64, 64)
    assert made.labels == ("cat", "goldfish", "n03")
    assert list(made.train.y) == [0, 0, 1, 1, 2, 2]
    assert values(made.train) == pytest.approx([0, 1, 10, 11, 20, 21], abs=2)
    assert list(made.test.y) == [2, 1, 0]
    assert values(made.test) == pytest.approx([222, 111, 33], abs=2)


def test_tiny_imagenet_takes_validation_images_sorted_into_classes(tiny):
    root = tiny / "tiny-imagenet-200"
    save(root / "val/n01/images/val_0.JPEG", 111, (64, 64))
    save(root / "val/n02/val_2.JPEG", 33, (64, 64))
    made = data.load("tiny-imagenet", tiny)
    assert list(made.test.y) == [0, 1]
    assert values(made.test) == pytest.approx([33, 111], abs=2)
    assert made.labels == ("n02", "n01", "n03")


def test_tiny_imagenet_can_be_scaled_like_any_set(tiny):
    validation_table(tiny / "tiny-imagenet-200")
    assert data.load("tiny-imagenet", tiny, pixels=32).shape == (3, 32, 32)


@pytest.mark.parametrize(
    ("table", "reason"),
    [("val_0.JPEG\tn07\n", r"line 1 names the class 'n07', which is not in wnids.txt"), ("", "is empty")],
)
def test_tiny_imagenet_refuses_an_odd_table(tiny, table, reason):
    root = tiny / "tiny-imagenet-200"
    validation_table(root)
    (root / "val/val_annotations.txt").write_text(table)
    with pytest.raises(UserError, match=f"val_annotations.txt.* ?{reason}"):
        data.load("tiny-imagenet", tiny)


def test_a_missing_validation_image_is_named(tiny):
    validation_table(tiny / "tiny-imagenet-200")
    (tiny / "tiny-imagenet-200/val/images/val_1.JPEG").unlink()
    with pytest.raises(UserError, match=r"val_1.JPEG cannot be read \(No such file"):
        data.load("tiny-imagenet", tiny)


def test_imagenet100_crops_to_one_size(tmp_path):
    for k in range(100):
        save(tmp_path / "imagenet100/train" / f"n{k:03}" / "a.JPEG", k, (50 + k, 60))
    save(tmp_path / "imagenet100/val/n007/b.JPEG", 7, (40, 90))
    made = data.load("imagenet100", tmp_path, pixels=16)
    assert made.shape == (3, 16, 16)
    assert values(made.train) == pytest.approx(list(range(100)), abs=2)
    assert list(made.test.y) == [7]
    assert data.load("imagenet100", tmp_path).shape == (3, 64, 64)
    (tmp_path / "imagenet100/train/n100").mkdir()
    with pytest.raises(UserError, match=r"has 101 class folders and ImageNet-100 has 100; the data set 'folder'"):
        data.load("imagenet100", tmp_path)
    with pytest.raises(UserError, match=r"^pixels must be a whole number of at least 1"):
        data.load("imagenet100", tmp_path, pixels=0)


@pytest.fixture
def own(tmp_path):
    for k in range(10):
        save(tmp_path / "own/dog" / f"{k}.png", k)
    for k in range(5):
        save(tmp_path / "own/cat" / f"{k}.png", 100 + k)
    return tmp_path / "own"


def test_a_share_of_every_class_is_held_out(own):
    made = data.load("folder", path=str(own))
    assert made.labels == ("cat", "dog")
    assert list(np.bincount(made.train.y)) == [4, 8]
    assert list(np.bincount(made.test.y)) == [1, 2]
    assert sorted(values(made.train) + values(made.test)) == [*range(10), *range(100, 105)]
    assert all((value >= 100) == (label == 0) for value, label in zip(values(made.test), made.test.y, strict=True))
    again, other = data.load("folder", path=str(own)), data.load("folder", path=str(own), seed=3)
    assert values(again.test) == values(made.test)
    assert values(other.test) != values(made.test)
    assert list(np.bincount(data.load("folder", path=str(own), test_share=0.5).test.y)) == [2, 5]


def test_the_same_files_are_labelled_anew_when_the_classes_change(own):
    for classes, first in ((("cat", "dog"), 0), (("ant", "cat", "dog"), 1)):
        images = images_by_class(own, classes)
        kept = decoded_images("folder", Frame(3, 32, 32), images, images)
        assert kept.arrays["train_y"].tolist() == [first] * 5 + [first + 1] * 10


def test_a_class_folder_without_images_is_told(own):
    save(own / "ant/deeper/1.png", 1)
    with pytest.raises(UserError, match=r"own/ant holds no images; put some right into it, or leave the folder out"):
        data.load("folder", path=str(own))


def test_links_to_class_folders_are_followed(own, tmp_path):
    for k in range(5):
        save(tmp_path / "elsewhere" / f"{k}.png", 200 + k)
    (own / "ant").symlink_to(tmp_path / "elsewhere")
    (own / "gone").symlink_to(tmp_path / "nowhere")
    made = data.load("folder", path=str(own))
    assert made.labels == ("ant", "cat", "dog")
    assert {*values(made.train), *values(made.test)} >= {*range(200, 205)}


def test_names_that_are_not_utf_8_are_refused_for_classes_and_taken_for_images(own):
    before = data.load("folder", path=str(own))
    try:
        save(own / "cat" / os.fsdecode(b"caf\xe9.png"), 150)
    except OSError:
        pytest.skip("this file system takes no other names")
    made = data.load("folder", path=str(own))
    assert len(made.train) + len(made.test) == len(before.train) + len(before.test) + 1
    (own / os.fsdecode(b"caf\xe9")).mkdir()
    with pytest.raises(UserError, match=r"own has the class folder b'caf\\xe9', which is not UTF-8; rename it"):
        data.load("folder", path=str(own))


@pytest.mark.parametrize("options", [{}, {"pixels": 8}])
def test_pipes_among_the_images_are_refused_and_not_waited_for(own, options):
    for name in ("cat/0.png", "cat/z.png", "dog/a.png"):
        (own / name).unlink(missing_ok=True)
        os.mkfifo(own / name)
    with pytest.raises(UserError, match=r"png is no regular file"):
        data.load("folder", path=str(own), **options)


@pytest.mark.parametrize("function", ["scandir", "listdir"])
def test_a_folder_that_may_not_be_looked_into_is_named(own, monkeypatch, function):
    allowed = getattr(os, function)

    def some(path):
        if path in (own, own / "dog"):
            raise PermissionError(13, "Permission denied", str(path))
        return allowed(path)

    monkeypatch.setattr(os, function, some)
    with pytest.raises(UserError, match=r"own(/dog)? cannot be listed \(Permission denied\)"):
        data.load("folder", path=str(own))


def test_sizes_beyond_any_image_are_refused(own):
    with pytest.raises(UserError, match="images of 20000 x 20000 pixels are asked for"):
        data.load("folder", path=str(own), pixels=20000)


def test_own_images_are_normalised_by_their_own_channels(own):
    made = data.load("folder", path=str(own))
    assert made.mean == pytest.approx([made.train.x.mean()] * 3)
    assert made.std == pytest.approx([made.train.x.std()] * 3)
    assert data.load("folder", path=str(own), normalise="half").mean == (127.5,)
    grey = data.load("folder", path=str(own), grey=True)
    assert grey.shape == (1, 32, 32)
    assert len(grey.mean) == 1


@pytest.mark.parametrize("name", ["test", "val"])
def test_folders_for_training_and_testing_are_taken_as_they_are(tmp_path, name):
    save(tmp_path / "train/a/1.png", 1)
    save(tmp_path / "train/b/2.png", 2)
    save(tmp_path / name / "b/3.png", 3)
    made = data.load("folder", path=str(tmp_path))
    assert (values(made.train), list(made.train.y)) == ([1, 2], [0, 1])
    assert (values(made.test), list(made.test.y)) == ([3], [1])
    save(tmp_path / name / "c/4.png", 4)
    with pytest.raises(UserError, match=f"{name}/c is a class that the training images lack"):
        data.load("folder", path=str(tmp_path))


def test_a_class_may_be_called_train(own):
    for k in range(5):
        save(own / "train" / f"{k}.png", 50 + k)
        save(own / "test" / f"{k}.png", 60 + k)
    assert data.load("folder", path=str(own)).labels == ("cat", "dog", "test", "train")


def test_own_images_of_many_sizes_need_a_size(own):
    save(own / "cat/wide.png", 9, (64, 32))
    with pytest.raises(UserError, match="brings images to one size if its option pixels is given"):
        data.load("folder", path=str(own))
    assert data.load("folder", path=str(own), pixels=8).shape == (3, 8, 8)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"path": ""}, "^data set 'folder' needs the option path"),
        ({"path": "/nowhere"}, "^path names /nowhere, which is not there"),
        ({"grey": 1}, "^grey must be true or false"),
        ({"pixels": -1}, "^pixels must be a whole number"),
        ({"test_share": 1.0}, "^test_share must be"),
        ({"seed": "a"}, "^seed must be"),
        ({"normalise": "no"}, "^normalise must be"),
        ({"test_share": 0.01}, "test_share=0.01 of the images in .* is less than one of any class"),
    ],
)
def test_odd_options_are_told(own, options, reason):
    with pytest.raises(UserError, match=reason):
        data.load("folder", **({"path": str(own)} | options))


@pytest.mark.slow
def test_the_real_tiny_imagenet(real_data):
    made = data.load("tiny-imagenet", real_data("tiny-imagenet-32/wnids.txt"))
    assert made.shape in ((3, 32, 32), (3, 64, 64))
    assert list(np.bincount(made.train.y)) == [500] * 200
    assert list(np.bincount(made.test.y)) == [50] * 200
    assert made.mean == pytest.approx(made.train.x[::20].mean((0, 2, 3)), abs=1.5)
