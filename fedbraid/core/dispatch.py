"""Dispatch modes: observe the operations that torch executes. A mode observes only the thread that entered it."""

from __future__ import annotations

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
    """Raise `error` before an operation draws from torch's global generator and advances it."""

    def __init__(self, error: UserError) -> None:
        super().__init__()
        self.error = error

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags and _draws(func, args, kwargs or {}):
            raise self.error
        return func(*args, **(kwargs or {}))


def _draws(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call draws from the global generator.

    torch tags attention and recurrent kernels as random even when their dropout is 0, so the arguments decide.
    """
    takes = func._schema.arguments
    given = {a.name: a.default_value for a in takes} | dict(zip((a.name for a in takes), args, strict=False)) | kwargs
    trains = given.get("train", given.get("training")) is not False
    drops = given.get("dropout_p", given.get("dropout")) != 0
    return given.get("generator") is None and trains and drops
