"""The kinds of user files, by their names' endings."""

from __future__ import annotations

from pathlib import Path

TABLES = (".csv", ".csv.gz", ".parquet")


def kind_of(given: str | Path) -> str | None:
    """The data set that reads the file or folder `given`; None if it is the name of one."""
    path = Path(given)
    if path.is_dir():
        return "folder"
    name = path.name.lower()
    if name.endswith(".npz"):
        return "npz"
    return "csv" if name.endswith(TABLES) else None
