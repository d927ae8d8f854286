"""Replies that are already here, with a leading client axis: in memory, or part by part in a file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedbraid.core.client_step import FOR_THE_LOG, Work
from fedbraid.core.strand import Replies
from fedbraid.core.tree import Tree, nbytes
from fedbraid.engines.transfer import to_device


class Answers(Replies, Protocol):
    """Replies, and what they took."""

    @property
    def work(self) -> Work: ...

    @property
    def bytes_up(self) -> int: ...

    def parts(self, key: str) -> Iterator[tuple[Tensor, Tensor]]: ...

    def of_those_at(self, places: np.ndarray) -> Answers: ...


class Scratch:
    """A file without a name, which is gone with its last reader, however the process ends."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed below)

    def __del__(self) -> None:
        self._file.close()

    def append(self, values: Tensor) -> int:
        """Write `values` at the end; where they begin."""
        begin = self._file.seek(0, os.SEEK_END)
        self._file.write(_bytes(values.detach().cpu().contiguous()))
        return begin

    def fill(self, values: Tensor, begin: int) -> None:
        """Read into `values`, a contiguous tensor on the CPU."""
        self._file.seek(begin)
        self._file.readinto(_bytes(values))


@dataclass(frozen=True, eq=False)
class Filed:
    """One of a cohort's uploads [C, ...] in a file, for some clients at a time."""

    file: Scratch
    like: Tensor  # [0, ...]
    parts: list[tuple[Tensor, int]] = field(default_factory=list)  # places in the cohort, and where their values begin

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Places in the cohort, and the values of those who stand there."""
        for places, begin in self.parts:
            values = torch.empty((len(places), *self.like.shape[1:]), dtype=self.like.dtype)
            self.file.fill(values, begin)
            yield places, values.to(self.like.device)

    @property
    def clients(self) -> int:
        return sum(len(places) for places, _ in self.parts)

    @property
    def nbytes(self) -> int:
        return self.clients * prod(self.like.shape[1:]) * self.like.element_size()


@dataclass(frozen=True, eq=False)
class Stacked:
    """A cohort's uploads as tensors [C, ...], in the cohort's order."""

    uploads: Tree
    work: Work
    frozen: int = 0  # parameters of the model that are not trained and need not be sent back
    came: np.ndarray | None = None  # places in the job's cohort that replied; None = all of them
    filed: Mapping[str, Filed] = field(default_factory=dict)  # uploads too large for all of them to be in memory

    def each(self, key: str) -> Tensor:
        if key not in self.filed:
            return self.uploads[key]
        filed = self.filed[key]
        whole = filed.like.new_empty((filed.clients, *filed.like.shape[1:]))
        for places, values in filed:
            whole[places] = values
        return whole

    def sum(self, key: str, weights: Tensor) -> Tensor:
        if key not in self.filed:
            return _weighted(weights, self.uploads[key])
        total = self.filed[key].like.new_zeros(self.filed[key].like.shape[1:])
        for places, values in self.filed[key]:
            total += _weighted(weights[places], values)
        return total

    def parts(self, key: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Places among the replies and the values of those who stand there: all at once, or as they lie in a file."""
        if key in self.filed:
            yield from self.filed[key]
        else:
            values = self.uploads[key]
            yield torch.arange(len(values), device=values.device), values

    def of_those_at(self, places: np.ndarray) -> Stacked:
        """The same, where the job was one for those at `places` of a larger cohort."""
        return replace(self, came=places if self.came is None else places[self.came])

    @property
    def bytes_up(self) -> int:
        """What the cohort sends back; numbers for the log do not count, nor do parameters that are not trained."""
        counted = {key: value for key, value in self.uploads.items() if key not in FOR_THE_LOG}
        total = nbytes(counted) + sum(filed.nbytes for key, filed in self.filed.items() if key not in FOR_THE_LOG)
        model = self.filed["model"].like if "model" in self.filed else self.uploads.get("model")
        if model is None:
            return total
        clients = self.filed["model"].clients if "model" in self.filed else len(model)
        return total - self.frozen * clients * model.element_size()


class Inbox:
    """Uploads of a cohort that come part by part. Those that would take more than `most` bytes go to a file."""

    def __init__(self, clients: int, most: float) -> None:
        self.clients, self.most = clients, most
        self._small: list[Tree] = []
        self._places: list[np.ndarray] = []
        self._filed: dict[str, Filed] = {}
        self._file: Scratch | None = None

    def add(self, places: np.ndarray, uploads: Tree) -> None:
        """What the clients at `places` of the cohort sent."""
        each = {key: nbytes(value) // len(places) for key, value in uploads.items()}
        large = {key for key in uploads if each[key] * self.clients > self.most and len(places) < self.clients}
        for key in sorted(large):
            values = uploads[key]
            if key not in self._filed:
                self._filed[key] = Filed(self._file or Scratch(), values.new_empty((0, *values.shape[1:])))
                self._file = self._filed[key].file
            at = to_device(places, values.device)
            self._filed[key].parts.append((at, self._filed[key].file.append(values)))
        self._small.append({key: value for key, value in uploads.items() if key not in large})
        self._places.append(places)

    def replies(self, work: Work, frozen: int = 0) -> Stacked:
        """Everything that came, in the cohort's order."""
        small = self._small[0]
        if len(self._small) > 1:
            small = {key: torch.cat([part[key] for part in self._small]) for key in small}
        places = np.concatenate(self._places)
        if small and (np.diff(places) != 1).any():
            back = to_device(np.argsort(places), next(iter(small.values())).device)
            small = {key: value.index_select(0, back) for key, value in small.items()}
        return Stacked(small, work, frozen, filed=self._filed)


def _weighted(weights: Tensor, values: Tensor) -> Tensor:
    if not values.numel():  # most networks have no buffers
        return values.new_empty(values.shape[1:])
    return (weights.to(values.dtype) @ values.reshape(len(weights), -1)).reshape(values.shape[1:])


def _bytes(values: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    return values.flatten().view(torch.uint8).numpy().data
