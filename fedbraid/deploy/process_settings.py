"""Settings of the processes that Flower starts for `fedbraid serve` and `fedbraid join`: a file each.

Flower starts the server's and the clients' work as processes of their own, which are given no more than a path.
"""

from __future__ import annotations

import importlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True)
class ProcessSettings:
    """Plain values in a file that only its owner can read."""

    def write(self, file: Path) -> Path:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as text:
            json.dump(asdict(self), text, indent=2)
        return file

    @classmethod
    def read(cls, file: Path | str) -> Self:
        return cls(**json.loads(Path(file).read_text(encoding="utf-8")))


@dataclass(frozen=True)
class ServerSettings(ProcessSettings):
    """Settings of the process that conducts the run."""

    config: dict[str, Any]
    roster: list[str]
    out: str
    names: dict[str, str] | None = None  # clients by their public keys; None = as they call themselves
    keys: str | None = None  # the server's folder of keys, with which its messages are signed
    resume: bool = False
    min_clients: int = 0
    seconds: float = 600.0
    secure: bool = False
    limits: dict[str, Any] = field(default_factory=dict)  # of `UpdateLimits`
    most: int = 2**30  # bytes of an answer
    data_dir: str | None = None
    strands: list[str] = field(default_factory=list)  # file.py:Class
    network: str | None = None  # likewise
    conduct: str = "fedbraid.deploy.federation_run:conduct"

    @property
    def folder(self) -> Path:
        """The folder of logs and settings of Flower's processes and ours."""
        return Path(self.out) / "flower"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def done(self) -> Path:
        """The file that says how the run ended: {"error": null}, or a sentence instead of null."""
        return self.folder / "done.json"


@dataclass(frozen=True)
class NodeSettings(ProcessSettings):
    """Settings of the processes that answer messages on a client's machine."""

    home: str
    name: str
    holds: dict[str, Any] = field(default_factory=dict)  # what of a configuration says which data it has
    part: int | None = None  # number of its part of the partition; None = it has all
    data_dir: str | None = None
    device: str = "auto"
    keys: str | None = None  # its folder of keys
    secure: bool = False  # takes part only where models are hidden from the server
    strands: list[str] = field(default_factory=list)
    network: str | None = None
    node: str = "fedbraid.deploy.flower:node_of"

    @property
    def folder(self) -> Path:
        return Path(self.home) / "flower"

    @property
    def log(self) -> Path:
        return self.folder / "node.log"


@dataclass(frozen=True)
class GuardSettings(ProcessSettings):
    """Settings of the guard before the SuperLink."""

    token: str  # without which nobody starts runs or registers keys
    most: int  # bytes of an answer
    names: dict[str, str] = field(default_factory=dict)  # clients by their public keys


def named(reference: str) -> Any:
    """Import the object that `module:name` names."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
