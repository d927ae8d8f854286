"""Shakespeare: the next character of what a role says, by role."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedbraid.config.registry import whole
from fedbraid.data.cache import ArrayWriter, decoded
from fedbraid.data.common_options import share
from fedbraid.data.dataset import Dataset
from fedbraid.data.datasets.cached import split
from fedbraid.data.datasets.hub_layouts import hub_layout, part_files
from fedbraid.data.formats.leaf import json_files, samples, user_data
from fedbraid.data.formats.parquet import blocks as parquet_blocks
from fedbraid.data.formats.vocabulary import SPECIAL
from fedbraid.data.formats.windows import CHARACTERS, TEST, TRAIN, Choice, WindowBlock, collect, cut
from fedbraid.data.paths import FileLayout, Found, find
from fedbraid.errors import UserError

FOLDERS = ("shakespeare", "shakespeare/data")
ROLES = FileLayout(FOLDERS, ("shakespeare_by_role.json|shakespeare_by_role.json.gz|all_data/all_data.json",))
LEAF = FileLayout(FOLDERS, ("train/*.json", "test/*.json"))
HUB = hub_layout("shakespeare")
LAYOUTS = (ROLES, LEAF, HUB)


def shakespeare(
    data_dir: str | Path | None = None, stride: int = 1, max_windows: int | None = None, test_share: float = 0.2
) -> Dataset:
    """Windows of 80 characters, `stride` apart, each with the character that follows; a role is a user.

    A role's last `test_share` of windows are for testing, as in LEAF: windows that begin within the last training
    window (79 of them at stride 1) belong to neither, so that no character is read in both. Roles too short for that
    only train. Of a role with more windows than `max_windows`, so many are taken, evenly from its text. Files that
    are split already (LEAF's train/ and test/) stay so, and `max_windows` holds for either part.
    """
    choice = Choice(
        stride=whole("stride", stride),
        max_windows=None if max_windows is None else whole("max_windows", max_windows),
        test_share=share("test_share", test_share),
    )
    found = find("shakespeare", data_dir, LAYOUTS)
    sources = [file for part in _parts(found) for file in part]
    made = decoded("shakespeare", sources, asdict(choice), lambda writer: _decode(writer, found, choice))
    return Dataset(
        name="shakespeare",
        train=split(made, "train"),
        test=split(made, "test"),
        classes=len(CHARACTERS),
        labels=tuple(CHARACTERS),
        tokens=(SPECIAL[0], *CHARACTERS),
        source=str(found.folder),
    )


def _parts(found: Found) -> list[Sequence[Path]]:
    """The files of train and of test, or all files as one part where nobody has split them."""
    if found.layout is LEAF:
        return [json_files(found.folder / name) for name in ("train", "test")]
    return part_files("shakespeare", found) if found.layout is HUB else [found.files]


def _decode(writer: ArrayWriter, found: Found, choice: Choice) -> dict[str, Any]:
    if found.layout is ROLES:
        cut(writer, str(found.files[0]), _texts(found.files[0]), choice)
    else:
        collect(writer, lambda: _blocks(found), choice)
    return {}


def _texts(file: Path) -> Iterator[tuple[str, str]]:
    for role, held in user_data(file):
        text = held.get("raw")
        if not isinstance(text, str):
            raise UserError(f"{file}: role {role!r} has no text 'raw'")
        yield role, text


def _blocks(found: Found) -> Iterator[WindowBlock]:
    if found.layout is HUB:
        for file in _parts(found)[0]:
            for roles, x, y in parquet_blocks(file, ("character_id", "x", "y")):
                yield WindowBlock(str(file), None, roles, x, y)
        return
    for half, part in zip((TRAIN, TEST), _parts(found), strict=True):
        for file in part:
            for role, x, y in samples(file):
                yield WindowBlock(str(file), half, [role] * len(x), x, y)
