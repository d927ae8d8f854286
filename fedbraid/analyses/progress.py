"""A bar for work that takes minutes: on a terminal, on standard error; silent elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def counted(what: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """A callback for each piece of work that is done; `total` is how many there are, if that is known."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda: None
        return
    count = TextColumn("{task.completed}" + (f"/{total}" if total else ""))
    columns = (TextColumn(what, markup=False), BarColumn(), count, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)
