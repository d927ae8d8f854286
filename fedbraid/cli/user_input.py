"""Build a configuration from what a user types."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedbraid.config.schema import Config, from_dict, merged, put, read_toml, to_dict, toml_value
from fedbraid.data import names
from fedbraid.data.file_kinds import kind_of
from fedbraid.data.partitions.by_name import parse_partition
from fedbraid.errors import UserError
from fedbraid.models import Own, name_of


def resolved(
    file: Path | None,
    settings: Sequence[str] | None,
    *,
    method: str | None = None,
    rounds: int | None = None,
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
        "rounds": rounds,
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


def method_or_file(word: str | None, method: str | None) -> tuple[Path | None, str | None]:
    """Tell a TOML file from a method where a command takes either; return the file and the method."""
    if word is None:
        return None, method
    if word.endswith(".toml") or Path(word).is_file():
        return Path(word), method
    if method is not None:
        raise UserError(f"there is no file {word}, and the method is given twice: {word} and --method {method}")
    return None, word


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
