"""Clients' own models, which strands make of the deployed one and of what they keep on each client."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from torch import Tensor

from fedbraid.core.chain import Chain, own_model
from fedbraid.core.model import Model
from fedbraid.core.strand import Setup, View
from fedbraid.core.tree import rows
from fedbraid.data.dataset import Partition
from fedbraid.engines.local_engine import Store
from fedbraid.engines.samples import Samples
from fedbraid.training.evaluation import evaluate, over_clients, per_client


class Tested(Protocol):
    """A simulation, as far as clients' own models go."""

    @property
    def chain(self) -> Chain: ...
    @property
    def setup(self) -> Setup: ...
    @property
    def model(self) -> Model: ...
    @property
    def store(self) -> Store: ...
    @property
    def test(self) -> Samples: ...
    @property
    def partition(self) -> Partition: ...
    @property
    def sizes(self) -> np.ndarray: ...
    @property
    def label_counts(self) -> np.ndarray: ...


def model_of(simulation: Tested, client: int, w: Tensor, buffers: Tensor) -> View:
    """Return a client's own model and its buffers, of the deployed `w` [D] and `buffers` [Db].

    A client that has not taken part yet has what strands begin with.
    """
    kept = rows(simulation.store.read([client]), 0)
    return own_model(simulation.chain, w, buffers, kept, simulation.setup)


def personal_scores(simulation: Tested, w: Tensor, buffers: Tensor) -> dict[str, Any]:
    """Return the accuracy of every client's own model, on the samples on which the client tests the deployed one."""
    s, found = simulation, np.full(len(simulation.sizes), np.nan)
    for client in range(len(found)):
        metrics, correct = evaluate(s.model, *model_of(s, client, w, buffers), s.test)
        score = per_client(metrics["per_class"], correct, s.partition, s.label_counts)["each"][client]
        found[client] = np.nan if score is None else score
    return over_clients(found)
