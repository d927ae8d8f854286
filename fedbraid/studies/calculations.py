"""Cells that are calculated: functions of a cell's settings and a seed, by name."""

from __future__ import annotations

from collections.abc import Callable

from fedbraid.studies.recipe import Settings
from fedbraid.studies.split import split

Calculation = Callable[[Settings, int], float]

CALCULATIONS: dict[str, Calculation] = {"split": split}
