"""Evaluation of a federation's model: by the server on its test set, or by the clients on their samples."""

from __future__ import annotations

from torch import Tensor

from fedbraid.config.schema import Config
from fedbraid.core.model import Model
from fedbraid.core.task import Task
from fedbraid.deploy.channel import Channel
from fedbraid.deploy.client_evaluation import by_client, on_tests, on_validation, request_scores
from fedbraid.deploy.remote_federation import Evaluator
from fedbraid.deploy.scores import SamplePart
from fedbraid.engines.samples import Samples
from fedbraid.training.evaluation import launch_evaluation
from fedbraid.training.federation import Line


def server_evaluator(config: Config, model: Model, test: Samples, channel: Channel, task: Task) -> Evaluator:
    """The server tests; clients say how the model does on what they hold out, where they hold out anything."""
    validated = bool(config.evaluate.validation)

    def evaluate(w: Tensor, buffers: Tensor, round: int) -> Line:
        scores = launch_evaluation(model, w, buffers, test, config.evaluate.metrics)
        payload = request_scores(channel, w, buffers, round, ["validation"], task) if validated else {}
        return lambda: scores()[0] | (on_validation(payload) if validated else {})

    return evaluate


def client_evaluator(config: Config, channel: Channel, task: Task) -> Evaluator:
    """Nobody but the clients has samples to test on."""
    validated = bool(config.evaluate.validation)
    parts: list[SamplePart] = ["test", "validation"] if validated else ["test"]

    def evaluate(w: Tensor, buffers: Tensor, round: int) -> Line:
        scores = request_scores(channel, w, buffers, round, parts, task)
        line = on_tests(scores)
        line |= on_validation(scores) if validated else {}
        line |= by_client(scores, channel.membership.roster, task) if config.evaluate.per_client else {}
        return lambda: line

    return evaluate
