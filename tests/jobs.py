"""Jobs as the server hands them out, for asking an engine directly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbraid.core.round import Job, one_round
from fedbraid.core.strand import Cohort
from fedbraid.core.tree import PerClient
from fedbraid.training.simulation import Simulation


def training_job(simulation: Simulation, ids: Sequence[int] | None = None) -> Job:
    """The training job of the next round for these clients (or for those whose turn it is)."""
    cohort = simulation.cohort()
    if ids is not None:
        sizes = torch.as_tensor(simulation.clients.sizes[list(ids)]).to(cohort.sizes)
        cohort = Cohort(np.array(ids), sizes)
    flow = one_round(
        simulation.chain, simulation.lr, simulation.setup, simulation.server, cohort, simulation.config.seed
    )
    job = next(flow)
    return flow.send(simulation.engine.run(job)) if job.kind == "probe" else job


def uploads(simulation: Simulation, job: Job | None = None) -> dict[str, Tensor]:
    """What the clients hand in."""
    return dict(simulation.engine.run(job or training_job(simulation)).uploads)


def permuted(job: Job, order: Sequence[int]) -> Job:
    """The same job with the clients in another order."""
    at = list(order)
    cohort = job.cohort.only(np.array(at))
    own: dict[str, Any] = {"model": job.model[at], "buffers": job.buffers[at]} if job.model.dim() == 2 else {}
    sent = {
        name: PerClient({key: value[at] for key, value in tree.items()}) if isinstance(tree, PerClient) else tree
        for name, tree in job.sent.items()
    }
    return replace(job, cohort=cohort, sent=sent, **own)
