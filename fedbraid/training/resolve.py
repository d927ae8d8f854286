"""The configuration of a run with every default written out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields, replace
from typing import Any

from fedbraid import data, models
from fedbraid.config.registry import Entry
from fedbraid.config.schema import Config, Named, plain
from fedbraid.training.federation import Federation
from fedbraid.training.simulation import Simulation
from fedbraid.training.user_objects import UserObjects


def resolve_config(simulation: Simulation, objects: UserObjects) -> Config:
    """Return the configuration with every default written out, so that it says how the run was made."""
    config = simulation.config
    data_options = {} if objects.data else options_of(data.describe(), config.data)
    split_options = {} if objects.partition is not None else options_of(data.PARTITIONS, config.partition)
    model_options = config.model.options
    if objects.model is None:
        model_options = options_of([models.find_network(config.model.name, {})], config.model)
    return replace(
        with_hyper_parameters(simulation),
        data=replace(config.data, options=data_options),
        partition=replace(config.partition, options=split_options, clients=simulation.setup.population),
        model=replace(config.model, options=model_options),
        engine=replace(config.engine, kind=simulation.engine.kind),
    )


def with_hyper_parameters(federation: Federation) -> Config:
    """Return the configuration with every hyper-parameter of the strands and the optimiser."""
    config = federation.config
    return replace(
        config,
        strands={s.name: {f.name: plain(getattr(s, f.name)) for f in fields(s)} for s in federation.chain},  # type: ignore[arg-type]
        optimizer=replace(config.optimizer, options=asdict(federation.optimizer)),  # type: ignore[call-overload]
    )


def options_of(entries: Iterable[Entry[Any]], named: Named) -> dict[str, Any]:
    """Return the options of a named thing, defaults included. None cannot be written, and is the default anyway."""
    entry = next(e for e in entries if e.name == named.name)
    return {key: value for key, value in (entry.options | named.options).items() if value is not None}
