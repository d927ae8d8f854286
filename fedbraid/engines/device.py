"""Device and number type of a run."""

from __future__ import annotations

import torch

from fedbraid.config.schema import Config
from fedbraid.engines.cpu import keep_freed_memory
from fedbraid.errors import UserError


def ready(config: Config) -> tuple[torch.device, torch.dtype]:
    """Set this process up for the configured device; return (device, dtype). Raises UserError for an unknown device."""
    device = device_of(config.engine.device)
    if device.type == "cpu":
        keep_freed_memory()
    else:
        coarse = config.engine.precision != "highest"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = coarse
    return device, getattr(torch, config.engine.dtype)


def device_of(name: str) -> torch.device:
    """Return the torch device for `auto`, `cpu` or `cuda`. Raises UserError if it is unknown or absent."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"engine.device must be auto, cpu or cuda, not {name!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"engine.device must be auto, cpu or cuda, not {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("engine.device is cuda, but torch sees no GPU here; use cpu or auto")
    return device
