"""What is kept of a finished run: one small file, found by what the run is.

    OUT/runs/<digest>/seed-<k>.json

The digest is that of the run's configuration (`studies.run_digest`), so cells, recipes and machines that ask for
the same run find the same file, and folders of several machines are merged by copying them into one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from fedbraid.config.schema import flat, from_dict
from fedbraid.errors import UserError
from fedbraid.storage.files import write_text
from fedbraid.studies.run_digest import digest as digest_of

DIGITS = 6
"""Significant digits of what is kept."""
MOST = 20_000
"""Label counts that are kept; more can be made again from the configuration."""
TOTALS = "bytes_down", "bytes_up", "forward_samples", "backward_samples", "seconds"
ONLY_LAST = "per_class", "client_accuracy.each"
"""What is kept of the last evaluated round only: a list of numbers each."""
NOT_KEPT = "client_ids", "lost_ids"
"""Lists of the log that are long, and follow from the configuration."""


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
        """Whether these analyses were made of the run."""
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
    return out / "runs" / digest / f"seed-{seed}.json"


def all_in(out: Path) -> list[Path]:
    """The records of all finished runs, whatever asked for them."""
    return sorted(out.glob("runs/*/seed-*.json"))


def write(out: Path, record: Record) -> Path:
    """Put a record where it belongs, in one step: a line for each of its parts."""
    parts = asdict(record) | {"series": {key: _packed(column) for key, column in record.series.items()}}
    path = path_of(out, record.digest, record.seed)
    write_text(path, "{\n" + ",\n".join(f'"{key}": {_json(part)}' for key, part in parts.items()) + "\n}\n")
    return path


def read(out: Path, digest: str, seed: int) -> Record | None:
    """The record of a run, or None if it was not finished here."""
    path = path_of(out, digest, seed)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{path} is not a record of a run ({error}); delete it to run it again") from None
    known = {f.name for f in fields(Record)}
    missing = known ^ {"source", *values} if isinstance(values, dict) else {"digest"}  # early records have no source
    if missing:
        raise UserError(f"{path} is not a record of a run: see {sorted(missing)[0]!r}; delete it to run it again")
    if wrong := _damage(values):
        raise UserError(f"{path} is damaged: {wrong}; delete it to run it again")
    if values["digest"] != digest:
        raise UserError(f"{path} is a record of {values['digest']}, not of {digest}; move it to its own place")
    if values["seed"] != seed:
        raise UserError(f"{path} is a record of seed {values['seed']}, not of seed {seed}; move it to its own place")
    if digest_of(from_dict(values["config"])) != digest:
        raise UserError(f"{path} is of another run: some default has changed since; move it away to run it again")
    rounds = len(values["series"]["round"])
    values["series"] = {key: _unpacked(column, rounds) for key, column in values["series"].items()}
    return Record(**values)


def _damage(values: Mapping[str, Any]) -> str:
    """What is wrong with the parts of a record that numbers are read from, or nothing."""
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
