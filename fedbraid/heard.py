"""Settings that are given must be heard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fedbraid.config import Config, optimizer_of
from fedbraid.core.chain import Chain
from fedbraid.core.options import conditional
from fedbraid.errors import UserError


def refuse_unheard(runs: Sequence[tuple[Config, Chain]]) -> None:
    """Refuse a value that another setting keeps from having any effect.

    Where that other one is varied, a run beside may hear it: `--vary schedule.shape=step,cosine --set
    schedule.gamma=0.5`. Of several runs one must; a single one was recorded with the others.
    """
    unheard: dict[str, str] = {}
    heard: set[str] = set()
    for config, chain in runs:
        for complaint in chain.unheard:
            raise UserError(complaint)
        for table, path, owner in _owners(config, chain):
            for given, others, complaint in conditional(owner, path):
                if not complaint:
                    heard.add(given)
                elif not {f"{table}{other}" for other in others} & {*config.varied}:
                    raise UserError(complaint)
                elif len(runs) > 1:
                    unheard[given] = complaint
    for given, complaint in unheard.items():
        if given not in heard:
            raise UserError(complaint)


def _owners(config: Config, chain: Chain) -> Iterator[tuple[str, str, Any]]:
    """What has options, with what stands before an option's name: in the configuration, and in a sentence."""
    for strand in chain:
        yield f"strands.{strand.name}.", f"{strand.name}'s ", strand
    yield "optimizer.", "optimizer.", optimizer_of(config)
    for table in ("sampling", "local", "schedule", "augment"):
        yield f"{table}.", f"{table}.", getattr(config, table)
    yield "", "", config
