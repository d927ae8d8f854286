"""Replies of a cohort with a leading client axis, in memory or part by part in a file."""

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
    """Replies with the work and the bytes that they cost."""

    @property
    def work(self) -> Work: ...

    @property
    def bytes_up(self) -> int: ...

    def parts(self, key: str) -> Iterator[tuple[Tensor, Tensor]]: ...

    def of_those_at(self, places: np.ndarray) -> Answers: ...


class ScratchFile:
    """An unnamed temporary file: the system deletes it with its last reader, however the process ends."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed below)

    def __del__(self) -> None:
        self._file.close()

    def append(self, values: Tensor) -> int:
        """Append `values`; return the offset at which they begin."""
        begin = self._file.seek(0, os.SEEK_END)
        self._file.write(_bytes(values.detach().cpu().contiguous()))
        return begin

    def fill(self, values: Tensor, begin: int) -> None:
        """Read from offset `begin` into `values`, a contiguous tensor on the CPU."""
        self._file.seek(begin)
        self._file.readinto(_bytes(values))


@dataclass(frozen=True, eq=False)
class FiledUploads:
    """One of a cohort's uploads [C, ...] in a file, read for some clients at a time."""

    file: ScratchFile
    like: Tensor  # [0, ...]
    parts: list[tuple[Tensor, int]] = field(
        default_factory=list
    )  # positions in the cohort, and offsets of their values

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield positions in the cohort and the values of these clients."""
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
    """A cohort's uploads as tensors [C, ...], in the order of the cohort."""

    uploads: Tree
    work: Work
    frozen: int = 0  # parameters of the model that are not trained and need not be sent back
    came: np.ndarray | None = None  # positions in the job's cohort that replied; None = all of them
    filed: Mapping[str, FiledUploads] = field(default_factory=dict)  # uploads of which not all fit in memory

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
        """Yield positions among the replies and their values: all at once from memory, or part by part from a file."""
        if key in self.filed:
            yield from self.filed[key]
        else:
            values = self.uploads[key]
            yield torch.arange(len(values), device=values.device), values

    def of_those_at(self, places: np.ndarray) -> Stacked:
        """Return the replies of a job that was for the clients at `places` of a larger cohort."""
        return replace(self, came=places if self.came is None else places[self.came])

    @property
    def bytes_up(self) -> int:
        """Bytes that the cohort sends; values for the log and parameters that are not trained do not count."""
        counted = {key: value for key, value in self.uploads.items() if key not in FOR_THE_LOG}
        total = nbytes(counted) + sum(filed.nbytes for key, filed in self.filed.items() if key not in FOR_THE_LOG)
        model = self.filed["model"].like if "model" in self.filed else self.uploads.get("model")
        if model is None:
            return total
        clients = self.filed["model"].clients if "model" in self.filed else len(model)
        return total - self.frozen * clients * model.element_size()


class UploadCollector:
    """Collects uploads of a cohort that arrive slice by slice; those above `most` bytes go to a file."""

    def __init__(self, clients: int, most: float) -> None:
        self.clients, self.most = clients, most
        self._small: list[Tree] = []
        self._places: list[np.ndarray] = []
        self._filed: dict[str, FiledUploads] = {}
        self._file: ScratchFile | None = None

    def add(self, places: np.ndarray, uploads: Tree) -> None:
        """Add the uploads [n, ...] of the clients at `places` of the cohort."""
        each = {key: nbytes(value) // len(places) for key, value in uploads.items()}
        large = {key for key in uploads if each[key] * self.clients > self.most and len(places) < self.clients}
        for key in sorted(large):
            values = uploads[key]
            if key not in self._filed:
                self._filed[key] = FiledUploads(self._file or ScratchFile(), values.new_empty((0, *values.shape[1:])))
                self._file = self._filed[key].file
            at = to_device(places, values.device)
            self._filed[key].parts.append((at, self._filed[key].file.append(values)))
        self._small.append({key: value for key, value in uploads.items() if key not in large})
        self._places.append(places)

    def replies(self, work: Work, frozen: int = 0) -> Stacked:
        """Return everything that was added, in the order of the cohort."""
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
    """Return the memory of a contiguous CPU tensor."""
    return values.flatten().view(torch.uint8).numpy().data
