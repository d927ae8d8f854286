"""Hyper-parameters that differ from client to client, so that runs with different values can share a stack.

The equations stay as they are: a strand whose `mu` is a tensor reads like one whose `mu` is a number. What cannot be
said of a tensor (a Python `if` on it, `math.log` of it) fails under `vmap` with an error, never with a wrong number.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any, TypeVar

from torch import Tensor

from fedbraid.core.batch import Batch
from fedbraid.core.chain import Chain, overrides
from fedbraid.core.client_step import Batches, LocalJob, State
from fedbraid.core.optimizer import Optimizer
from fedbraid.core.outputs import Outputs
from fedbraid.core.strand import AT_CLIENTS, Strand
from fedbraid.core.tree import Tree

T = TypeVar("T")
Values = dict[str, dict[str, Any]]
"""Hyper-parameters by owner (a strand's name, or OPTIMIZER) and by name."""

VARIED = "varied"
"""What clients are given their own values under."""
OPTIMIZER = "the optimizer"
"""The optimiser as the owner of its hyper-parameters; no strand can be called so."""


@dataclass(frozen=True, eq=False)
class VariedJob(LocalJob):
    """A local job in which some hyper-parameters come with what the client is given."""

    def begin(self, given: State, batches: Batches) -> State:
        return self._of(given).begin(given, batches)

    def new_epoch(self, state: State, given: State, batches: Batches) -> State:
        return self._of(given).new_epoch(state, given, batches)

    def step(self, state: State, batch: Batch, given: State, seen: Mapping[str, Outputs]) -> State:
        return self._of(given).step(state, batch, given, seen)

    def end(self, state: State, given: State, batches: Batches) -> tuple[Tree, dict[str, Tree]]:
        return self._of(given).end(state, given, batches)

    def probe(self, given: State, batches: Batches) -> Tree:
        return self._of(given).probe(given, batches)

    def views(self, given: State) -> dict[str, tuple[Tensor, Tensor]]:
        return self._of(given).views(given)

    def _of(self, given: State) -> LocalJob:
        own: Values = given[VARIED]
        strands = tuple(_with(s, own[s.name]) if s.name in own else s for s in self.chain)
        optimizer = _with(self.optimizer, own.get(OPTIMIZER, {}))
        return LocalJob(
            self.chain.of_numbers(strands), self.model, optimizer, self.task, self.differentiate, self.tally
        )


def differing(chains: Sequence[Chain], optimizers: Sequence[Optimizer]) -> list[Values]:
    """For each run its values of the hyper-parameters that are not the same in all."""
    owners: list[dict[str, Any]] = [
        {s.name: s for s in _at_clients(chain)} | {OPTIMIZER: o} for chain, o in zip(chains, optimizers, strict=True)
    ]
    names = {
        owner: [f.name for f in fields(one) if _varies(f) and len({getattr(o[owner], f.name) for o in owners}) > 1]
        for owner, one in owners[0].items()
    }
    return [
        {owner: {name: getattr(own[owner], name) for name in some} for owner, some in names.items() if some}
        for own in owners
    ]


def form(chain: Chain, optimizer: Optimizer) -> tuple[Any, ...]:
    """Equal for chains that differ for clients in numbers only, numbers that a client's own tensor can stand for."""
    return (*(_form(s, overrides(s, "model")) for s in _at_clients(chain)), _form(optimizer, False))


def _at_clients(chain: Chain) -> list[Strand]:
    """The strands that do something at clients. What the others do, each run's server does by itself."""
    return [s for s in chain if overrides(s, *AT_CLIENTS)]


def _form(owner: Any, whole: bool) -> tuple[Any, ...]:
    """A strand that changes the network is taken with its numbers: they may have become part of the network."""
    held = {f.name: getattr(owner, f.name) for f in fields(owner) if whole or not _varies(f)}
    return type(owner), tuple(held.items())


def _varies(field: Field[Any]) -> bool:
    return field.type in (float, "float")


def _with(owner: T, values: dict[str, Any]) -> T:
    """A copy with other values, which are not checked again."""
    made = copy.copy(owner)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made
