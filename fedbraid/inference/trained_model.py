"""A recorded run's model, ready for data that it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from torch import nn

from fedbraid import data, models
from fedbraid.config.schema import Config
from fedbraid.core.strand import Strand
from fedbraid.data.common_options import one_of
from fedbraid.data.dataset import Array
from fedbraid.data.file_kinds import kind_of
from fedbraid.engines.device import device_of
from fedbraid.engines.samples import Samples
from fedbraid.errors import UserError
from fedbraid.inference.new_data import Reading, Truth, unseen
from fedbraid.storage.spreadsheet_csv import write_csv
from fedbraid.strands import parser as methods
from fedbraid.training import model_inputs as inputs
from fedbraid.training.loading import check_over, trained_module
from fedbraid.training.model_inputs import Inputs
from fedbraid.training.network import network_of
from fedbraid.training.run_directory import RunDirectory

AT_ONCE = 1024
"""Samples that are looked at together."""
MISSING = ("refuse", "mean", "drop")


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of a model for some samples."""

    names: tuple[str, ...]  # of the samples: their lines in a table, their numbers or their files
    scores: Array  # [samples, classes] probabilities, or [samples] the numbers of a regression
    classes: tuple[str, ...] = ()  # none in a regression
    truth: Truth = field(default=(), repr=False)  # what they should be; None where nobody says

    @property
    def labels(self) -> list[str]:
        """The most probable class of each sample, or its number."""
        if not self.classes:
            return [f"{value:g}" for value in self.scores.tolist()]
        return [self.classes[k] for k in self.scores.argmax(1).tolist()]

    @property
    def known(self) -> list[int]:
        """The samples of which somebody says what they should be."""
        return [k for k, known in enumerate(self.truth) if known is not None]

    @property
    def accuracy(self) -> float | None:
        """The share that is right, of those that are known; classes that the model has not count as wrong."""
        if not self.classes or not self.known:
            return None
        labels = self.labels
        return sum(labels[k] == self.truth[k] for k in self.known) / len(self.known)

    @property
    def error(self) -> float | None:
        """The mean distance to what a regression should tell, of those that are known."""
        if self.classes or not self.known:
            return None
        return float(np.mean([abs(float(self.scores[k]) - float(self.truth[k] or 0)) for k in self.known]))

    def write(self, text: TextIO) -> None:
        """Write CSV: a line for each sample, and the probability of each class.

        A name or label that a spreadsheet would read as a formula has an apostrophe in front.
        """
        write_csv(text, [["sample", "prediction", *(f"p({name})" for name in self.classes)]])
        each = self.scores.tolist() if self.classes else [[] for _ in self.names]
        for name, label, scores in zip(self.names, self.labels, each, strict=True):
            write_csv(text, [[name, label, *(f"{score:.6g}" for score in scores)]])


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model. `model` is a torch module, which takes samples as `inputs` says."""

    model: nn.Module
    inputs: Inputs
    config: Config

    def predict(
        self,
        samples: str | PathLike[str] | Array,
        *,
        label: str = "",
        missing: str = "",
        scaled_as: str | PathLike[str] = "",
    ) -> Predictions:
        """Predict the samples of a CSV, Parquet or .npz file, of a folder of images, or of an array.

        Columns go by their names, and samples are normalised as those that the model was trained on. `label` is the
        label column, the run's own if it is not named; it may be absent. Empty cells are refused
        unless `missing` is "mean" or "drop". Where each client normalised with numbers of its own, `scaled_as` names
        the training data of the one whose samples these are.
        """
        named = self.config.data
        own = named.options if named.name == "csv" else {}
        label = label or str(own.get("label", ""))
        missing = one_of("missing", missing or own.get("missing", "refuse"), MISSING)
        taken = self._scaled_as(scaled_as, label)
        here = unseen(samples, taken, Reading(label, str(own.get("text", "")), missing))
        scores = self._answers(taken, here.x)
        if taken.task == "regression":
            mean, std = taken.target or (0.0, 1.0)
            return Predictions(here.names, scores[:, 0] * std + mean, (), _numbers(here.truth))
        classes = taken.labels or tuple(map(str, range(taken.classes)))
        return Predictions(here.names, scores, classes, here.truth)

    def _scaled_as(self, file: str | PathLike[str], label: str) -> Inputs:
        """Return the model's inputs, with the mean and deviation of a client's own training data where needed."""
        taken = self.inputs
        if taken.tokens or (taken.mean and not file):
            return taken
        if taken.mean:
            raise UserError("the run has a mean and a deviation for all its data; leave out scaled_as (--scaled-as)")
        if not file:
            raise UserError(
                "the clients of this run had no data.mean and data.std in common, and each scaled its samples by its "
                "own; name the training data of the client whose samples these are as scaled_as (--scaled-as FILE)"
            )
        kind = kind_of(str(file)) or str(file)
        table: dict[str, Any] = {"label": label or "label", "features": list(taken.features), "task": taken.task}
        own = data.load(kind, path=str(file), **(table if kind == "csv" else {}))
        return replace(taken, mean=own.mean, std=own.std)

    @torch.no_grad()
    def _answers(self, taken: Inputs, x: Array) -> Array:
        """[samples, classes] probabilities, or [samples, 1] what a regression answers."""
        like = next(self.model.parameters())
        dataset = taken.holding(x)
        here = Samples.of(dataset, dataset.test, like.dtype, like.device)
        answers = []
        for index in torch.split(torch.arange(len(x), device=like.device), AT_ONCE):
            logits = self.model(here.inputs(index))
            answers.append(logits.softmax(-1) if taken.task == "classification" else logits)
        scores: Array = torch.cat(answers).double().cpu().numpy()
        if not np.isfinite(scores).all():
            wrong = int((~np.isfinite(scores).all(1)).sum())
            raise UserError(
                f"the model's answers to {wrong:,} of {len(scores):,} samples are not finite; it has diverged, or "
                "these samples are nothing like those that it was trained on"
            )
        return scores


def trained(
    run: str | PathLike[str],
    *,
    model: models.Own | None = None,
    own: type[Strand] | Sequence[type[Strand]] = (),
    device: str = "cpu",
) -> Trained:
    """The model of a finished run, from its directory. Code of one's own is not recorded: a network (`model`) and
    strands (`own`) that are not FedBraid's are given again.

    >>> trained("nowhere")
    Traceback (most recent call last):
    fedbraid.errors.UserError: nowhere holds no run: it has no config.toml
    """
    directory = RunDirectory(Path(run))
    place = directory.path
    check_over(directory)
    if not (place / inputs.FILE).exists():
        raise UserError(f"{place} was recorded before there was {inputs.FILE}; resume the run (--resume) to add it")
    directory.check_files("config.toml", inputs.FILE, directory.model.name)
    taken = Inputs.read_file(place / inputs.FILE)
    config = directory.config()
    if model is None and not models.is_named(config.model.name):
        raise UserError(
            f"{place} has a network of your own, {config.model.name!r}, whose code is not recorded; give it again with "
            f"--model FILE.py:{config.model.name} (model={config.model.name} in Python)"
        )
    device = str(device_of(device))
    options = {key: value for key, value in config.model.options.items() if key not in models.FILES}
    config = replace(config, engine=replace(config.engine, device=device), model=replace(config.model, options=options))
    chain = methods.parse(config.method, config.strands, (own,) if isinstance(own, type) else tuple(own))
    network = network_of(config, chain, taken.blank(), model)
    return Trained(trained_module(network, directory), taken, config)


def _numbers(truth: Truth) -> Truth:
    """The targets of a regression; what is no number is not known."""

    def is_number(known: str | None) -> bool:
        try:
            return known is not None and np.isfinite(float(known))
        except ValueError:
            return False

    return tuple(known if is_number(known) else None for known in truth)
