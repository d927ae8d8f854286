"""Tables for pandas, which is optional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedbraid.errors import UserError

if TYPE_CHECKING:
    import pandas


def to_frame(columns: Mapping[str, Sequence[Any]]) -> pandas.DataFrame:
    """Return columns of the same length as a data frame.

    Raises:
        UserError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise UserError("a table needs pandas; pip install 'fedbraid[analyses]'") from None
    return pandas.DataFrame({key: list(values) for key, values in columns.items()})


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return rows as columns, in the order in which keys first occur; None where a row lacks a key."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: [row.get(key) for row in rows] for key in keys}
