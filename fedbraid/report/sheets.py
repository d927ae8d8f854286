"""Samples of an image data set on one sheet: a row for each class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedbraid.data.dataset import Array, Dataset
from fedbraid.data.dataset_facts import class_name, is_image, some_classes, some_of_class
from fedbraid.errors import UserError
from fedbraid.report.style import DPI, LIGHT, SMALL, WIDTH, Theme, new_figure, style_axes
from fedbraid.report.words import shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CLASSES, EACH = 20, 10

Pixels = NDArray[np.float64]
"""[height, width, 3], red, green and blue between 0 and 1."""


def sheet(dataset: Dataset, *, theme: Theme = LIGHT) -> Figure:
    """A few training images of every class, or of some classes where there are many; always the same ones."""
    if not is_image(dataset):
        raise UserError(f"{dataset.name} holds no images, so there is no picture of its samples")
    if dataset.task != "classification":
        raise UserError(f"a picture has a row for each class, and {dataset.name} is a regression")
    labels = some_classes(dataset, MOST_CLASSES).tolist()
    rows = [shades(dataset.train.x[some_of_class(dataset, label, EACH)]) for label in labels]
    height, width = rows[0].shape[1:3]
    side = (WIDTH - 1.4) / EACH
    figure = new_figure(0.35 + len(rows) * side * height / width, theme)
    axes = style_axes(figure.subplots(), theme, frame=False, grid=False)
    axes.imshow(_laid_out(rows, theme), interpolation="nearest" if width < side * DPI else "antialiased")
    axes.set_yticks(
        [(place + 0.5) * (height + _gap(height)) for place in range(len(rows))],
        [shortened(class_name(dataset, label), 20) for label in labels],
        parse_math=False,
    )
    axes.set_xticks([])
    some = "" if len(labels) == dataset.classes else f"{len(labels)} of {dataset.classes} classes; "
    axes.set_title(
        f"{some}{len(dataset.train):,} training images of {height}×{width} pixels",
        loc="left",
        fontsize=SMALL,
        color=theme.muted,
        pad=4,
    )
    return figure


def shades(images: Array) -> Pixels:
    """Images [n, 1 or 3, height, width] as [n, height, width, 3], from their lowest value to their highest."""
    low, high = float(images.min()), float(images.max())
    even = (images.astype(np.float64) - low) / max(high - low, 1e-12)
    colours: Pixels = np.broadcast_to(even, (len(even), 3, *even.shape[2:])).transpose(0, 2, 3, 1)
    return colours


def _gap(height: int) -> int:
    return max(1, height // 16)


def _laid_out(rows: list[Pixels], theme: Theme) -> Pixels:
    """The rows below each other, their images side by side, paper between them."""
    from matplotlib.colors import to_rgb

    height, width = rows[0].shape[1:3]
    gap = _gap(height)
    drawn = np.empty((len(rows) * (height + gap), EACH * (width + gap), 3))
    drawn[:] = to_rgb(theme.paper)
    for row, images in enumerate(rows):
        for column, image in enumerate(images):
            top, left = row * (height + gap), column * (width + gap)
            drawn[top : top + height, left : left + width] = image
    return drawn
