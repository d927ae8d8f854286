"""Workloads: federated averaging with plain SGD on made-up samples, whose contents do not matter for speed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fedbraid import data
from fedbraid.config.schema import Config, from_dict
from fedbraid.core.precision import Precision
from fedbraid.core.random import stream
from fedbraid.data.dataset import Dataset, Split

TESTED = 10_000
"""Test samples, as many as MNIST and CIFAR have."""


@dataclass(frozen=True)
class Workload:
    """A federation to time."""

    name: str
    network: str
    samples: Literal["synthetic", "images", "texts"]
    shape: tuple[int, ...] = ()
    classes: int = 10
    clients: int = 10
    each: int = 0  # samples of a client; 0 = ragged
    sampled: int = 0  # clients in a round; 0 = all of them
    batch: int = 64
    epochs: int = 1

    @property
    def about(self) -> str:
        sides = "×".join(map(str, self.shape))
        who = f"{self.sampled} of {self.clients:,} clients" if self.sampled else f"{self.clients} clients"
        each = f" × {self.each:,}" if self.each else ", ragged"
        return f"{self.network} {sides}, {who}{each}, batch {self.batch}, epochs {self.epochs}".replace(" ,", ",")

    def dataset(self, tested: int = 10) -> Dataset:
        if self.samples == "synthetic":
            return data.load("synthetic", clients=self.clients, max_size=1000)
        if self.samples == "texts":
            return texts(self.shape[0], self.classes, self.clients * self.each, tested)
        return images(self.shape, self.classes, self.clients, self.each, tested)

    def config(self, device: str, kind: str, *, evaluated: bool = False, precision: Precision = "high") -> Config:
        """The run that is timed; long enough for `auto` to think of a long run."""
        ragged = self.samples == "synthetic"
        return from_dict(
            {
                "rounds": 10**6,
                "partition": {"name": "natural"} if ragged else {"name": "iid", "clients": self.clients},
                "model": {"name": self.network},
                "sampling": {"clients": self.sampled},
                "local": {"batch": self.batch, "epochs": self.epochs},
                "optimizer": {"lr": 0.01},
                "evaluate": {"every": 1 if evaluated else 10**6},
                "engine": {"kind": kind, "device": device, "precision": precision},
            }
        )


LOGISTIC = Workload("synthetic-logistic", "logistic", "synthetic", clients=200, sampled=10, epochs=10)
LENET = Workload("lenet", "lenet", "images", (1, 28, 28), each=600, epochs=2)
CNN = Workload("cnn", "cnn", "images", (3, 32, 32), classes=100, each=500, batch=50)


def works(device: str, *, quick: bool = False) -> tuple[Workload, ...]:
    """The workloads for a device. A GPU gets rounds as long as a study's, and larger cohorts and networks."""
    if device == "cpu":
        return (LOGISTIC, LENET) if quick else (LOGISTIC, LENET, CNN)
    lenet, cnn = replace(LENET, each=3000), replace(CNN, each=1500, epochs=2)
    if quick:
        return LOGISTIC, lenet
    return (
        LOGISTIC,
        lenet,
        replace(lenet, name="lenet-100", clients=100, each=640),
        replace(LENET, name="lenet-short"),
        cnn,
        replace(cnn, name="cnn-50", clients=50, each=500),
        Workload("fedavg-cnn", "fedavg-cnn", "images", (3, 32, 32), clients=1000, each=50, sampled=50, batch=10),
        Workload("resnet18-gn", "resnet18", "images", (3, 32, 32), each=500, batch=50),
        Workload("textcnn", "textcnn", "texts", (128,), classes=4, each=2000),
    )


def images(shape: tuple[int, ...], classes: int, clients: int, each: int, tested: int = 10) -> Dataset:
    """Random images."""
    rng = stream(0, "benchmark images")
    number = clients * each + tested
    x = rng.integers(0, 256, (number, *shape), dtype=np.uint8)
    return _made("images", x, classes, tested, mean=(127.5,), std=(73.6,))


def texts(length: int, classes: int, number: int, tested: int = 10) -> Dataset:
    """Random words of a vocabulary of 20,000."""
    rng = stream(0, "benchmark texts")
    x = rng.integers(1, 20_000, (number + tested, length), dtype=np.int32)
    return _made("texts", x, classes, tested, tokens=tuple(map(str, range(20_000))))


def _made(name: str, x: np.ndarray, classes: int, tested: int, **more: Any) -> Dataset:
    y = stream(0, "benchmark labels").integers(0, classes, len(x))
    train, test = Split(x[tested:], y[tested:]), Split(x[:tested], y[:tested])
    return Dataset(name, train, test, classes, **more)
