"""Checksums over the files of a folder, so that a file that changed since it was written is noticed when it is read.

`manifest.json` is written last: a folder without one was not finished, or comes from a version that wrote none. It
protects from damage and from edits by mistake, not from somebody who edits the manifest, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedbraid.storage.files import damaged, write_json

MANIFEST = "manifest.json"


def digest_of(path: Path, length: int | None = None) -> str:
    """Return the SHA-256 of a file, or of its first `length` bytes."""
    digest, left = hashlib.sha256(), path.stat().st_size if length is None else length
    with open(path, "rb") as file:
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()


def seal(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON values with a `seal`: the SHA-256 of all the others."""
    rest = {key: value for key, value in values.items() if key != "seal"}
    text = json.dumps(json.loads(json.dumps(rest)), sort_keys=True)  # as it will be read back: tuples are lists
    return {**rest, "seal": hashlib.sha256(text.encode()).hexdigest()}


def check_seal(file: Path, values: Mapping[str, Any]) -> None:
    """Refuse the sealed content of a file that was changed since."""
    if seal(values)["seal"] != values.get("seal"):
        raise damaged(file, "its content is not what was written")


def write_manifest(folder: Path, names: Iterable[str]) -> None:
    """Record the checksums of these files of a folder, by their paths below it."""
    files = {name: digest_of(folder / name) for name in sorted(names)}
    write_json(folder / MANIFEST, seal({"files": files}))


def read_manifest(folder: Path) -> dict[str, str] | None:
    """Return the recorded checksums by path; None where the folder has no manifest."""
    file = folder / MANIFEST
    if not file.exists():
        return None
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        files = values["files"]
    except (ValueError, OSError, KeyError, TypeError) as error:
        raise damaged(file, error) from None
    check_seal(file, values)
    return {str(name): str(digest) for name, digest in files.items()}


def check_file(folder: Path, name: str, manifest: Mapping[str, str]) -> None:
    """Refuse a file that the manifest lists and that is missing or changed; one that it does not list passes."""
    if name not in manifest:
        return
    file = folder / name
    if not file.is_file():
        raise damaged(file, "it is missing")
    if digest_of(file) != manifest[name]:
        raise damaged(file, "its checksum is not the one in manifest.json")
