"""Settings without effect are refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fedbraid.config.schema import Config, optimizer_of
from fedbraid.core.chain import Chain
from fedbraid.core.options import Conditional, conditional
from fedbraid.errors import UserError


def refuse_inert(runs: Sequence[tuple[Config, Chain]], beside: Sequence[tuple[Config, Chain]] = ()) -> None:
    """Refuse a value that another setting keeps from having any effect.

    Where that other one is varied, a run beside may hear it: `--vary schedule.shape=step,cosine --set
    schedule.gamma=0.5`. Of several runs one must, `beside` among them: those that are recorded already. A single one
    was recorded with the others. A value that gives way to another setting is no mistake, but to vary it is one.
    """
    several = len(runs) + len(beside) > 1
    effective = {option.given for run in (*runs, *beside) for _, option in _conditional(*run) if not option.complaint}
    for config, chain in runs:
        for complaint in chain.inert:
            raise UserError(complaint)
        for table, option in _conditional(config, chain):
            if option.gives_way:
                refused = several and _is_varied(f"{table}{option.name}", config) and option.given not in effective
            elif {f"{table}{other}" for other in option.others} & {*config.varied}:
                refused = several and option.given not in effective
            else:
                refused = True
            if option.complaint and refused:
                raise UserError(option.complaint)


def _is_varied(key: str, config: Config) -> bool:
    """Return whether a setting is varied, or the table that it is in."""
    return any(f"{key}.".startswith(f"{varied}.") for varied in config.varied)


def _conditional(config: Config, chain: Chain) -> Iterator[tuple[str, Conditional]]:
    for table, path, owner in _owners(config, chain):
        yield from ((table, option) for option in conditional(owner, path))


def _owners(config: Config, chain: Chain) -> Iterator[tuple[str, str, Any]]:
    """Yield all owners of options, with the prefix of their options in the configuration and in a sentence."""
    for strand in chain:
        yield f"strands.{strand.name}.", f"{strand.name}'s ", strand
    yield "optimizer.", "optimizer.", optimizer_of(config)
    for table in ("sampling", "local", "schedule", "augment"):
        yield f"{table}.", f"{table}.", getattr(config, table)
    yield "", "", config
