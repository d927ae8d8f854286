"""Labels of the log's keys and of the quantities of analyses."""

from __future__ import annotations

import re

from fedbraid.config.terms import terms
from fedbraid.core.metrics import METRICS as FURTHER

OF_LOG = {
    "train_loss": "training loss",
    "validation_accuracy": "validation accuracy",
    "validation_loss": "validation loss",
    "lr": "learning rate",
    "clients": "number of clients asked",
    "lost": "number of clients lost",
    "bytes_down": "bytes to clients",
    "bytes_up": "bytes from clients",
    "forward_samples": "samples through the network",
    "backward_samples": "samples back through the network",
    "client_accuracy.mean": "mean of the clients' accuracies",
    "client_accuracy.std": "standard deviation of the clients' accuracies",
    "client_accuracy.min": "lowest of the clients' accuracies",
    "client_accuracy.worst10": "mean accuracy of the worst tenth of the clients",
    "personal_accuracy.mean": "mean accuracy of the clients' own models",
    "personal_accuracy.std": "standard deviation of the accuracies of the clients' own models",
    "personal_accuracy.min": "lowest accuracy of the clients' own models",
    "personal_accuracy.worst10": "mean accuracy of the worst tenth of the clients' own models",
    **{f"group_accuracy.{group}": f"accuracy on {group} classes" for group in ("head", "middle", "tail")},
    "drift.variance": "variance of the clients' models",
    "drift.step": "length of the server's step",
    "drift.length": "length of the clients' updates",
    "drift.cosine": "cosine between the clients' updates",
    "fairness.variance": "variance of the clients' accuracies",
    "fairness.worst": "mean accuracy of the worst tenth of the clients",
    "fairness.class_std": "standard deviation of the classes' accuracies",
    **{f"fairness.{group}": f"accuracy on {group} classes" for group in ("head", "middle", "tail")},
    **{name: metric.title[:1].lower() + metric.title[1:] for name, metric in FURTHER.items() if " " in metric.title},
}
OF_ANALYSES = {
    "adaptability.kl": "KL divergence of local models' confusion from an even one",
    "adaptability.risk": "risk of local models on all clients' distributions",
    "adaptability.accuracy": "accuracy of the global model on the clients' distributions",
    "discrepancy.size": "correlation of local models' accuracy with the size of their data",
    **{
        f"discrepancy.{distance}": "correlation of local models' accuracy with their discrepancy, taken negative"
        for distance in ("kl", "l1", "l2", "cosine")
    },
    "dissimilarity.start": "dissimilarity of the clients' gradients at the server's model",
    "dissimilarity.end": "dissimilarity of the clients' gradients after local training",
    "features.mmd": "distance between the clients' mean features",
    "features.mmd_before": "distance between the clients' mean features before local training",
    "features.mmd_relative": "distance between the clients' mean features, over their length",
    "forgetting.rare": "change of the accuracy on a client's rare classes",
    "forgetting.common": "change of the accuracy on a client's common classes",
    "forgetting.forgotten": "accuracy forgotten in local training",
    "hessian.top": "largest eigenvalue of the loss's Hessian",
    "hessian.trace": "trace of the loss's Hessian",
    "hessian.lowest": "lowest eigenvalue of the loss's Hessian",
    "personal.generic": "accuracy of the model handed out, mean over clients",
    "personal.tuned": "accuracy after local training, mean over clients",
    "personal.personal": "accuracy of personal models, mean over clients",
}
MIXED = re.compile(r"interpolation\.pair(\d+)_r([\d.]+)")


def key_words(of: str) -> str:
    """A key of the log; those that are words are left as they are."""
    return OF_LOG.get(of, of)


def analysis_words(name: str) -> str:
    """`hessian.top`, or `interpolation(pairs=1).pair1_r30`."""
    text, _, quantity = name.rpartition(".")
    found = terms(text, "an analysis")[0][0] if text else ""
    known = f"{found}.{quantity}"
    if mixed := MIXED.fullmatch(known):
        return f"accuracy of two clients' models mixed, {float(mixed[2]):g} % of the second"
    return OF_ANALYSES.get(known, f"{quantity} of {found}" if found else name)
