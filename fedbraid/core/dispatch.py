"""What is asked of torch's dispatcher, looked at on the way. A mode sees the thread that entered it and no other."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedbraid.errors import UserError


class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation, and says by `__torch_dispatch__` what comes of it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would load its compiler, two seconds of imports, to keep it away from here. Nothing is compiled."""
        return False


class NoDraws(Mode):  # type: ignore[no-untyped-call]
    """Raises `error` where somebody would draw from a generator that all share, before that is moved on."""

    def __init__(self, error: UserError) -> None:
        super().__init__()
        self.error = error

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags and _draws(func, args, kwargs or {}):
            raise self.error
        return func(*args, **(kwargs or {}))


def _draws(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operation that can draw does, and from no generator of its caller's.

    Attention and recurrent layers are such operations even without dropout.
    """
    takes = func._schema.arguments
    given = {a.name: a.default_value for a in takes} | dict(zip((a.name for a in takes), args, strict=False)) | kwargs
    trains = given.get("train", given.get("training")) is not False
    drops = given.get("dropout_p", given.get("dropout")) != 0
    return given.get("generator") is None and trains and drops
