"""Clients' own models, which strands make of the deployed one and of what they keep on each client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from fedbraid.core.chain import own_model
from fedbraid.core.strand import View
from fedbraid.core.tree import rows
from fedbraid.training.evaluation import evaluate, over_clients, per_client

if TYPE_CHECKING:
    from fedbraid.training.simulation import Simulation


def model_of(simulation: Simulation, client: int, w: Tensor, buffers: Tensor) -> View:
    """Return a client's own model and its buffers, of the deployed `w` [D] and `buffers` [Db].

    A client that has not taken part yet has what strands begin with.
    """
    kept = rows(simulation.store.read([client]), 0)
    return own_model(simulation.chain, w, buffers, kept, simulation.setup)


def personal_scores(simulation: Simulation, w: Tensor, buffers: Tensor) -> dict[str, Any]:
    """Return the accuracy of every client's own model, on the samples on which the client tests the deployed one."""
    s, found = simulation, np.full(len(simulation.sizes), np.nan)
    for client in range(len(found)):
        metrics, correct = evaluate(s.model, *model_of(s, client, w, buffers), s.test)
        score = per_client(metrics["per_class"], correct, s.partition, s.label_counts)["each"][client]
        found[client] = np.nan if score is None else score
    return over_clients(found)
