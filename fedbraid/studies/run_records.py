"""The record of a finished run: its configuration, the course of its rounds, its totals; found by what the run is.

    OUT/runs/<digest>/seed-<k>.json     a record as a study that runs writes it
    OUT/runs/<data set>.jsonl.xz        many records, packed for keeping (`studies.record_archives`)

The digest is that of the run's configuration (`studies.run_digest`), so cells, recipes and machines that ask for
the same run find the same record. A record's own file counts before an archive's line: it is the later one, such as
after an analysis was added to a packed record.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from fedbraid.config.schema import flat, from_dict
from fedbraid.errors import UserError
from fedbraid.storage.files import write_text
from fedbraid.studies.record_archives import Key, archived, archives, find_archived, write_archives
from fedbraid.studies.run_digest import digest as digest_of

DIGITS = 6
"""Significant digits of what is kept."""
MOST = 20_000
"""Label counts that are kept; more can be made again from the configuration."""
TOTALS = "bytes_down", "bytes_up", "forward_samples", "backward_samples", "seconds"
ONLY_LAST = "per_class", "client_accuracy.each", "personal_accuracy.each"
"""What is kept of the last evaluated round only: a list of numbers each."""
NOT_KEPT = "client_ids", "lost_ids"
"""Lists of the log that are long, and follow from the configuration."""
OWN_FILE = re.compile(r"seed-(0|[1-9]\d*)\.json")


@dataclass(frozen=True)
class Record:
    """A finished run."""

    digest: str
    seed: int
    config: Mapping[str, Any]  # as `config.to_dict` gives it, every default written out; but for engine and save
    series: Mapping[str, Sequence[Any]]
    """What the rounds' log says, by key: a value for every round, None where there is none. Tables within a line are
    flat: `client_accuracy.mean`."""
    totals: Mapping[str, float]
    label_counts: Sequence[Sequence[int]] | None = None  # [clients][classes]
    client_accuracy: Sequence[float | None] | None = None  # of each client in the last evaluated round
    per_class: Sequence[float | None] | None = None
    analyses: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    """What analyses of the finished run found: by analysis as it is written, then by quantity."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    source: str = ""  # a digest of the user's own files that it was made of (`studies.file_digests`)

    @property
    def rounds(self) -> Sequence[int]:
        return self.series["round"]

    def has(self, analyses: Iterable[str]) -> bool:
        """Tell if these analyses were made of the run."""
        return {*analyses} <= {*self.analyses}


def record_of(
    digest: str,
    config: Mapping[str, Any],
    rounds: Sequence[Mapping[str, Any]],
    label_counts: Sequence[Sequence[int]] | None,
    engine: Mapping[str, Any],
    environment: Mapping[str, str],
    analyses: Mapping[str, Mapping[str, float | None]] | None = None,
    source: str = "",
) -> Record:
    """A record of the lines that a run logged."""
    lines = [flat(line) for line in rounds]
    keys = dict.fromkeys(key for line in lines for key in line if key not in {*ONLY_LAST, *NOT_KEPT})
    last = {key: next((line[key] for line in reversed(lines) if line.get(key) is not None), None) for key in ONLY_LAST}
    kept = label_counts if label_counts and len(label_counts) * len(label_counts[0]) <= MOST else None
    return Record(
        digest=digest,
        seed=config["seed"],
        config={key: value for key, value in config.items() if key not in ("engine", "save")},
        series={key: [rounded(line.get(key)) for line in lines] for key in keys},
        totals={key: rounded(sum(line[key] for line in lines)) for key in TOTALS},
        label_counts=kept,
        client_accuracy=rounded(last["client_accuracy.each"]),
        per_class=rounded(last["per_class"]),
        analyses=rounded(dict(analyses or {})),
        engine=engine,
        environment=environment,
        source=source,
    )


def rounded(value: Any) -> Any:
    """Numbers as they are kept. JSON has no NaN: what is not finite is None."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value


# --- files


def path_of(out: Path, digest: str, seed: int) -> Path:
    """Return the path of a record's own file, whether or not it exists."""
    return out / "runs" / digest / f"seed-{seed}.json"


def all_in(out: Path) -> list[Key]:
    """Return digest and seed of every record under `out`, sorted."""
    return sorted({*_own_files(out), *archived(out)})


def exists(out: Path, digest: str, seed: int) -> bool:
    """Tell if the run was finished here."""
    return path_of(out, digest, seed).exists() or find_archived(out, (digest, seed)) is not None


def write(out: Path, record: Record) -> Path:
    """Write a record's own file in one step, a line for each of its parts; return the path."""
    parts = asdict(record) | {"series": {key: _packed(column) for key, column in record.series.items()}}
    return _write(out, parts)


def read(out: Path, digest: str, seed: int) -> Record | None:
    """Return the record of a run, or None if it was not finished here.

    Raises:
        UserError: what is found is damaged, or the record of another run.
    """
    found = find(out, digest, seed)
    if found is None:
        return None
    values = _checked(found, digest, seed)
    rounds = len(values["series"]["round"])
    return Record(**values | {"series": {key: _unpacked(column, rounds) for key, column in values["series"].items()}})


@dataclass(frozen=True)
class StoredRecord:
    """The text of a record, and the place to name if it is wrong."""

    text: bytes
    place: str
    remedy: str  # by which the run can be made again


def find(out: Path, digest: str, seed: int) -> StoredRecord | None:
    """Return a record as it is stored, unchecked, or None if the run was not finished here."""
    path = path_of(out, digest, seed)
    try:
        return StoredRecord(path.read_bytes(), str(path), "delete it")
    except FileNotFoundError:
        line = find_archived(out, (digest, seed))
    remedy = f"call `fedbraid study unpack --out {out}` and delete {path}"
    return StoredRecord(line.text, str(line), remedy) if line else None


def pack(out: Path) -> list[Path]:
    """Move the records under `out` into archives, one for each data set; return the archives.

    The archives are complete on disk before a record's own file is deleted. A process that is killed in between leaves
    both, and the next call goes on. A file that changed meanwhile stays.
    """
    files = {key: path.read_bytes() for key, path in _own_files(out).items()}
    values = [_checked(cast(StoredRecord, find(out, *key)), *key) for key in all_in(out)]
    before, written = archives(out), write_archives(out, values)
    for path in {*before} - {*written}:
        path.unlink()
    for key, content in files.items():
        path = path_of(out, *key)
        if path.read_bytes() == content:
            path.unlink()
            if not any(path.parent.iterdir()):
                path.parent.rmdir()
    return written


def unpack(out: Path) -> int:
    """Move every archived record under `out` back into a file of its own; return how many there were."""
    packed = archived(out)
    for (digest, seed), line in packed.items():
        if not path_of(out, digest, seed).exists():
            _write(out, json.loads(line.text))
    for path in archives(out):
        path.unlink()
    return len(packed)


def _own_files(out: Path) -> dict[Key, Path]:
    """Return the records that have a file of their own."""
    names = ((path, OWN_FILE.fullmatch(path.name)) for path in (out / "runs").glob("*/seed-*.json"))
    return {(path.parent.name, int(name[1])): path for path, name in names if name}


def _checked(found: StoredRecord, digest: str, seed: int) -> dict[str, Any]:
    """Return a record's values as they are stored, or refuse them: columns of one value stay that value."""
    again = f"{found.remedy} to run it again"
    try:
        values: dict[str, Any] = json.loads(found.text)
    except ValueError as error:
        raise UserError(f"{found.place} is not a record of a run ({error}); {again}") from None
    known = {f.name for f in fields(Record)}
    missing = known ^ {"source", *values} if isinstance(values, dict) else {"digest"}  # early records have no source
    if missing:
        raise UserError(f"{found.place} is not a record of a run: see {sorted(missing)[0]!r}; {again}")
    if wrong := _damage(values):
        raise UserError(f"{found.place} is damaged: {wrong}; {again}")
    for key, wanted, named in (("digest", digest, ""), ("seed", seed, "seed ")):
        if values[key] != wanted:
            is_of = f"{found.place} is a record of {named}{values[key]}, not of {named}{wanted}"
            raise UserError(f"{is_of}; move it to its own place")
    if digest_of(from_dict(values["config"])) != digest:
        raise UserError(f"{found.place} is of another run: some default has changed since; {again}")
    return values


def _write(out: Path, parts: Mapping[str, Any]) -> Path:
    path = path_of(out, parts["digest"], parts["seed"])
    write_text(path, "{\n" + ",\n".join(f'"{key}": {_json(part)}' for key, part in parts.items()) + "\n}\n")
    return path


def _damage(values: Mapping[str, Any]) -> str:
    """Return what is wrong with the parts of a record that numbers are read from, or nothing."""
    try:
        config = from_dict(values["config"])
    except (UserError, AttributeError, TypeError, KeyError) as error:
        return f"see 'config' ({error})"
    series, totals = values["series"], values["totals"]
    if not isinstance(series, dict) or not {"round", "finite"} <= {*series}:
        return "see 'series'"
    rounds = _unpacked(series["round"], 1)
    if rounds != list(range(1, config.rounds + 1)):
        return f"it has not all of its {config.rounds} rounds"
    for key, column in series.items():
        cells = _unpacked(column, len(rounds))
        if len(cells) != len(rounds) or not all(cell is None or isinstance(cell, int | float) for cell in cells):
            return f"see {key!r} in 'series'"
        if key.partition(".")[0].endswith("accuracy") and not all(cell is None or 0 <= cell <= 1 for cell in cells):
            return f"see {key!r} in 'series', which has shares from 0 to 1"
    if not isinstance(totals, dict) or not all(isinstance(totals.get(key), int | float) for key in TOTALS):
        return "see 'totals'"
    for part in ("analyses", "engine", "environment"):
        if not isinstance(values[part], dict):
            return f"see {part!r}"
    for part in ("label_counts", "client_accuracy", "per_class"):
        if not isinstance(values[part], list | None):
            return f"see {part!r}"
    return ""


def _packed(column: Sequence[Any]) -> Any:
    """A column that says the same in every round, which most do, as that one value."""
    same = len(column) > 1 and all(value == column[0] and type(value) is type(column[0]) for value in column)
    return column[0] if same else list(column)


def _unpacked(column: Any, rounds: int) -> list[Any]:
    return column if isinstance(column, list) else [column] * rounds


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
