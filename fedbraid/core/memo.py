"""What was asked for last is not made again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """One value, and what it was made for."""

    def __init__(self) -> None:
        self._held: tuple[Any, T] | None = None

    def of(self, key: Any, make: Callable[[], T]) -> T:
        if self._held is None or self._held[0] != key:
            self._held = None  # frees the old one first
            self._held = key, make()
        return self._held[1]
