"""From what a user types to a configuration, and to strands and networks of one's own."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from inspect import isclass, isfunction
from pathlib import Path
from typing import Any, TypeGuard

from torch import nn

from fedbraid.config.schema import Config, from_dict, merged, put, read_toml, to_dict, toml_value
from fedbraid.core.strand import Strand
from fedbraid.data import names
from fedbraid.data.file_kinds import kind_of
from fedbraid.data.partitions.by_name import parse_partition
from fedbraid.errors import UserError, unknown
from fedbraid.models import Own, name_of

OWN = "_fedbraid_own"
"""Marks modules that were loaded from a user's file."""


def resolved(
    file: Path | None,
    settings: Sequence[str] | None,
    *,
    method: str | None = None,
    engine: str | None = None,
    device: str | None = None,
    address: str | None = None,
    gpus_per_worker: float | None = None,
    target: float | None = None,
    model: Own | None = None,
    data: str | None = None,
    partition: str | None = None,
    clients: int | None = None,
    seed: int | None = None,
    base: Config | None = None,
) -> Config:
    """The configuration: a file (or `base`), then --set, then the options that have names of their own."""
    values: dict[str, Any] = read_toml(file) if file else to_dict(base) if base else {}
    part, options = parse_partition(partition) if partition is not None else (None, {})
    network = None if model is None else name_of(model)
    values = _for(values, "data", data, kept=())
    values = _for(values, "model", network, kept=())
    values = _for(values, "partition", part, kept=("clients",))
    values = merged(values, settings or ())
    named = {
        "method": method,
        "engine.kind": engine,
        "engine.device": device,
        "engine.address": address,
        "engine.gpus_per_worker": gpus_per_worker,
        "evaluate.target": target,
        "model.name": network,
        "data.name": data,
        "partition.name": part,
        "partition.clients": clients,
        "seed": seed,
    }
    for key, value in (named | {f"partition.{option}": value for option, value in options.items()}).items():
        if value is not None:
            put(values, key, value)
    return from_dict(_with_files(values))


def _with_files(values: dict[str, Any]) -> dict[str, Any]:
    """`values` where the name of the data may be a file or a folder: it is then the path of the set that reads it."""
    table = values.get("data")
    name = table.get("name") if isinstance(table, dict) else None
    if not isinstance(name, str) or name in names() or (kind := kind_of(name)) is None:
        return values
    if not Path(name).exists():
        raise UserError(f"there is no file {name}")
    return values | {"data": {**values["data"], "name": kind, "path": name}}


def several(texts: Sequence[str] | None) -> dict[str, list[Any]]:
    """The values that each of some settings is to have, from `key=value,value`."""
    found: dict[str, list[Any]] = {}
    for text in texts or ():
        key, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not key or not values:
            raise UserError(f"--vary takes key=value,value such as optimizer.lr=0.1,0.01, not {text!r}")
        if key in found:
            raise UserError(f"--vary {key} is given twice; put all values after one, separated by commas")
        listed = toml_value(f"[{values}]")
        found[key] = listed if isinstance(listed, list) else [toml_value(v.strip()) for v in values.split(",")]
    return found


def _for(values: dict[str, Any], key: str, name: str | None, kept: Sequence[str]) -> dict[str, Any]:
    """`values` without the options, in the table `key`, of something else than `name`."""
    table = values.get(key)
    if name is None or not isinstance(table, dict) or table.get("name") == name:
        return values
    return values | {key: {option: value for option, value in table.items() if option in kept}}


def load_strands(places: Sequence[str] | None) -> tuple[type[Strand], ...]:
    return tuple(load_strand(place) for place in places or ())


def load_strand(place: str) -> type[Strand]:
    """The class of strands that `file.py:Class` names."""
    file, name, there = _loaded("strand", place)
    found = {k: v for k, v in there.items() if isinstance(v, type) and issubclass(v, Strand) and v is not Strand}
    if name not in found:
        raise unknown(f"strand in {file}", name, found)
    return found[name]


def load_network(place: str | None) -> Own | None:
    """The class or function that `file.py:Class` names, which makes a network."""
    if place is None:
        return None
    file, name, there = _loaded("network", place)
    found = there.get(name)
    if isinstance(found, nn.Module):
        raise UserError(f"{name} in {file} is made already; name its class, or a function that makes the network")
    if not _makes_networks(found):
        here = [k for k, v in there.items() if _makes_networks(v) and v.__module__ == there["__name__"]]
        raise unknown(f"network in {file}", name, here)
    return found


def _makes_networks(value: object) -> TypeGuard[Callable[..., nn.Module]]:
    return isfunction(value) or (isclass(value) and issubclass(value, nn.Module))


def _loaded(kind: str, place: str) -> tuple[str, str, dict[str, Any]]:
    """The file and the name in `file.py:Class`, and all that the file defines."""
    file, colon, name = place.rpartition(":")
    path = Path(file)
    if not colon or not name:
        raise UserError(f"a {kind} of your own is given as file.py:Class, not {place!r}")
    if not path.is_file():
        raise UserError(f"there is no file {file}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    if _is_taken(path.stem):
        raise UserError(f"{file} would hide the module {path.stem}, which others use; give it another name")
    setattr(module, OWN, True)
    sys.modules[path.stem] = module  # so that its dataclasses pickle
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.append(folder)  # where the files are that it imports, as for a script
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[path.stem]
        raise UserError(f"{file} could not be loaded: {type(error).__name__}: {error}") from error
    return file, name, vars(module)


def _is_taken(name: str) -> bool:
    """Whether a module of this name was imported by others."""
    return name in sys.modules and not hasattr(sys.modules[name], OWN)
