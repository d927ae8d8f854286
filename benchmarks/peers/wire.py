"""How a worker and the driver talk: lines on standard input and output.

The driver writes `rounds N M` and gets back the seconds that M rounds took from the N-th on, or `save PATH` and gets
the model's parameters in a file. A worker takes the rounds from a generator, so that a package with a loop of its own
can ask for the next round from inside it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import IO, TextIO

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Asked:
    """The command line of every worker."""

    federation: Path
    device: str
    threads: int
    in_order: bool  # batches in the order the samples lie: for the comparison of models, not for times
    engine: str
    processes: int


def asked() -> Asked:
    parser = argparse.ArgumentParser()
    parser.add_argument("federation", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--in-order", action="store_true")
    parser.add_argument("--engine", default="auto", help="of fedbraid")
    parser.add_argument("--processes", type=int, default=1, help="of pfl")
    given = Asked(**vars(parser.parse_args()))
    torch.set_num_threads(given.threads)
    if given.device == "cuda":  # coarser products and the search for the fastest convolution are for everybody
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
    return given


class Wire:
    """A worker's end. Whatever else is printed goes to standard error, so that answers stay alone."""

    def __init__(self, device: str, followers: Sequence[IO[str]] = ()) -> None:
        self.device, self.followers = device, followers
        self.out: TextIO = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def rounds(self, parameters: Callable[[], Sequence[Tensor]]) -> Iterator[int]:
        """The numbers of the rounds to run; coming back for the next one ends the clock of the last."""
        self.say("ready")
        for line in sys.stdin:
            command, argument = line.split(maxsplit=1)
            if command == "save":
                tensors = parameters()
                np.savez(argument.strip(), *(t.detach().cpu().numpy() for t in tensors))
                self.say("saved")
                continue
            self.wait()
            began = perf_counter()
            for follower in self.followers:
                follower.write(line)
                follower.flush()
            first, several = map(int, argument.split())
            yield from range(first, first + several)
            self.wait()
            self.say(repr(perf_counter() - began))

    def say(self, text: str) -> None:
        self.out.write(text + "\n")
        self.out.flush()

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
