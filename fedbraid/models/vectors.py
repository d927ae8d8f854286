"""Word vectors from a text file, in GloVe's format: a word and its numbers on each line."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

import torch

from fedbraid.errors import UserError

Vectors = dict[str, list[float]]
LARGEST = torch.finfo(torch.float32).max


def read_vectors(path: str | os.PathLike[str], width: int, words: Collection[str]) -> Vectors:
    """The vectors of those `words` that the file has."""
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"vectors must name a text file of word vectors, such as GloVe's, not {path!r}")
    file = Path(os.path.expanduser(path))
    if not os.path.isfile(file):
        raise UserError(f"there is no file {file}; vectors names a text file of word vectors, such as GloVe's")
    with file.open(encoding="utf-8", errors="replace") as lines:
        found = dict(_vectors(file, lines, width, words))
    if not found:
        raise UserError(f"{file} has vectors for none of the {len(words)} words of the data")
    return found


def _vectors(file: Path, lines: Iterator[str], width: int, words: Collection[str]) -> Iterator[tuple[str, list[float]]]:
    for number, line in enumerate(lines, 1):
        word, _, rest = line.rstrip().partition(" ")
        if number > 1 and word not in words:
            continue
        values = rest.split(" ")
        if number > 1 and len(values) > width:
            continue  # the first word of several: some files have phrases
        if len(values) != width:
            raise UserError(
                f"line {number} of {file} has {len(values)} numbers after its word, but embedding is {width}; "
                "they must be the same"
            )
        try:
            vector = [float(value) for value in values]
        except ValueError:
            raise UserError(f"line {number} of {file} is not a word and {width} numbers") from None
        if not all(-LARGEST <= value <= LARGEST for value in vector):
            raise UserError(f"line {number} of {file} has a number that is not finite or does not fit 32 bits")
        if word in words:
            yield word, vector
