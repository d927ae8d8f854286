"""HAM10000: lesions stay on one side of the split, in both layouts alike."""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedbraid import data
from fedbraid.data.datasets.ham10000 import CLASSES, Cases, held_out_images
from fedbraid.errors import UserError


def write_metadata(folder, rows, packed=False):
    folder.mkdir(parents=True, exist_ok=True)
    text = "lesion_id,image_id,dx,dx_type,age,sex,localization\n"
    text += "".join(f"{lesion},{image},{dx},histo,80.0,male,scalp\n" for lesion, image, dx in rows)
    if packed:
        (folder / "HAM10000_metadata.csv.gz").write_bytes(gzip.compress(text.encode()))
    else:
        (folder / "HAM10000_metadata.csv").write_text(text)


ROWS = [(f"HAM_{dx}_{k // 2}", f"ISIC_{c}{k}", dx) for k in range(7) for c, dx in enumerate(reversed(CLASSES))]
"""Seven images of every class: three lesions with two images, one with one."""


@pytest.fixture
def small(tmp_path):
    write_metadata(tmp_path / "ham10000", ROWS, packed=True)
    x = np.zeros((len(ROWS), 28, 28, 3), np.uint8)
    x[..., 1] = np.arange(len(ROWS))[:, None, None]
    y = [CLASSES.index(dx) for *_, dx in ROWS]
    np.savez_compressed(tmp_path / "ham10000" / "ham10000_28x28_rgb.npz", x=x, y=np.array(y, np.uint8))
    return tmp_path


@pytest.fixture
def photographs(tmp_path):
    folder = tmp_path / "photographs" / "HAM10000"
    write_metadata(folder, ROWS)
    for at, (_, image, _) in enumerate(ROWS):
        part = folder / f"HAM10000_images_part_{1 + at % 2}"
        part.mkdir(exist_ok=True)
        photograph = Image.new("RGB", (60, 45), (at, at, at))
        photograph.paste((255, 255, 255), (0, 0, 7, 45))  # what a square cut out of the middle would lack
        photograph.save(part / f"{image}.jpg", quality=95)
    return tmp_path / "photographs"


def lesions(split, channel=1):
    return {ROWS[int(image[channel].max())][0] for image in split.x}


def test_images_are_split_by_lesion(small):
    made = data.load("ham10000", small, held_out=3)
    assert made.shape == (3, 28, 28)
    assert made.labels == CLASSES
    assert list(np.bincount(made.test.y)) == [3] * 7
    assert list(np.bincount(made.train.y)) == [4] * 7
    assert not lesions(made.train) & lesions(made.test)
    assert all(ROWS[int(x[1, 0, 0])][2] == CLASSES[y] for x, y in zip(made.test.x, made.test.y, strict=True))
    assert not made.train.x[:, [0, 2]].any()


def test_photographs_are_split_alike_and_scaled_whole(small, photographs):
    archive = data.load("ham10000", small, held_out=3)
    made = data.load("ham10000", photographs, held_out=3, pixels=12)
    assert made.source.endswith("HAM10000")
    assert made.shape == (3, 12, 12)
    for ours, theirs in ((made.train, archive.train), (made.test, archive.test)):
        assert np.array_equal(ours.y, theirs.y)
        assert abs(ours.x[:, 1, 6, 6].astype(int) - theirs.x[:, 1, 0, 0]).max() <= 1
        assert ours.x[:, :, :, 0].min() > 200


def test_the_archives_images_can_be_scaled(small):
    plain, large = data.load("ham10000", small, held_out=3), data.load("ham10000", small, held_out=3, pixels=56)
    assert large.shape == (3, 56, 56)
    assert np.array_equal(large.train.x[:, :, 0, 0], plain.train.x[:, :, 0, 0])


def test_another_seed_holds_other_lesions_out(small):
    first, again, other = (data.load("ham10000", small, held_out=3, seed=s) for s in (0, 0, 1))
    assert lesions(first.test) == lesions(again.test)
    assert lesions(first.test) != lesions(other.test)


@given(st.lists(st.lists(st.integers(1, 4), min_size=2, max_size=12), min_size=7, max_size=7), st.integers(1, 12))
def test_every_class_gives_just_so_many_images_or_none_at_all(sizes, held_out):
    y = np.repeat(np.arange(7), [sum(of) for of in sizes])
    names = [f"{k}-{at}" for k, of in enumerate(sizes) for at, size in enumerate(of) for _ in range(size)]
    cases = Cases(tuple(map(str, range(len(y)))), np.array(names), y)
    try:
        is_test = held_out_images(cases, held_out, 0)
    except UserError as told:
        assert f"held_out={held_out} cannot be taken from class" in str(told)
        assert any(sum(of) <= held_out or 1 not in of for of in sizes)
        return
    assert list(np.bincount(y[is_test], minlength=7)) == [held_out] * 7
    assert np.bincount(y[~is_test], minlength=7).all()
    assert not set(cases.lesions[is_test]) & set(cases.lesions[~is_test])


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([], "must name the columns image_id, lesion_id, dx in its first line, and images"),
        ([("HAM_1", "ISIC_1", "wart")], "has the class 'wart'; known are akiec, bcc"),
        ([("HAM_1", "ISIC_1", "nv"), ("HAM_1", "ISIC_2", "mel")], "gives lesion 'HAM_1' two classes, 'nv' and 'mel'"),
        (ROWS[:-1], "held_out=7 cannot be taken from class 'akiec' with 6 images of 3 lesions"),
    ],
)
def test_odd_metadata_are_refused_in_a_sentence(tmp_path, rows, reason):
    write_metadata(tmp_path / "ham10000", rows)
    np.savez(tmp_path / "ham10000" / "28x28.npz", x=np.zeros((1, 28, 28, 3), np.uint8), y=np.zeros(1, np.uint8))
    with pytest.raises(UserError, match=reason):
        data.load("ham10000", tmp_path, held_out=7)


def test_rows_that_end_early_and_other_tables_are_refused(small):
    file = small / "ham10000" / "HAM10000_metadata.csv"
    file.write_text("lesion_id,image_id,dx\nHAM_1,ISIC_1\n")
    with pytest.raises(UserError, match="has rows with fewer cells than its first line"):
        data.load("ham10000", small)
    file.write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match=r"HAM10000_metadata.csv must name the columns"):
        data.load("ham10000", small)


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"x": np.zeros((49, 28, 28, 3), np.uint8)}, "must hold x, 8-bit images"),
        ({"x": np.zeros((49, 28, 28), np.uint8), "y": np.zeros(49, int)}, "must hold x, 8-bit images"),
        ({"x": np.zeros((49, 28, 28, 3)), "y": np.zeros(49, int)}, "must hold x, 8-bit images"),
        ({"x": np.zeros((49, 28, 28, 3), np.uint8), "y": np.zeros(49, int)}, "its classes are others"),
        (
            {"x": np.zeros((48, 28, 28, 3), np.uint8), "y": [CLASSES.index(r[2]) for r in ROWS]},
            "its classes are others",
        ),
    ],
)
def test_an_archive_of_other_images_is_refused(small, members, reason):
    np.savez(small / "ham10000" / "ham10000_28x28_rgb.npz", **members)
    with pytest.raises(UserError, match=f"ham10000_28x28_rgb.npz .*{reason}"):
        data.load("ham10000", small, held_out=3)


def test_missing_photographs_are_counted(photographs):
    (photographs / "HAM10000/HAM10000_images_part_2/ISIC_01.jpg").unlink()
    with pytest.raises(UserError, match=r"lacks 1 of 49 images, among them ISIC_01.jpg"):
        data.load("ham10000", photographs, held_out=3)


def test_the_real_images(real_data):
    place = real_data("ham10000/ham10000_28x28_rgb.npz")
    made = data.load("ham10000", place)
    assert list(np.bincount(made.test.y)) == [30] * 7
    assert list(np.bincount(made.train.y) + 30) == [327, 514, 1099, 115, 6705, 142, 1113]
    assert made.mean == pytest.approx(made.train.x.mean((0, 2, 3)), abs=1)
    assert made.std == pytest.approx(made.train.x.std((0, 2, 3)), abs=1)
