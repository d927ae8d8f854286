"""A model tested by the clients, each on samples of its own that it does not train on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedbraid.core.task import Task
from fedbraid.deploy.channel import Channel
from fedbraid.deploy.messages import Message
from fedbraid.deploy.scores import COUNTED, PARTS, SamplePart, Score, accuracy, asking, fits, loss, of_part
from fedbraid.training.evaluation import over_clients, validation

log = logging.getLogger("fedbraid")

Scores = Mapping[str, Mapping[SamplePart, Score]]
"""By client and part."""


def request_scores(
    channel: Channel, w: Tensor, buffers: Tensor, round: int, parts: Sequence[SamplePart], task: Task
) -> Scores:
    """Ask the connected clients for the model's scores on these parts of their samples."""
    here, model = channel.here(), {"model": w, "buffers": buffers}
    due = {name: [part for part in parts if has[part]] for name, has in channel.ready.items() if name in here}
    written = {
        tuple(own): Message("evaluate", channel.membership.run, round, asking(own), model).to_bytes()
        for own in due.values()
        if own
    }
    messages = {name: written[tuple(own)] for name, own in due.items() if own}
    scores, refused = channel.ask(messages, round, {}, _told)
    for name, reported in list(scores.items()):
        if reason := _mismatch(reported, {part: channel.ready[name][part] for part in due[name]}, task):
            refused[name] = reason
            del scores[name]
    for name, reason in refused.items():
        log.warning("round %d is tested without %s: %s", round, name, reason)
    return scores


def _told(answer: Message) -> dict[SamplePart, Score]:
    return {part: Score.read(answer, part) for part in PARTS if COUNTED[part] in answer.payload}


def _mismatch(reported: Mapping[SamplePart, Score], has: Mapping[SamplePart, int], task: Task) -> str:
    """Why scores are not those that were asked for, or nothing."""
    if reported.keys() != has.keys():
        return f"it tells of {' and '.join(reported) or 'no'} samples, and was asked for {' and '.join(has)} samples"
    for part, score in reported.items():
        if score.samples != has[part]:
            return f"it tested on {score.samples:,} samples, and has {has[part]:,}"
        if not fits(score, task):
            return f"its scores are not those of a {task}"
    return ""


def on_tests(scores: Scores) -> dict[str, Any]:
    """Accuracy and loss over the test samples of all clients together, and who they are."""
    reported = of_part(scores, "test")
    return {
        "accuracy": accuracy([*reported.values()]),
        "loss": loss([*reported.values()]),
        "per_class": None,
        "tested_by": list(reported),
        "tests": sum(score.samples for score in reported.values()),
    }


def on_validation(scores: Scores) -> dict[str, Any]:
    """The same over the samples that clients hold out."""
    reported = of_part(scores, "validation")
    return validation(accuracy([*reported.values()]), loss([*reported.values()])) | {"validated_by": list(reported)}


def by_client(scores: Scores, roster: Sequence[str], task: Task) -> dict[str, Any]:
    """The accuracy of each client on its own test samples, in the order of the roster; of a regression the loss."""
    reported = of_part(scores, "test")
    of, key = (accuracy, "client_accuracy") if task == "classification" else (loss, "client_loss")
    each = np.array([of([reported[name]]) if name in reported else np.nan for name in roster], dtype=np.float64)
    tests = [reported[name].samples if name in reported else 0 for name in roster]
    spread = over_clients(each, higher_is_better=task == "classification")
    return {key: spread | {"tests": tests, "names": list(roster)}}
