"""Write what is pinned: `python tests/pins/make.py` in the root of the repository, with the package to be pinned.

What is here was written by version 0.1 (d552583), before its modules were moved. It is written anew only where results
are meant to change, and the changelog then says so: a later version is compared with what an earlier one did.

    models.npz         the weights that every run of `matrix.py` ended with, on each engine: one array a dtype
    behaviour.json.gz  where in these arrays; logs, states, streams, digests, names, and the machine of all this
    recorded.tar.gz    what is left on disk: see `recorded_folders.py`
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import matrix  # noqa: E402
import names  # noqa: E402
import numpy as np  # noqa: E402
import ray_here  # noqa: E402
import recorded_folders  # noqa: E402
import torch  # noqa: E402


class Weights:
    """Arrays of each dtype one after the other; those that are the same to the bit are kept once."""

    def __init__(self) -> None:
        self.parts: dict[str, list[np.ndarray]] = {"float32": [], "float64": []}
        self.places: dict[bytes, tuple[int, int]] = {}

    def add(self, values: np.ndarray) -> tuple[int, int]:
        parts = self.parts[str(values.dtype)]
        key = str(values.dtype).encode() + values.tobytes()
        if key not in self.places:
            self.places[key] = (sum(len(part) for part in parts), len(values))
            parts.append(values)
        return self.places[key]

    def write(self, file: Path) -> None:
        np.savez_compressed(file, **{dtype: np.concatenate(parts) for dtype, parts in self.parts.items()})


def on_this_machine(weights: Weights) -> Mapping[str, Any]:
    """All runs on the engines of one machine."""
    places: dict[str, Any] = {}
    logs, states = {}, {}
    for name, case in matrix.CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            run = case.run("loop", Path(folder) / "run")
            if case.dtype == "float64":
                logs[name], states[name] = matrix.log(run), matrix.state(Path(folder) / "run")
        places[name] = {"loop": weights.add(matrix.weights(run))}
        places[name] |= {engine: weights.add(matrix.weights(case.run(engine))) for engine in case.engines[1:]}
        print(name, len(set(places[name].values())), "different", flush=True)
    return {"models": places, "logs": logs, "states": states}


def on_a_cluster(weights: Weights, places: Mapping[str, Any]) -> None:
    """The same on a worker of Ray's."""
    import ray

    with ray_here.own_place(ray.shutdown):
        for network in matrix.ON_A_CLUSTER:
            for name, values in matrix.on_a_cluster(network).items():
                place = weights.add(values)
                print(name, place in places[name].values(), flush=True)
                places[name]["ray"] = place


def alike(places: Mapping[str, Any]) -> list[list[str]]:
    """Methods that end with the same weights to the bit, since they say the same in other words."""
    found = []
    for dtype in ("float32", "float64"):
        ends: dict[Any, list[str]] = {}
        for name, case in matrix.CASES.items():
            if case.network == "mlp" and case.dtype == dtype and not case.setting:
                ends.setdefault(places[name]["loop"], []).append(case.method)
        found.append(sorted(sorted(group) for group in ends.values() if len(group) > 1))
    assert found[0] == found[1]
    return found[0]


def main() -> None:
    torch.set_num_threads(1)
    weights = Weights()
    values = {"machine": matrix.machine(), **names.names(), **on_this_machine(weights)}
    on_a_cluster(weights, values["models"])
    values["alike"] = alike(values["models"])
    weights.write(HERE / "models.npz")
    text = json.dumps(values, separators=(",", ":"))
    (HERE / "behaviour.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    with tempfile.TemporaryDirectory() as folder:
        recorded_folders.record_all(Path(folder))
        recorded_folders.pack(Path(folder))


if __name__ == "__main__":
    main()
