"""Settings that are given must be heard: by some run of those that are asked for together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fedbraid.config import Config, optimizer_of
from fedbraid.core.chain import Chain
from fedbraid.core.options import conditional
from fedbraid.errors import UserError


def refuse_unheard(runs: Iterable[tuple[Config, Chain]]) -> None:
    """Refuse a value that another setting keeps from having any effect in all of these runs.

    A comparison may set what only some of its runs hear: `--vary schedule.shape=step,cosine --set schedule.gamma=0.5`.
    """
    unheard: dict[str, str] = {}
    heard: set[str] = set()
    for config, chain in runs:
        for path, owner in _owners(config, chain):
            for given, complaint in conditional(owner, path):
                if complaint:
                    unheard[given] = complaint
                else:
                    heard.add(given)
    for given, complaint in unheard.items():
        if given not in heard:
            raise UserError(complaint)


def _owners(config: Config, chain: Chain) -> Iterator[tuple[str, Any]]:
    for strand in chain:
        yield f"{strand.name}'s ", strand
    yield "optimizer.", optimizer_of(config)
    for table in ("sampling", "schedule", "augment"):
        yield f"{table}.", getattr(config, table)
