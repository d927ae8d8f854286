"""HAM10000 as the hub has it: metadata beside the images, classes in words, some images more than once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedbraid.data.datasets.hub_images import values
from fedbraid.errors import UserError

IN_WORDS = {
    "actinic keratos": "akiec",
    "basal cell carcinoma": "bcc",
    "benign keratosis": "bkl",
    "dermatofibroma": "df",
    "melanocytic nev": "nv",
    "vascular lesion": "vasc",
    "melanoma": "mel",
}
"""How the classes' names begin, and their abbreviations."""


@dataclass(frozen=True, eq=False)
class Metadata:
    """Every image once, and the row of its first appearance."""

    rows: NDArray[np.int64]
    images: tuple[str, ...]
    lesions: tuple[str, ...]
    classes: tuple[str, ...]


def metadata(files: Sequence[Path]) -> Metadata:
    images, lesions, classes = (values(files, name) for name in ("image_id", "lesion_id", "dx"))
    if not all(images) or not all(lesions):
        raise UserError(f"{files[0]} or a file with it has images without a name or a lesion; fetch ham10000 anew")
    rows = np.sort(np.unique(np.array(images, dtype=str), return_index=True)[1])
    return Metadata(
        rows,
        tuple(images[row] for row in rows),
        tuple(lesions[row] for row in rows),
        tuple(_abbreviated(files[0], classes[row]) for row in rows),
    )


def _abbreviated(file: Path, name: object) -> str:
    plain = str(name).lower().replace("_", " ")
    for beginning, short in IN_WORDS.items():
        if plain == short or plain.startswith(beginning):
            return short
    raise UserError(f"{file} or a file with it has the class {name!r}; known are {', '.join(IN_WORDS.values())}")
