"""Single-entry memo cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Memo(Generic[T]):
    """Cache of one value and the key it was computed for."""

    def __init__(self) -> None:
        self._held: tuple[Any, T] | None = None

    def of(self, key: Any, make: Callable[[], T]) -> T:
        """Return the cached value if `key` equals the last key, else compute it with `make` and cache it."""
        if self._held is None or self._held[0] != key:
            self._held = None  # frees the old one first
            self._held = key, make()
        return self._held[1]
