"""How skewed a split is, as a number: what a figure of clients and classes shows, without any training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedbraid import data
from fedbraid.data.summary import summary
from fedbraid.errors import UserError, unknown
from fedbraid.experiment import partition_of
from fedbraid.studies.identity import config_of
from fedbraid.studies.recipe import Settings

FACT = "fact"


def split(settings: Settings, seed: int) -> float:
    """One number of the summary of a run's data and partition: `fact` is its key, such as `mean.to_uniform.kl`."""
    config = replace(config_of({key: value for key, value in settings.items() if key != FACT}), seed=seed)
    dataset = data.load(config.data.name, **config.data.options)
    return _found(summary(dataset, partition_of(config, dataset)), str(settings.get(FACT, "")))


def _found(told: Mapping[str, Any], fact: str) -> float:
    value: Any = told
    for key in fact.split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise unknown(FACT, fact, _numbers(told))
        value = value[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{FACT} {fact!r} is no number of this split; known: {', '.join(_numbers(told))}")
    return float(value)


def _numbers(told: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The keys of what is a number."""
    keys: list[str] = []
    for key, value in told.items():
        if isinstance(value, Mapping):
            keys += _numbers(value, f"{prefix}{key}.")
        elif isinstance(value, int | float):
            keys.append(prefix + key)
    return keys
