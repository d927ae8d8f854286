"""Strands and networks of a user's own, loaded from `file.py:Name`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from inspect import isclass, isfunction
from pathlib import Path
from typing import Any, TypeGuard

from torch import nn

from fedbraid.core.strand import Strand
from fedbraid.errors import UserError, unknown
from fedbraid.models import Own

OWN = "_fedbraid_own"
"""Marks modules that were loaded from a user's file."""


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
    """Return whether other code imported a module of this name."""
    return name in sys.modules and not hasattr(sys.modules[name], OWN)
