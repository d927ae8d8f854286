"""What version 0.1 left on disk, how it was made, and how it is gone on with; `make.py` packed it as recorded.tar.gz.

run/           an interrupted run: the checkpoint of round 4 of 6, and a line of the log beyond it
finished/      a finished run
comparison/    two methods and two seeds, of which the last run is at its first checkpoint
study/         two of four runs of a table
federation/    the homes and the server's folder of a federation that stopped after round 2 of 4
ends/          the same, each gone on with to its end
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import fedbraid as fb

ARCHIVE = Path(__file__).parent / "recorded.tar.gz"
METHOD = "scaffold+rfedavg_plus(lam=0.1)+skip(every=2)+avgm"
SMALL: dict[str, Any] = {
    "data": {"name": "synthetic-leaf", "clients": 6, "features": 6, "classes": 3},
    "partition": "natural",
    "model": {"name": "mlp", "hidden": [4]},
    "local": {"batch": 4},
    "sampling": {"clients": 3},
    "engine": {"device": "cpu", "kind": "loop", "dtype": "float64", "workers": 1},
}
RUN: dict[str, Any] = {**SMALL, "rounds": 6, "save": {"every": 2}, "evaluate": {"per_client": True, "target": 0.5}}
COMPARED = ["fedavg", "scaffold+disco"]
COMPARISON: dict[str, Any] = {**SMALL, "seeds": 2, "rounds": 2, "save": {"every": 1}}
RECIPE = """
paper = "pinned"
item = "Table 1"
title = "Two methods on two splits"
metric = "last"
seeds = 1

[base]
rounds = 2
data = { name = "synthetic-leaf", clients = 6, features = 6, classes = 3 }
partition = { name = "natural" }
model = { name = "logistic" }
engine = { kind = "loop", device = "cpu", dtype = "float64", workers = 1 }

[[columns]]
name = "few"
set = { local = { batch = 4 } }
[[columns]]
name = "many"
set = { local = { batch = 8 } }
[[rows]]
name = "FedAvg"
set = { method = "fedavg" }
[[rows]]
name = "FedAvg+Disco"
set = { method = "fedavg+disco" }

[numbers."FedAvg"]
"few" = [60.0, 0.5]

[[claims]]
says = "Disco helps"
better = ["FedAvg+Disco"]
than = ["FedAvg"]
"""
FEDERATION: dict[str, Any] = {"rounds": 4, "save": {"every": 2}}
NAMES = ("clinic-a", "clinic-b", "clinic-c", "clinic-d", "clinic-e")


class Interrupted(BaseException):
    """The machine stops here."""


def interrupt(after: int) -> Any:
    """An `on_round` that ends everything after so many of the rounds that it sees."""
    seen = []

    def on_round(line: dict[str, Any], config: fb.Config) -> None:
        seen.append(line)
        if len(seen) == after:
            raise Interrupted

    return on_round


def run(place: Path, **options: Any) -> fb.Run:
    return fb.run(METHOD, out=place, **RUN, **options)


def compare(place: Path, **options: Any) -> fb.Comparison:
    return fb.compare(COMPARED, out=place, together=False, **COMPARISON, **options)


def fedbraid(*words: Any) -> int:
    """The command."""
    with patch.object(sys, "argv", ["fedbraid", *map(str, words)]):
        try:
            runpy.run_module("fedbraid", run_name="__main__")
        except SystemExit as left:
            return int(left.code or 0)
    return 0


def study(place: Path, *words: str) -> int:
    recipe = place / "pinned.toml"
    recipe.write_text(RECIPE, encoding="utf-8")
    return fedbraid("study", "run", recipe, "--out", place / "out", "--resume", *words)


def federate(place: Path, on_round: Any = None) -> None:
    """The federation in this process, begun or gone on with. Its configuration names files by relative paths."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "deploy"))
    from world import InProcess, conduct, configured, nodes, samples

    with contextlib.chdir(place):
        config = configured("scaffold+rfedavg_plus(lam=0.1)", samples(Path()), **FEDERATION)
        network = InProcess(nodes(config, Path("homes")))
        options = {"seconds": 1.0, "pause": 0.0, "min_clients": 1, "resume": True}
        conduct(config, network, NAMES, out=Path("run"), on_round=on_round, **options)


def weights(place: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return load_file(place / "model.safetensors")


def lines(place: Path) -> list[dict[str, Any]]:
    """The log without the time that rounds took."""
    read = [json.loads(line) for line in (place / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in read]


def record_all(place: Path) -> None:
    """Everything anew, with the package as it is."""
    for name in ("run", "comparison", "study", "federation"):
        (place / name).mkdir(parents=True)
    with contextlib.suppress(Interrupted):
        run(place / "run", on_round=interrupt(5))
    run(place / "finished")
    with contextlib.suppress(Interrupted):
        compare(place / "comparison", on_round=interrupt(7))
    study(place / "study", "--only", "FedAvg")
    with contextlib.suppress(Interrupted):
        federate(place / "federation", interrupt(2))
    ends = place / "ends"
    for name in ("run", "comparison", "study", "federation"):
        shutil.copytree(place / name, ends / name)
    run(ends / "run", resume=True)
    compare(ends / "comparison", resume=True)
    study(ends / "study")
    federate(ends / "federation")
    for report in (place / "study" / "out" / "pinned", ends / "study" / "out" / "pinned"):
        shutil.rmtree(report)  # it names the folder that it was made in
    for file in [*place.rglob("*.png"), *place.rglob("*.html"), *place.rglob("*.lock")]:
        file.unlink()


def pack(place: Path) -> None:
    """An archive whose bytes depend on the files and nothing else."""

    def plain(one: tarfile.TarInfo) -> tarfile.TarInfo:
        one.uid = one.gid = one.mtime = 0
        one.uname = one.gname = ""
        return one

    with tarfile.open(ARCHIVE, "w:gz", compresslevel=9) as archive:
        for name in sorted(os.listdir(place)):
            archive.add(place / name, name, filter=plain)


@contextlib.contextmanager
def unpacked(place: Path) -> Iterator[Path]:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(place, filter="data")
    yield place
