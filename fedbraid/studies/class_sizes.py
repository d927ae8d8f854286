"""The number of a class's samples under a long tail: FedDisco's figure 7."""

from __future__ import annotations

import numpy as np

from fedbraid.data.shaping import tail
from fedbraid.errors import UserError, unknown
from fedbraid.studies.recipe import Settings

NEEDED = "largest", "classes", "rho", "class"


def class_size(settings: Settings, seed: int) -> float:
    """Return what a long tail leaves of a class, of `classes` that have `largest` samples each.

    `rho` is how much rarer the last class is than the first, `class` the class from 0 on. Nothing is drawn by `seed`.
    """
    for key in settings:
        if key not in NEEDED:
            raise unknown("setting of a class size", key, NEEDED)
    for key in NEEDED:
        if key not in settings:
            raise UserError(f"a class size needs {key}")
    counts = np.full(settings["classes"], settings["largest"], dtype=np.int64)
    return float(tail(counts, settings["rho"])[settings["class"]])
