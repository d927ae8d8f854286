"""Configuration of a run: schema, TOML, options, sweeps, and settings without effect."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Find public names of `config.schema` here, too, without importing it before they are used."""
    if name.startswith("_") or name in ("schema", "sweeps", "inert", "registry", "terms"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fedbraid.config import schema

    return getattr(schema, name)
