"""A run that is recorded, small enough to be started many times, and everything it leaves on disk.

Started by other processes too, so it imports no more than it needs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from safetensors.torch import load_file

import fedbraid as fb
from fedbraid.data.dataset import Dataset, Partition, Split

METHOD = "scaffold+skip(every=3)+avgm+prox"


def federation() -> tuple[Dataset, Partition]:
    rng = np.random.default_rng(0)
    train, test = (Split(rng.normal(size=(n, 4)), rng.integers(0, 3, n)) for n in (40, 20))
    ends = np.split(rng.permutation(40), [1, 6, 14, 20, 33])
    return Dataset("toy", train, test, classes=3), Partition(tuple(ends))


SETTINGS: dict[str, Any] = {
    "rounds": 8,
    "model": "logistic",
    "sampling": {"clients": 3},
    "optimizer": {"momentum": 0.5},
    "save": {"every": 2},
    "engine": {"device": "cpu"},
}


def record(directory: Path | str, method: str = METHOD, **settings: Any) -> fb.Run:
    """Start or resume the run in `directory`."""
    data, partition = federation()
    usual = {"resume": True, "data": data, "partition": partition}
    return fb.run(method, out=directory, **usual | SETTINGS | settings)


def compared(directory: Path | str, methods: Sequence[str], **settings: Any) -> fb.Comparison:
    """Start or resume the comparison in `directory`, without its report."""
    data, partition = federation()
    exact = {"seeds": 2, "resume": True, "engine": {"device": "cpu", "dtype": "float64"}}
    with patch.object(fb.Comparison, "report"):
        return fb.compare(*methods, out=directory, data=data, partition=partition, **SETTINGS | exact | settings)


def left_on_disk(directory: Path) -> dict[str, Any]:
    """Everything that a finished run wrote, apart from times."""
    lines = [json.loads(line) for line in (directory / "rounds.jsonl").read_text().splitlines()]
    summary = json.loads((directory / "summary.json").read_text())
    place = directory / "checkpoint"
    checkpoint = json.loads((place / "checkpoint.json").read_text())
    clients = {}
    for segment in checkpoint["segments"]:  # oldest first
        rows = {key: value.tolist() for key, value in load_file(place / segment).items()}
        ids = rows.pop("clients")
        clients |= {client: {key: rows[key][k] for key in rows} for k, client in enumerate(ids)}
    return {
        "lines": [{key: value for key, value in line.items() if key != "seconds"} for line in lines],
        "summary": {key: value for key, value in summary.items() if key != "seconds"},
        "model": (directory / "model.safetensors").read_bytes(),
        "server": {key: value.tolist() for key, value in load_file(place / checkpoint["server"]).items()},
        "clients": clients,
    }


def refused(directory: Path, pipe: Any) -> None:
    """Try to start the run, and send back why that was refused."""
    try:
        record(directory)
    except fb.UserError as error:
        pipe.send(str(error))
    else:
        pipe.send("it was not refused")


def without_checksums(directory: Path) -> None:
    """Make of a run one that an earlier version recorded, which wrote no checksums of logs and settings."""
    (directory / "manifest.json").unlink(missing_ok=True)
    file = directory / "checkpoint" / "checkpoint.json"
    saved = json.loads(file.read_text())
    file.write_text(json.dumps({key: saved[key] for key in saved if key not in ("seal", "settings", "log")}))
