"""Fetching data sets from the Hugging Face hub: whole and as its checksums say, or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fedbraid.data.datasets.hub_layouts import SOURCES, HubSource, belongs, folder_of
from fedbraid.data.locate import LAYOUTS
from fedbraid.data.paths import data_directory
from fedbraid.errors import UserError, unknown
from fedbraid.storage.files import flush, write_json

CONVERTED = "refs/convert/parquet"
"""Where the hub keeps the Parquet files that it makes of repositories which have none."""
SPARE = 256 << 20
"""Bytes of disk that fetching leaves free."""
TRIES = 3
"""Attempts to fetch a file whose connection breaks."""
ORIGIN = "source.json"

Note = Callable[[str], None]


@dataclass(frozen=True)
class Fetched:
    """A data set that now lies in `folder`."""

    folder: Path
    files: tuple[Path, ...]


@dataclass(frozen=True)
class HubFile:
    """A file of a repository, and what the hub says of its content."""

    name: str
    size: int
    sha256: str | None  # of large files
    git: str | None  # of small ones: the name of git's object, which is a checksum too

    def is_at(self, path: Path) -> bool:
        """Compare the file at `path` with the checksum."""
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        if self.sha256 is not None:
            return _digest(path, hashlib.sha256()) == self.sha256
        return self.git is None or _digest(path, hashlib.sha1(b"blob %d\0" % self.size)) == self.git


@dataclass(frozen=True)
class HubListing:
    """The files that make a set, at one commit of its repository."""

    repo: str
    commit: str
    files: tuple[HubFile, ...]


def fetch(
    name: str, data_dir: str | Path | None = None, revision: str | None = None, note: Note = lambda line: None
) -> Fetched:
    """Fetch the data set called `name`; `revision` is a branch, a tag or a commit of its repository.

    What an interrupted fetch has left whole is not fetched again. The set's folder appears when all of it is there.
    """
    root = data_directory(data_dir)
    if name in LAYOUTS and name not in SOURCES:
        raise UserError(f"data set {name!r} is not on the hub; {_by_hand(name, root)}")
    if name not in SOURCES:
        raise unknown("data set on the hub", name, SOURCES)
    folder = root / folder_of(name)
    with _in_a_sentence(name, SOURCES[name].repo, revision, root):
        listing = _listing(SOURCES[name], revision)
        if _commit_at(folder) == listing.commit and all((folder / file.name).is_file() for file in listing.files):
            note(f"{name} is in {folder} already")
        else:
            _fill(folder, listing, note)
    return Fetched(folder, tuple(folder / file.name for file in listing.files))


def _listing(source: HubSource, revision: str | None) -> HubListing:
    from huggingface_hub import HfApi

    for choice in (revision,) if revision else (None, CONVERTED):
        info = HfApi(_endpoint()).dataset_info(source.repo, revision=choice, files_metadata=True)
        files = tuple(_remote(file) for file in info.siblings or ())
        chosen = tuple(file for file in files if any(belongs(file.name, part) for part in source.parts))
        missing = [part for part in source.parts if not any(belongs(file.name, part) for file in chosen)]
        if not missing and info.sha:
            return HubListing(source.repo, info.sha, chosen)
    raise UserError(f"{source.repo} has no Parquet files of the part {missing[0]!r} at {choice}")


def _remote(file: Any) -> HubFile:
    path = PurePosixPath(file.rfilename)
    if path.is_absolute() or ".." in path.parts:
        raise UserError(f"the hub lists a file called {file.rfilename!r}, which would lie outside of the set's folder")
    return HubFile(file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else None, file.blob_id)


def _fill(folder: Path, listing: HubListing, note: Note) -> None:
    beside = folder.with_name(f".{folder.name}.part")
    beside.mkdir(parents=True, exist_ok=True)
    _remove_others(beside, listing)
    wanted = [file for file in listing.files if not file.is_at(beside / file.name)]
    size = sum(file.size for file in wanted)
    free = shutil.disk_usage(beside).free
    if size + SPARE > free:
        raise UserError(f"{listing.repo} needs {_gib(size)} in {folder.parent} and {_gib(free)} are free; make room")
    note(f"fetching {len(wanted)} files with {_gib(size)} of {listing.repo}")
    for file in wanted:
        (beside / file.name).unlink(missing_ok=True)
        _download(listing, file, beside, note)
        if not file.is_at(beside / file.name):
            (beside / file.name).unlink(missing_ok=True)
            raise UserError(f"{file.name} of {listing.repo} is not what its checksum says; try again")
        flush(beside / file.name)
        note(f"fetched {file.name}")
    shutil.rmtree(beside / ".cache", ignore_errors=True)  # the client's own notes
    write_json(beside / ORIGIN, {"repo": listing.repo, "commit": listing.commit})
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(beside, folder)
    flush(folder.parent)


def _remove_others(folder: Path, listing: HubListing) -> None:
    """Remove the files that an interrupted fetch of another commit left."""
    own = {folder / file.name for file in listing.files}
    for path in folder.rglob("*.parquet"):
        if path not in own:
            path.unlink()


def _download(listing: HubListing, file: HubFile, folder: Path, note: Note) -> None:
    """Fetch a file; some versions of the client resume a broken connection only when called again."""
    from huggingface_hub import hf_hub_download

    for attempt in range(1, TRIES + 1):
        try:
            hf_hub_download(
                listing.repo,
                file.name,
                repo_type="dataset",
                revision=listing.commit,
                local_dir=folder,
                endpoint=_endpoint(),
            )
            return
        except Exception as error:
            if attempt == TRIES:
                raise
            note(f"{file.name} broke off ({_first_line(error)}); trying again")
            time.sleep(attempt)


def _commit_at(folder: Path) -> str | None:
    """The commit of the set that lies in `folder`, if one does."""
    try:
        return str(json.loads((folder / ORIGIN).read_text(encoding="utf-8"))["commit"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _digest(path: Path, digest: Any) -> str:
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return str(digest.hexdigest())


def _by_hand(name: str, root: Path) -> str:
    """Return a hint: the path of the publisher's own files, for users who fetch them in another way."""
    layout = LAYOUTS[name][0]
    files = ", ".join(pattern.split("|")[0] for pattern in layout.files)
    return f"files fetched in another way are read from {root / layout.folders[0]}: {files}"


def _endpoint() -> str | None:
    """Another hub than the usual one, as its own client understands it."""
    return os.environ.get("HF_ENDPOINT") or None


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


@contextmanager
def _in_a_sentence(name: str, repo: str, revision: str | None, root: Path) -> Iterator[None]:
    """Turn errors of the hub's client into a `UserError` that names a remedy."""
    instead = f"; {_by_hand(name, root)}"
    try:
        from huggingface_hub import errors
    except ImportError:
        raise UserError(
            f"fetching {name} needs huggingface_hub, which `pip install fedbraid[hub]` brings{instead}"
        ) from None
    try:
        yield
    except UserError:
        raise
    except errors.GatedRepoError:
        raise UserError(f"{repo} wants one to log in and agree to its terms on the hub first{instead}") from None
    except errors.RepositoryNotFoundError:
        raise UserError(f"the hub has no data set {repo}, or does not show it{instead}") from None
    except errors.RevisionNotFoundError:
        raise UserError(f"{repo} has no revision {revision or CONVERTED!r}{instead}") from None
    except Exception as error:  # which library connects, and so what it raises, depends on the client's version
        raise UserError(f"{repo} could not be fetched from the hub ({_first_line(error)}){instead}") from error
