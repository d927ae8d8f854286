"""How time and memory grow: with the clients there are, with those in a round, and with the model.

    python benchmarks/growth.py [population cohort model disk] [--rounds 5] [--json growth.json]

Every line is a fresh process on one CPU thread: all until the end of the first round (data, partition, engine), the
median round after it (with its checkpoint, where there is one), by the clock and in CPU seconds, which a busy machine
changes less, and the most memory the process ever had, beside what it had once FedBraid was imported. Data are
SYNTHETIC, a user for each client, networks see 60 features. `disk` is SCAFFOLD with 100,000 clients whose states are
on disk: recorded, killed in the middle, and resumed.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

AXES = {
    "population": [{"clients": n, "sampled": 10, "method": "scaffold"} for n in (10, 100, 1_000, 10_000)],
    "cohort": [
        {"clients": 1_000, "sampled": n, "hidden": 256, "chunk": chunk}
        for chunk in (1_000, 10)
        for n in (10, 100, 1_000)
    ],
    "model": [{"clients": 200, "sampled": 200, "hidden": n, "chunk": 10} for n in (64, 256, 1_024, 4_096)],
}
DISK = {"clients": 100_000, "sampled": 1_000, "method": "scaffold", "size": 100, "on_disk": True}
COLUMNS = ["clients", "sampled", "hidden", "chunk", "parameters", "first_s", "first_cpu", "round_s", "round_cpu"]
COLUMNS += ["ms/client", "MiB", "ours"]
"""What the table shows; ms/client are CPU time, and `ours` is the memory beyond that of the imports."""


def settings(point: dict) -> dict:
    hidden = point.get("hidden", 0)
    return {
        "rounds": point["rounds"],
        "data": {"name": "synthetic", "clients": point["clients"], "max_size": point.get("size", 60)},
        "partition": "natural",
        "model": {"name": "mlp", "hidden": [hidden]} if hidden else "logistic",
        "sampling": {"clients": point["sampled"]},
        "local": {"batch": 10},
        "optimizer": {"lr": 0.01},
        "evaluate": {"every": 10},
        "engine": {"device": "cpu", "kind": "stack", "chunk": point.get("chunk", 0)},
        "save": {"every": 2, "clients_on_disk": point.get("on_disk", False)},
    }


def most_memory() -> float:
    """MiB that this process ever had at once."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def measure(point: dict) -> dict:
    """One line of the table, in this process."""
    import fedbraid as fb

    def now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()

    before, began, ends = most_memory(), now(), []
    record = {"out": point["out"], "resume": True} if "out" in point else {}
    run = fb.run(
        point.get("method", "fedavg"),
        on_round=lambda line, config: ends.append(now()),
        **settings(point),
        **record,
    )
    wall, cpu = (median(end[k] - last[k] for last, end in pairwise(ends)) for k in (0, 1))
    return {
        **{key: point.get(key) for key in ("clients", "sampled", "hidden", "chunk")},
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "first_s": ends[0][0] - began[0],
        "first_cpu": ends[0][1] - began[1],
        "round_s": wall,
        "round_cpu": cpu,
        "ms/client": 1000 * cpu / point["sampled"],
        "MiB": most_memory(),
        "ours": most_memory() - before,
        "rounds": len(ends),
        "accuracy": run.accuracy,
    }


def apart(point: dict) -> subprocess.Popen:
    env = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--point", json.dumps(point)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


def told(process: subprocess.Popen) -> dict:
    answer, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"a measurement ended with {process.returncode}")
    return json.loads(answer.splitlines()[-1])


def on_disk(point: dict) -> list[dict]:
    """The run whole, and the run killed in the middle and resumed, which must end with the same model."""
    place = Path(tempfile.mkdtemp(prefix="growth-", dir=os.environ.get("FEDBRAID_SCRATCH")))
    try:
        whole = told(apart(point | {"out": str(place / "whole")}))
        log, killed = place / "killed" / "rounds.jsonl", apart(point | {"out": str(place / "killed")})
        while killed.poll() is None and (not log.exists() or log.read_bytes().count(b"\n") < point["rounds"] // 2):
            time.sleep(0.05)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        resumed = told(apart(point | {"out": str(place / "killed")}))
        models = [(place / run / "model.safetensors").read_bytes() for run in ("whole", "killed")]
        resumed["same bits"] = models[0] == models[1]
        whole["MiB on disk"] = sum(f.stat().st_size for f in (place / "whole").rglob("*") if f.is_file()) / 2**20
        return [whole, resumed]
    finally:
        shutil.rmtree(place)


def table(lines: list[dict]) -> str:
    def cell(value: object) -> str:
        return "" if value is None else f"{value:,.3f}" if isinstance(value, float) and value < 10 else f"{value:,.0f}"

    rows = [COLUMNS, *([cell(line[c]) for c in COLUMNS] for line in lines)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(COLUMNS))]
    return "\n".join("  ".join(word.rjust(width) for word, width in zip(row, widths, strict=True)) for row in rows)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("axes", nargs="*", help=f"of {', '.join([*AXES, 'disk'])}; all unless named")
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--json", type=Path)
    asked.add_argument("--point", help=argparse.SUPPRESS)
    given = asked.parse_args()
    if given.point:
        print(json.dumps(measure(json.loads(given.point))))
        return
    results = {}
    for axis in given.axes or [*AXES, "disk"]:
        points = AXES.get(axis, [])
        lines = [told(apart(point | {"rounds": given.rounds + 1})) for point in points]
        lines += on_disk(DISK | {"rounds": 20}) if axis == "disk" else []
        results[axis] = lines
        print(f"{axis}\n{table(lines)}\n", flush=True)
        for line in lines:
            extra = {key: line[key] for key in ("same bits", "MiB on disk") if key in line}
            if extra:
                print(extra, flush=True)
    if given.json:
        given.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
