"""One method with other settings: every combination of the values that some settings are to have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from fedbraid.config import Config, from_dict, put, to_dict
from fedbraid.core.chain import Chain
from fedbraid.errors import UserError

Values = Mapping[str, Sequence[Any]]
"""The values that each of some settings is to have, by dotted key."""

ELSEWHERE = {
    "method": "name several methods instead",
    "seed": "ask for several seeds instead",
    "label": "runs are called after what they are",
}
"""What is told apart by other means."""


def check(vary: Values) -> None:
    for key, values in vary.items():
        if key in ELSEWHERE:
            raise UserError(f"{key} is not varied: {ELSEWHERE[key]}")
        if isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
            raise UserError(f"{key} varies over a list of values, not {values!r}")
        twice = next((value for k, value in enumerate(values) if value in values[:k]), None)
        if twice is not None:
            raise UserError(f"{key} has the value {twice!r} twice; a comparison needs different ones")


def variants(vary: Values, chain: Chain) -> list[dict[str, Any]]:
    """Each combination of values, by dotted key. Hyper-parameters of strands that the method lacks are left out."""
    mine = {s.name for s in chain}
    heard = {key: values for key, values in vary.items() if (name := strand_of(key)) is None or name in mine}
    return [dict(zip(heard, chosen, strict=True)) for chosen in product(*heard.values())]


def strand_of(key: str) -> str | None:
    """The strand whose hyper-parameter it is, if it is one's."""
    table, _, rest = key.partition(".")
    return rest.partition(".")[0] if table == "strands" else None


def named(method: str, variant: Mapping[str, Any], between: str = " ") -> str:
    """How a method with these settings is called: by the ends of their keys, where these differ."""
    ends = [key.rpartition(".")[2] for key in variant]
    keys = ends if len(set(ends)) == len(ends) else list(variant)
    settings = (f"{key}={_written(value)}" for key, value in zip(keys, variant.values(), strict=True))
    return between.join((method, *settings))


def varied(config: Config, variant: Mapping[str, Any]) -> Config:
    """`config` with these settings, and called after them."""
    if not variant:
        return config
    values = to_dict(config) | {"label": named(config.called, variant)}
    for key, value in variant.items():
        put(values, key, value)
    return from_dict(values)


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value).replace(" ", "")
