"""Processes that need not import torch each time: they are forked from one that has done so, and nothing else."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["fedbraid.cli.app"])


def python(place: Path, *words: str | Path) -> tuple[int | None, str]:
    """What `python WORDS` does in a directory: its exit code, and all that it says."""
    said = place / "said"
    process = FORKS.Process(target=_run, args=(place, said, *map(str, words)))
    process.start()
    process.join()
    return process.exitcode, said.read_text()


def _run(place: Path, said: Path, *words: str) -> None:
    os.chdir(place)
    with open(said, "wb") as lines:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(lines.fileno(), stream.fileno())
    sys.path.insert(0, str(place))
    first, *rest = words
    sys.argv = rest if first.startswith("-") else [first, *rest]
    if first == "-c":
        exec(rest[0], {"__name__": "__main__"})
    elif first == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(first, run_name="__main__")
