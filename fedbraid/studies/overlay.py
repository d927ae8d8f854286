"""Settings of a run, laid over one another."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from fedbraid.config.schema import FREE
from fedbraid.studies.recipe import Settings


def laid(*layers: Settings) -> dict[str, Any]:
    """The layers over one another, the last on top.

    Tables merge key by key. Another data set, partition, model or optimizer has other options: a table that names one
    replaces the one below it.

    >>> laid({"rounds": 9, "data": {"name": "digits", "samples": 50}}, {"rounds": 2, "data": {"name": "mnist"}})
    {'rounds': 2, 'data': {'name': 'mnist'}}
    """
    return reduce(_over, layers, {})


def _over(below: Settings, above: Settings, table: str = "") -> dict[str, Any]:
    if table in FREE and above.get("name", below.get("name")) != below.get("name"):
        return dict(above)
    result = dict(below)
    for key, value in above.items():
        old = below.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            value = _over(old, value, f"{table}.{key}" if table else key)
        result[key] = value
    return result
