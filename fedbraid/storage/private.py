"""Folders that only their owner can look into. Nothing heavy is imported: small processes use it too."""

from __future__ import annotations

import os
from pathlib import Path

PRIVATE = 0o700


def private_folder(path: Path) -> Path:
    """A folder that is its owner's alone, also if it was there and was not."""
    path.mkdir(PRIVATE, parents=True, exist_ok=True)
    if not hasattr(os, "getuid"):  # Windows, where a user's folders are private by default
        return path
    if path.stat().st_uid == os.getuid():
        path.chmod(PRIVATE)
    return path
