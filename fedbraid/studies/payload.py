"""Bytes that a method sends to a client beside the model: rFedAvg's third table."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedbraid.config.schema import from_dict
from fedbraid.core.round import Job
from fedbraid.core.tree import PerClient, nbytes
from fedbraid.data.dataset import Dataset, Partition, Split
from fedbraid.errors import UserError, unknown
from fedbraid.studies.recipe import Settings
from fedbraid.training.federation import first_step
from fedbraid.training.run_spec import RunSpec
from fedbraid.training.simulation import build_simulation
from fedbraid.training.user_objects import UserObjects

EACH = 2
"""Made-up samples of a client."""
RUN = "method", "strands", "model"
OWN = "samples", "clients", "cohort"


def payload(settings: Settings, seed: int) -> float:
    """Bytes that each client of the first round receives for its training beside the model.

    `method`, `strands` and `model` are a run's; `clients` of which `cohort` take part hold made-up samples of a
    `shape` and a number of `classes`, texts of so many `words`. What clients are asked before they train, they answer.
    """
    for key in settings:
        if key not in (*RUN, *OWN):
            raise unknown("setting of a payload", key, (*RUN, *OWN))
    for key in OWN:
        if key not in settings:
            raise UserError(f"a payload needs {key}")
    clients, cohort = settings["clients"], settings["cohort"]
    run = {key: settings[key] for key in RUN if key in settings}
    config = from_dict({**run, "seed": seed, "sampling": {"clients": cohort}, "engine": {"device": "cpu"}})
    shares = Partition(tuple(np.arange(EACH * clients).reshape(clients, EACH)))
    objects = UserObjects(data=_made_up(settings["samples"], EACH * clients), partition=shares)
    made = build_simulation(RunSpec.of(config, objects))
    with made.threads():
        step = first_step(made.training())
        while step.job is not None and step.job.kind == "probe":
            step = step.next(made.engine.run(step.job))
    assert step.job is not None
    return beside_the_model(step.job)


def beside_the_model(job: Job) -> float:
    """Return what one client of a job receives from the strands, shared by all clients or its own."""
    each = (nbytes(tree) / (len(job.cohort) if isinstance(tree, PerClient) else 1) for tree in job.sent.values())
    return float(sum(each))


def _made_up(samples: Settings, number: int) -> Dataset:
    """Samples without meaning, of the wanted shape."""
    words, classes = samples.get("words", 0), samples["classes"]
    x: np.ndarray[Any, Any] = np.ones((number, *samples["shape"]), dtype=np.int64 if words else np.float32)
    split = Split(x, np.arange(number) % classes)
    tokens = tuple(f"word {k}" for k in range(words + 2)) if words else ()  # and the padding and unknown words
    return Dataset("made-up", split, split, classes, tokens=tokens)
