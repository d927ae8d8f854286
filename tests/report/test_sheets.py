from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_plots import drawable

from fedbraid.data.dataset import Dataset, Split
from fedbraid.errors import UserError
from fedbraid.report.sheets import EACH, MOST_CLASSES, shades, sheet
from fedbraid.report.style import DARK


def pictures(classes: int, each: int, channels: int = 3, names: tuple[str, ...] = ()) -> Dataset:
    """Image k is all of the shade k; every class from white to black but for its number."""
    y = np.repeat(np.arange(classes), each)
    x = np.broadcast_to(np.arange(len(y))[:, None, None, None] % 256, (len(y), channels, 4, 4)).astype(np.uint8)
    return Dataset("made up", Split(x, y), Split(x[:1], y[:1]), classes, labels=names)


def test_a_row_shows_images_of_its_class_from_its_whole_length() -> None:
    figure = sheet(pictures(3, 50))
    assert drawable(figure)
    image = figure.axes[0].images[0].get_array()
    assert image.shape == (3 * 5, EACH * 5, 3)
    first = image[0:4, :, 0].reshape(4, EACH, 5)[:, :, :4]
    assert (first == first[:1, :, :1]).all()  # whole images, one shade each
    shown = first[0, :, 0]
    np.testing.assert_allclose(shown, np.linspace(0, 49, EACH).astype(int) / 49)  # from the first to the last
    assert (image[4] == 1).all()  # paper between rows


def test_few_samples_and_many_classes() -> None:
    figure = sheet(pictures(45, 2, channels=1), theme=DARK)
    assert drawable(figure)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(labels) == MOST_CLASSES and labels[0] == "0" and labels[-1] == "44"
    assert "20 of 45 classes" in figure.axes[0].get_title(loc="left")


def test_names_stand_at_the_rows() -> None:
    labels = sheet(pictures(2, 1, names=("cat", "$dog$"))).axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == ["cat", "$dog$"]


def test_shades_span_from_the_lowest_value_to_the_highest() -> None:
    grey = shades(np.array([[[[3.0, 5.0], [7.0, 3.0]]]], dtype=np.float32))
    assert grey[0, :, :, 0].tolist() == [[0, 0.5], [1, 0]]
    assert (grey[..., 0] == grey[..., 2]).all()
    assert (shades(np.full((1, 1, 2, 2), 9)) == 0).all()


def test_what_has_no_rows_of_images_is_refused() -> None:
    made = pictures(2, 3)
    with pytest.raises(UserError, match="holds no images"):
        sheet(replace(made, train=Split(made.train.x.reshape(6, -1), made.train.y)))
    with pytest.raises(UserError, match="is a regression"):
        sheet(replace(made, task="regression", classes=1))
