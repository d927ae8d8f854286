"""Checks of what clients upload, before it is averaged: finite, within declared ranges, and of a plausible length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedbraid.core.tree import Tree

Ranges = Mapping[str, tuple[float, float]]
"""Least and most value that an honest client's upload can have, by the upload's name in replies."""


def reason_against(uploads: Tree, within: Ranges, start: Tensor | None = None) -> str:
    """Return why one client's uploads must not be averaged, as a sentence about "it"; "" if nothing is wrong.

    Args:
        uploads: the client's uploads by name; "model" [D] if it uploads one.
        within: the ranges that strands declare.
        start: [D] the model that the client started from; then the length of its update has to be finite as well, in
            the precision in which the server computes (1e300 passes as float64, and its square does not).
    """
    for key, value in uploads.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            return f"its {key!r} has numbers that are not finite"
        if key in within and value.numel():
            least, most = within[key]
            low, high = float(value.min()), float(value.max())
            if low < least or high > most:
                wrong = low if low < least else high
                return f"its {key!r} is {wrong:.6g}, and is between {least:g} and {most:g} for every client"
    if start is None or "model" not in uploads:
        return ""
    length = (uploads["model"] - start).square().sum()
    return "" if bool(torch.isfinite(length)) else "its update is too large to compute with"


def outliers(lengths: Sequence[float], factor: float) -> list[tuple[int, float]]:
    """Return the updates that are longer than `factor` times the median, with their length over the median.

    Of fewer than three updates none is known to be the odd one, so none is returned.
    """
    if len(lengths) < 3:
        return []
    ordered = sorted(lengths)
    middle = len(ordered) // 2
    # The lower of two middles: with half of the clients wrong, the honest half still sets the scale.
    median = ordered[middle] if len(ordered) % 2 else ordered[middle - 1]
    if median <= 0:
        return []
    return [(place, length / median) for place, length in enumerate(lengths) if length > factor * median]
