"""Who says how good a federation's model is: the server on its test set, or the clients on samples of their own."""

from __future__ import annotations

from torch import Tensor

from fedbraid.config.schema import Config
from fedbraid.core.model import Model
from fedbraid.core.task import Task
from fedbraid.deploy.mail import Mail
from fedbraid.deploy.pooled import by_client, on_tests, on_validation, told_by_clients
from fedbraid.deploy.remote import Judge
from fedbraid.deploy.scores import Part
from fedbraid.engines.samples import Samples
from fedbraid.training.evaluation import launch_evaluation
from fedbraid.training.federation import Line


def by_server(config: Config, model: Model, test: Samples, mail: Mail, task: Task) -> Judge:
    """The server tests; clients say how the model does on what they hold out, where they hold out anything."""
    validated = bool(config.evaluate.validation)

    def judged(w: Tensor, buffers: Tensor, round: int) -> Line:
        scores = launch_evaluation(model, w, buffers, test, config.evaluate.metrics)
        told = told_by_clients(mail, w, buffers, round, ["validation"], task) if validated else {}
        return lambda: scores()[0] | (on_validation(told) if validated else {})

    return judged


def by_clients(config: Config, mail: Mail, task: Task) -> Judge:
    """Nobody but the clients has samples to test on."""
    validated = bool(config.evaluate.validation)
    parts: list[Part] = ["test", "validation"] if validated else ["test"]

    def judged(w: Tensor, buffers: Tensor, round: int) -> Line:
        scores = told_by_clients(mail, w, buffers, round, parts, task)
        line = on_tests(scores)
        line |= on_validation(scores) if validated else {}
        line |= by_client(scores, mail.register.roster, task) if config.evaluate.per_client else {}
        return lambda: line

    return judged
