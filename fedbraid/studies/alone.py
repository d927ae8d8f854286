"""What clients' own models are worth after one round, each alone and two of them mixed.

FedDisco's second figure: whether a model of two clients is best where the larger of them counts more, and whether a
client's size or the discrepancy of its classes tells how good its model is.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbraid.config import Config, from_dict, to_toml
from fedbraid.core.model import Model
from fedbraid.data.summary import distances_to
from fedbraid.engines.samples import Samples
from fedbraid.errors import UserError
from fedbraid.evaluation import evaluate
from fedbraid.experiment import Given, build, first_step
from fedbraid.studies.identity import config_of
from fedbraid.studies.recipe import Settings


def mixture(settings: Settings, seed: int) -> float:
    """The accuracy of (1 - r) w_A + r w_B, the models that two clients of about the same size have after one round.

    The settings are a run's, with `r` and `pair`: 1 = the two clients whose sizes differ least, 2 = those of the
    others, and so on. B is the client whose own model is the better one.
    """
    own, run = _parted(settings, {"r": float, "pair": int})
    trained = _trained(to_toml(replace(run, seed=seed)))
    pairs = by_size(trained.sizes)
    if not 1 <= own["pair"] <= len(pairs):
        raise UserError(f"pair must be one of 1 to {len(pairs)}, not {own['pair']}")
    a, b = sorted(pairs[own["pair"] - 1], key=lambda client: trained.accuracies[client])
    w, buffers = (torch.lerp(each[a], each[b], own["r"]) for each in (trained.w, trained.buffers))
    return trained.accuracy(w, buffers)


def indicator(settings: Settings, seed: int) -> float:
    """How well a client's size, or its small discrepancy, tells the accuracy of its model: their correlation.

    The settings are a run's, with `by`: "size", or a metric of discrepancy from equal classes, such as "l2".
    """
    own, run = _parted(settings, {"by": str})
    trained = _trained(to_toml(replace(run, seed=seed)))
    told: dict[str, NDArray[Any]] = {"size": trained.sizes}
    told |= {metric: -far for metric, far in distances_to(np.ones(trained.counts.shape[1]), trained.counts).items()}
    if own["by"] not in told:
        raise UserError(f"by must be one of {', '.join(told)}, not {own['by']!r}")
    return float(np.corrcoef(told[own["by"]], trained.accuracies)[0, 1])


def by_size(sizes: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Clients in pairs: the two whose sizes differ least, as a share of the larger, then those among the others."""
    left, pairs = set(range(len(sizes))), list[tuple[int, int]]()
    while len(left) > 1:
        apart = {
            (i, j): abs(int(sizes[i]) - int(sizes[j])) / max(sizes[i], sizes[j]) for i in left for j in left if i < j
        }
        pairs.append(min(apart, key=lambda pair: (apart[pair], pair)))
        left -= set(pairs[-1])
    return pairs


@dataclass(frozen=True, eq=False)
class Trained:
    """Clients after one round of their own."""

    model: Model
    test: Samples
    w: Tensor  # [clients, D]
    buffers: Tensor  # [clients, Db]
    sizes: NDArray[np.int64]
    counts: NDArray[np.int64]  # [clients, classes]
    accuracies: tuple[float, ...] = ()

    def accuracy(self, w: Tensor, buffers: Tensor) -> float:
        return float(evaluate(self.model, w, buffers, self.test)[0]["accuracy"])


@lru_cache(maxsize=8)  # a table asks for the same clients in every cell
def _trained(toml: str) -> Trained:
    made = build(from_dict(tomllib.loads(toml)), Given())
    with made.threads():
        job = first_step(made.training()).job
        assert job is not None
        if job.kind != "train":
            raise UserError("clients' own models are those of a method that asks for nothing before it trains")
        replies = made.engine.run(job)
    w, buffers = replies.each("model"), replies.each("buffers")
    counts, ids = made.clients.label_counts.round().long().cpu().numpy(), job.cohort.ids
    found = Trained(made.model, made.test, w, buffers, made.clients.sizes[ids], counts[ids])
    own = tuple(found.accuracy(*model) for model in zip(w, buffers, strict=True))
    return replace(found, accuracies=own)


def _parted(settings: Settings, wanted: Mapping[str, type]) -> tuple[dict[str, Any], Config]:
    """The calculation's own settings, and the run's."""
    own = {}
    for key, kind in wanted.items():
        if key not in settings:
            raise UserError(f"{key} is missing")
        own[key] = float(settings[key]) if kind is float else settings[key]
        if not isinstance(own[key], kind):
            raise UserError(f"{key} must be of type {kind.__name__}, not {settings[key]!r}")
    return own, config_of({key: value for key, value in settings.items() if key not in wanted})
