"""The inputs of a network: numbers of any shape, images, or texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Takes:
    """A kind of sample, and the least side of an image or the least length of a text."""

    kind: Literal["numbers", "images", "texts"]
    least: int = 1

    def fits(self, shape: Shape, tokens: Sequence[str]) -> bool:
        """Tell if the network accepts samples of `shape`; with `tokens` they are texts and nothing else."""
        if self.kind == "texts":
            return bool(tokens) and len(shape) == 1 and shape[0] >= self.least
        if self.kind == "images":
            return not tokens and len(shape) == 3 and min(shape[1:]) >= self.least
        return not tokens

    def __str__(self) -> str:
        kinds = {"texts": "texts", "images": "images (channels, height, width)", "numbers": "samples that are numbers"}
        if self.least == 1:
            return kinds[self.kind]
        units = f"{self.least} tokens" if self.kind == "texts" else f"{self.least}x{self.least} pixels"
        return f"{kinds[self.kind]} of at least {units}"
