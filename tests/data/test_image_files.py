"""Image files to arrays: every pixel in its place, one size for all, and a sentence for what is no image."""

import logging
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedbraid.data.formats import image_files as images
from fedbraid.data.formats import progress_lines as progress
from fedbraid.data.formats.image_files import Frame, decode_image, decode_images, native_frame
from fedbraid.errors import UserError

COLOURS = (np.arange(4 * 6 * 3) * 3 % 256).astype(np.uint8).reshape(4, 6, 3)
FRAME = Frame(channels=3, height=4, width=6)


def saved(path, pixels, **options):
    Image.fromarray(pixels).save(path, **options)
    return path


@pytest.mark.parametrize("ending", ["png", "bmp", "ppm", "tiff", "webp"])
def test_pixels_keep_their_place_with_the_channels_first(tmp_path, ending):
    file = saved(tmp_path / f"image.{ending}", COLOURS, **({"lossless": True} if ending == "webp" else {}))
    assert native_frame(file, 3) == FRAME
    assert np.array_equal(decode_image(file, FRAME), COLOURS.transpose(2, 0, 1))


def test_a_jpeg_is_nearly_what_was_saved(tmp_path):
    smooth = np.linspace(0, 255, 32 * 32).reshape(32, 32).astype(np.uint8)
    file = saved(tmp_path / "image.jpeg", np.stack([smooth] * 3, axis=2), quality=95)
    made = decode_image(file, Frame(3, 32, 32)).astype(int)
    assert abs(made - smooth).max() < 8


def test_grey_and_colour_are_made_of_each_other(tmp_path):
    grey = COLOURS[:, :, 0]
    as_colour = decode_image(saved(tmp_path / "grey.png", grey), FRAME)
    assert all(np.array_equal(channel, grey) for channel in as_colour)
    as_grey = decode_image(saved(tmp_path / "colour.png", COLOURS), Frame(1, 4, 6))
    luma = COLOURS @ [0.299, 0.587, 0.114]
    assert as_grey.shape == (1, 4, 6)
    assert abs(as_grey[0] - luma).max() <= 1


def test_palettes_and_transparency_are_seen_through(tmp_path):
    red = Image.new("P", (6, 4), 1)
    red.putpalette([0, 0, 0, 200, 10, 20])
    red.save(tmp_path / "palette.png", transparency=bytes([0, 128]))
    glass = Image.new("RGBA", (6, 4), (200, 10, 20, 128))
    glass.save(tmp_path / "glass.png")
    for name in ("palette.png", "glass.png"):
        assert np.unique(decode_image(tmp_path / name, FRAME).reshape(3, -1), axis=1).ravel().tolist() == [200, 10, 20]


def test_crop_keeps_the_middle_and_squash_keeps_all(tmp_path):
    """Three stripes of a wide image: black, grey, white."""
    stripes = np.repeat(np.array([0, 100, 255], np.uint8), 40)[None].repeat(40, axis=0)
    file = saved(tmp_path / "wide.png", stripes)
    cropped, squashed = (decode_image(file, Frame(1, 8, 8, fit))[0] for fit in ("crop", "squash"))
    assert (cropped[:, 1:-1] == 100).all()
    assert squashed[4, 0] == 0
    assert squashed[4, 7] == 255
    tall = saved(tmp_path / "tall.png", np.ascontiguousarray(stripes.T))
    assert np.array_equal(decode_image(tall, Frame(1, 8, 8, "crop"))[0], cropped.T)


@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 300))
def test_the_cut_out_is_square_and_within_the_image(width, height, side):
    left, top, right, bottom = images._middle((width, height), (side, side))
    assert left >= 0
    assert top >= 0
    assert (left, top) == pytest.approx((width - right, height - bottom))
    assert right - left == pytest.approx(min(width, height))
    assert bottom - top == pytest.approx(min(width, height))
    Image.new("L", (width, height)).resize((side, side), box=(left, top, right, bottom))


def test_scaling_averages_over_what_becomes_one_pixel(tmp_path):
    checks = (np.indices((64, 64)).sum(axis=0) % 2 * 255).astype(np.uint8)
    made = decode_image(saved(tmp_path / "checks.png", checks), Frame(1, 8, 8, "squash"))
    assert abs(made.astype(int) - 127).max() <= 3


def test_another_size_is_refused_where_sizes_must_agree(tmp_path):
    with pytest.raises(UserError, match=r"image.png has 6 x 4 pixels where 8 x 8 are expected; the data set"):
        decode_image(saved(tmp_path / "image.png", COLOURS), Frame(3, 8, 8))


def test_many_images_are_decoded_in_their_order(tmp_path):
    files = [saved(tmp_path / f"{k}.png", np.full((4, 6), k % 256, np.uint8)) for k in range(300)]
    out = np.zeros((300, 1, 4, 6), np.uint8)
    decode_images(files, Frame(1, 4, 6), out)
    assert np.array_equal(out, (np.arange(300) % 256)[:, None, None, None].repeat(4, 2).repeat(6, 3))
    files[200].write_bytes(b"broken")
    with pytest.raises(UserError, match=r"200.png cannot be decoded"):
        decode_images(files, Frame(1, 4, 6), out)


def test_long_work_is_told_of(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    monkeypatch.setattr(images, "BLOCK", 2)
    files = [saved(tmp_path / "image.png", COLOURS)] * 5
    with caplog.at_level(logging.INFO, "fedbraid"):
        decode_images(files, FRAME, np.zeros((5, 3, 4, 6), np.uint8))
    assert caplog.messages == ["decoding 5 images", *(f"decoded {n} of 5 images" for n in (2, 4, 5))]
    caplog.clear()
    monkeypatch.setattr(progress, "EVERY", 60.0)
    with caplog.at_level(logging.INFO, "fedbraid"):
        decode_images(files, FRAME, np.zeros((5, 3, 4, 6), np.uint8))
    assert caplog.messages == ["decoding 5 images"]


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width, height, body=b""):
    """A PNG file of 8-bit grey that promises what it need not hold."""
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "cannot be decoded as an image"),
        (b"just text", "cannot be decoded as an image"),
        (png(8192, 8193), r"promises 8192 x 8193 pixels; 67,108,864 are the most"),
        (png(10000, 10000), "cannot be decoded as an image .*decompression bomb|promises"),
        (png(50000, 50000), "cannot be decoded as an image .*decompression bomb"),
        (png(6, 4)[:40], "cannot be decoded as an image"),
        (png(6, 4, bytes(3)), "cannot be decoded as an image"),
    ],
)
def test_what_is_no_image_is_refused_in_a_sentence(tmp_path, content, reason):
    file = tmp_path / "image.png"
    file.write_bytes(content)
    with pytest.raises(UserError, match=reason) as told:
        decode_image(file, FRAME)
    assert str(file) in str(told.value)


def test_formats_that_nobody_needs_are_not_opened(tmp_path):
    """Pillow would read this one, as it would start Ghostscript for another."""
    file = tmp_path / "image.png"
    Image.fromarray(COLOURS).save(file, format="SGI")
    with pytest.raises(UserError, match="cannot be decoded as an image"):
        decode_image(file, FRAME)


def test_every_cut_of_a_file_is_an_image_or_a_sentence(tmp_path):
    """A file may end anywhere; nothing but a UserError may come of it."""
    for name in ("image.png", "image.jpg", "image.gif", "image.webp", "image.tiff"):
        content = saved(tmp_path / name, COLOURS).read_bytes()
        file = tmp_path / f"cut-{name}"
        for end in range(0, len(content), 7):
            file.write_bytes(content[:end])
            try:
                assert decode_image(file, FRAME).shape == (3, 4, 6)
            except UserError as told:
                assert str(file) in str(told)


def test_more_than_8_bits_are_refused_rather_than_clipped(tmp_path):
    Image.fromarray(np.full((4, 6), 40000, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(UserError, match=r"deep.png has pixels of more than 8 bits"):
        decode_image(tmp_path / "deep.png", FRAME)


def test_sizes_that_no_file_may_have_cannot_be_asked_for():
    Frame(3, 8192, 8192)
    with pytest.raises(UserError, match="images of 20000 x 20000 pixels are asked for; 67,108,864 are the most"):
        Frame(3, 20000, 20000, "crop")


def test_files_that_cannot_be_read_are_named(tmp_path, monkeypatch):
    def forbidden(*_, **__):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UserError, match=r"folder.png cannot be read \(Is a directory"):
        decode_image(tmp_path / "folder.png", FRAME)
    monkeypatch.setattr(Image, "open", forbidden)
    with pytest.raises(UserError, match=r"image.png cannot be read \(Permission denied"):
        decode_image(tmp_path / "image.png", FRAME)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere.png cannot be read \(No such file"):
        decode_image(tmp_path / "nowhere.png", FRAME)
