"""Cells that are calculated: functions of a cell's settings and a seed, by name."""

from __future__ import annotations

from collections.abc import Callable

from fedbraid.studies.class_sizes import class_size
from fedbraid.studies.layer_sizes import layers
from fedbraid.studies.payload import payload
from fedbraid.studies.recipe import Settings
from fedbraid.studies.theorem_bound import bound

Calculation = Callable[[Settings, int], float]

CALCULATIONS: dict[str, Calculation] = {"bound": bound, "class_size": class_size, "layers": layers, "payload": payload}
