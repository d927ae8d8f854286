"""One method with other settings: every combination of the values that some settings are to have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from fedbraid.config.schema import Config, from_dict, plain, put, to_dict
from fedbraid.core.chain import Chain
from fedbraid.errors import UserError

Values = Mapping[str, Sequence[Any]]
"""The values that each of some settings is to have, by dotted key."""

ELSEWHERE = {
    "method": "name several methods instead",
    "seed": "ask for several seeds instead",
    "evaluate.target": "a comparison has one target",
    "varied": "it follows from the others",
}
"""Settings that a comparison varies by other means."""


def listed(vary: Values | None) -> dict[str, list[Any]]:
    """The values as plain lists; what cannot be varied is refused."""
    if vary is not None and not isinstance(vary, Mapping):
        raise UserError(f"vary takes lists of values by setting, such as {{'optimizer.lr': [0.1, 0.01]}}, not {vary!r}")
    listed: dict[str, list[Any]] = {}
    for key, values in (vary or {}).items():
        values = plain(values.tolist() if hasattr(values, "tolist") else values)
        if key in ELSEWHERE:
            raise UserError(f"{key} is not varied: {ELSEWHERE[key]}")
        if isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
            raise UserError(f"{key} varies over a list of values, not {values!r}")
        twice = next((value for k, value in enumerate(values) if value in values[:k]), None)
        if twice is not None:
            raise UserError(f"{key} has the value {twice!r} twice; a comparison needs different ones")
        listed[key] = list(values)
    return listed


def variants(vary: Values, chain: Chain) -> list[dict[str, Any]]:
    """Each combination of values, by dotted key. Hyper-parameters of strands that the method lacks are left out."""
    mine = {s.name for s in chain}
    varied_in = {key: values for key, values in vary.items() if (name := strand_of(key)) is None or name in mine}
    return [dict(zip(varied_in, chosen, strict=True)) for chosen in product(*varied_in.values())]


def strand_of(key: str) -> str | None:
    """The strand whose hyper-parameter it is, if it is one's."""
    table, _, rest = key.partition(".")
    return rest.partition(".")[0] if table == "strands" and rest else None


def varied(config: Config, variant: Mapping[str, Any]) -> Config:
    """`config` with these settings, and called after them."""
    values = to_dict(config) | {"varied": list(variant)}
    for key, value in variant.items():
        put(values, key, value)
    return from_dict(values)


def check_varied(variant: Mapping[str, Any], chain: Chain, settled: Sequence[str]) -> None:
    """Refuse values that the run would not have: a number in the method string takes precedence."""
    strands = {s.name: s for s in chain}
    for key, value in variant.items():
        table, name, last = key.partition(".")[0], strand_of(key), key.rpartition(".")[2]
        if table in settled:
            raise UserError(f"{key} is not varied where {table} is an object: it is what it is")
        if name is not None and _plain(getattr(strands[name], last, value)) != _plain(value):
            raise UserError(f"{key} is not varied in {chain}, which sets {last} itself; leave it out there")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
