"""Changes to a data set before it is partitioned: a long tail, fewer samples, other image sizes.

None of it depends on a run's seed, so that accuracies stay comparable between seeds.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from numbers import Real
from sys import float_info
from typing import Any

import numpy as np

from fedbraid.config.registry import whole
from fedbraid.core.random import stream
from fedbraid.data.cache import ArrayWriter, decoded
from fedbraid.data.dataset import Array, Dataset, Split
from fedbraid.data.partitions.shares import Indices
from fedbraid.errors import UserError

MOST_PIXELS = 1024
"""A side of a scaled image."""


def shaped(
    dataset: Dataset,
    *,
    pixels: int = 0,
    samples: int = 0,
    test_samples: int = 0,
    long_tail: float = 1.0,
    test_long_tail: float = 1.0,
) -> Dataset:
    """The data set with fewer samples or images of another size; with 0 and 1 it is left as it is.

    `long_tail` (FedDisco's ρ) makes classes rarer from the first to the last, down to 1/ρ of the largest class. Then
    `samples` keeps at most so many, the same share of every class. Both have a twin for the test samples. Images are
    scaled to `pixels` x `pixels`.
    """
    if (pixels, samples, test_samples, long_tail, test_long_tail) == (0, 0, 0, 1, 1):
        return dataset
    train = _fewer(dataset, dataset.train, "", long_tail, samples)
    test = _fewer(dataset, dataset.test, "test_", test_long_tail, test_samples)
    if whole("pixels", pixels, 0) and dataset.shape[1:] != (pixels, pixels):
        if len(dataset.shape) != 3:
            raise UserError(
                f"pixels scales images, but {dataset.name}'s samples have shape {dataset.shape}; leave it out"
            )
        if pixels > MOST_PIXELS:
            raise UserError(f"pixels must be at most {MOST_PIXELS} a side, not {pixels}")
        train, test = (replace(split, x=scaled(split.x, pixels)) for split in (train, test))
    return replace(dataset, train=train, test=test)


def tail(counts: Indices, rho: float) -> Indices:
    """Return the samples left of each class: int(n_max ρ^(-k / (K - 1))) of class k of K, at most all."""
    steps = np.arange(len(counts)) / max(1, len(counts) - 1)
    wanted = counts.max() * rho**-steps
    # Rounding can take a whole number just below itself; int() must not make that one less.
    kept: Indices = np.minimum(counts, np.floor(wanted * (1 + 1e-12)).astype(np.int64))
    return kept


def portion(counts: Indices, total: int) -> Indices:
    """`total` samples with the same share of every class, rounded to whole samples, at least one of each class."""
    exact = counts * (total / counts.sum())
    kept: Indices = np.maximum(counts * total // counts.sum(), counts > 0)
    while kept.sum() < total:
        kept[np.argmax(exact - kept)] += 1
    while kept.sum() > total:  # where rare classes were rounded up, the most common ones pay for it
        kept[np.argmax(kept)] -= 1
    return kept


def scaled(images: Array, pixels: int) -> Array:
    """Images [n, channels, height, width] as squares: bilinear, averaging over all pixels that become one.

    They are kept like other decoded data, under the images' content: the second start does not scale again.
    """
    options = {"images": _content(images), "pixels": pixels}
    return decoded("scaled", [], options, lambda writer: scale(images, pixels, writer)).arrays["images"]


def scale(images: Array, pixels: int, writer: ArrayWriter) -> dict[str, Any]:
    """Write the squares through `writer`."""
    from PIL import Image  # only here: it takes its time to import

    def square(picture: Array) -> Array:
        return np.asarray(Image.fromarray(picture).resize((pixels, pixels), Image.Resampling.BILINEAR))

    kind = np.uint8 if images.dtype == np.uint8 else np.float32
    is_colour = kind == np.uint8 and images.shape[1] == 3  # one picture instead of three takes half the time
    made = writer.array("images", (*images.shape[:2], pixels, pixels), kind)
    for image, out in zip(images, made, strict=True):
        if is_colour:
            out[:] = square(np.ascontiguousarray(image.transpose(1, 2, 0))).transpose(2, 0, 1)
        else:
            out[:] = [square(plane) for plane in image.astype(kind, copy=False)]
    return {}


def _content(values: Array) -> str:
    """A digest of what an array holds, read in blocks, since it may be larger than memory."""
    digest = hashlib.sha256(repr((values.shape, values.dtype.str)).encode())
    block = max(1, (64 << 20) // max(1, values[:1].nbytes))
    for at in range(0, len(values), block):
        digest.update(np.ascontiguousarray(values[at : at + block]).data)
    return digest.hexdigest()


def _fewer(dataset: Dataset, split: Split, prefix: str, rho: float, samples: int) -> Split:
    """The split cut to a long tail and to a number; `prefix` is what its options' names begin with."""
    rho, samples = _rarity(f"{prefix}long_tail", rho), whole(f"{prefix}samples", samples, 0)
    if rho > 1 and dataset.task != "classification":
        raise UserError(f"{prefix}long_tail needs classes, and {dataset.name} is a regression; leave it out")
    kinds = split.y if dataset.task == "classification" else np.zeros(len(split), dtype=np.int64)
    counts = np.bincount(kinds, minlength=dataset.classes)
    kept = tail(counts, rho)
    if np.any((kept == 0) & (counts > 0)):
        raise UserError(
            f"{prefix}long_tail={rho:g} leaves nothing of the last class; {prefix}long_tail={counts.max()} would work"
        )
    if 0 < samples < kept.sum():
        occurring = int(np.count_nonzero(kept))
        if samples < occurring:
            raise UserError(
                f"{prefix}samples={samples} cannot keep one of each of {occurring} classes; "
                f"{prefix}samples={occurring} would work"
            )
        kept = portion(kept, samples)
    if np.array_equal(kept, counts):
        return split  # nothing is copied: the samples may be on disk
    chosen = _chosen(kinds, kept, stream(0, f"{prefix}shape"))
    return Split(split.x[chosen], split.y[chosen], None if split.users is None else split.users[chosen])


def _rarity(name: str, value: Any) -> float:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if is_number and 1 <= value <= float_info.max:
        return float(value)
    raise UserError(
        f"{name} is how much rarer the last class is than the first: a finite number of at least 1, such as 10, "
        f"not {value!r}"
    )


def _chosen(kinds: Array, kept: Indices, rng: np.random.Generator) -> Indices:
    """So many of each class, at random, in their old order; fewer are chosen among the same ones."""
    chosen = [rng.permutation(np.flatnonzero(kinds == kind))[:number] for kind, number in enumerate(kept)]
    return np.sort(np.concatenate(chosen))
