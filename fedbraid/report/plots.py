"""All pictures in one place, and how they become files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from fedbraid.report.curves import METRICS, cost, curves
from fedbraid.report.grids import per_class
from fedbraid.report.partition_figures import clients, counts, label_spread, shares
from fedbraid.report.style import in_any_script
from fedbraid.storage.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["METRICS", "clients", "cost", "counts", "curves", "label_spread", "per_class", "png", "save", "shares"]


def png(figure: Figure) -> bytes:
    """The figure as PNG; nothing in it tells time, machine or version, so that same data give same bytes."""
    buffer = io.BytesIO()
    with in_any_script():
        figure.savefig(buffer, format="png", metadata={"Software": "FedBraid"})
    return buffer.getvalue()


def save(figure: Figure, path: Path | str) -> None:
    write_bytes(Path(path), png(figure))
