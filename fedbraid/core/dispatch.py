"""Dispatch modes: observe the operations that torch executes. A mode observes only the thread that entered it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedbraid.errors import UserError


class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Base of the project's dispatch modes; subclasses decide in `__torch_dispatch__` what an operation returns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch would otherwise import its compiler (two seconds) only to disable it. None is in use."""
        return False


class NoDraws(Mode):  # type: ignore[no-untyped-call]
    """Raise before an operation draws from torch's global generator and advances it.

    `error` makes the exception from the place of the user's code, " (file.py, line 7)", which may be empty.
    """

    def __init__(self, error: Callable[[str], UserError]) -> None:
        super().__init__()
        self.error = error

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags and _draws(func, args, kwargs or {}):
            raise self.error(line_of_user())
        return func(*args, **(kwargs or {}))


class WatchDraws(Mode):  # type: ignore[no-untyped-call]
    """Note whether an operation draws from torch's global generator."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found |= torch.Tag.nondeterministic_seeded in func.tags and _draws(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


OWN = str(Path(torch.__file__).parent), str(Path(__file__).parent.parent)
"""Folders of torch and of this package."""


def line_of_user() -> str:
    """Return " (file, line n)" of the innermost caller outside torch and this package, or an empty string."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((*OWN, "<")):
            return f" ({Path(file).name}, line {frame.f_lineno})"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _draws(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call draws from the global generator.

    torch tags attention and recurrent kernels as random even when their dropout is 0, so the arguments decide.
    """
    takes = func._schema.arguments
    given = {a.name: a.default_value for a in takes} | dict(zip((a.name for a in takes), args, strict=False)) | kwargs
    trains = given.get("train", given.get("training")) is not False
    drops = given.get("dropout_p", given.get("dropout")) != 0
    return given.get("generator") is None and trains and drops
