"""FedDisco's numerical simulation (table 6): the bound of theorem 4.5 for clients that are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
import torch

from fedbraid.analyses.discrepancy import discrepancies
from fedbraid.analyses.theorem import Bound, Constants
from fedbraid.config.registry import positive, whole
from fedbraid.core.random import stream
from fedbraid.data.partitions.dirichlet import dirichlet
from fedbraid.errors import unknown
from fedbraid.strands.disco import Disco, disco_weights
from fedbraid.studies.recipe import Settings


@dataclass(frozen=True)
class BoundSettings(Constants):
    """FedDisco's table 6: theorem 4.5 for clients drawn by Dir(beta), while weights go down the reformulated bound."""

    clients: int = 10
    classes: int = 10
    samples: int = 50_000
    beta: float = 0.5
    distance: Literal["kl", "l1", "l2", "cosine"] = "kl"  # of a client's labels from the uniform distribution: d_k
    form: Literal["original", "reformulated"] = "original"
    weights: Literal["descent", "sizes", "disco", "reformulated", "least"] = "descent"
    """After gradient descent; n_k; Disco's; those that make either form of the bound least."""
    start: Literal["sizes", "uniform"] = "sizes"  # where gradient descent begins
    steps: int = 0  # of it
    descent: float = 0.005  # how far a step goes along the gradient


def bound(settings: Settings, seed: int) -> float:
    """The bound of theorem 4.5, or its reformulation."""
    known = {field.name: field.type for field in fields(BoundSettings)}
    for key in settings:
        if key not in known:
            raise unknown("setting of the bound", key, known)
    s = BoundSettings(**settings)
    labels = np.repeat(np.arange(s.classes), whole("samples", s.samples, s.classes) // s.classes)
    split = dirichlet(labels, s.clients, stream(seed, "partition"), s.beta)
    counts = split.label_counts(labels, s.classes).astype(np.float64)
    n, d = counts.sum(1) / counts.sum(), discrepancies(s.distance, counts)
    theorem = Bound(n, d, s)
    forms = {"original": theorem.original, "reformulated": theorem.reformulated}
    if s.form not in forms:
        raise unknown("form of the bound", s.form, forms)
    return float(forms[s.form](_weights(theorem, s)))


def _weights(theorem: Bound, s: BoundSettings) -> np.ndarray:
    starts = {"sizes": theorem.n, "uniform": np.full(s.clients, 1 / s.clients)}
    if s.start not in starts:
        raise unknown("start", s.start, starts)
    ways: dict[str, Callable[[], np.ndarray]] = {
        "descent": lambda: theorem.descended(
            starts[s.start], whole("steps", s.steps, 0), positive("descent", s.descent)
        ),
        "sizes": lambda: theorem.n,
        "disco": lambda: disco_weights(
            torch.from_numpy(theorem.n), torch.from_numpy(theorem.d), Disco.a, Disco.b
        ).numpy(),
        "reformulated": theorem.least_reformulated,
        "least": theorem.least,
    }
    if s.weights not in ways:
        raise unknown("weights", s.weights, ways)
    return ways[s.weights]()
