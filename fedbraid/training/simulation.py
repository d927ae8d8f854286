"""Simulation: a federation whose clients' data are all here, built from a RunSpec."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbraid import data, models
from fedbraid.config.schema import Config, optimizer_of
from fedbraid.core.chain import Chain
from fedbraid.core.client_step import LocalJob
from fedbraid.core.model import Model
from fedbraid.core.round import begin
from fedbraid.core.sampling import coming
from fedbraid.core.strand import Setup
from fedbraid.core.task import Task
from fedbraid.data.dataset import Dataset, Partition, check_dataset, check_partition
from fedbraid.data.groups import class_groups
from fedbraid.data.noise import noisy
from fedbraid.data.validation import Divided, divided
from fedbraid.engines.base import Engine
from fedbraid.engines.device import ready
from fedbraid.engines.local_engine import OWN_BUFFERS, EngineKind, Local, choose
from fedbraid.engines.ray.cluster import spread
from fedbraid.engines.samples import Clients, Samples
from fedbraid.storage.client_store import ClientStore
from fedbraid.training.calibration import FirstRound, choose_engine
from fedbraid.training.evaluation import by_group, launch_evaluation, per_client, validation
from fedbraid.training.federation import Federation, Line, made_cohort
from fedbraid.training.model_inputs import Inputs
from fedbraid.training.network import check_network, network_of
from fedbraid.training.own_models import personal_scores
from fedbraid.training.run_checks import validate_memory, validate_on_data, validate_settings
from fedbraid.training.run_spec import RunSpec
from fedbraid.training.user_objects import UserObjects
from fedbraid.training.watches import Scored, find_watches, of_scored

log = logging.getLogger("fedbraid")

CLIENTS = 10
"""How many there are where nothing says otherwise."""
KNOW_THEIR_CLIENTS = {"natural", "assignment", "niid2", "flower"}
"""Partitions that know how many clients they make."""


@dataclass(eq=False)
class Simulation(Federation):
    """A federation whose clients' data are all here."""

    dataset: Dataset
    partition: Partition  # of what is trained on
    clients: Clients
    test: Samples
    validation: Samples | None  # that nobody trains on, where any are held out

    @property
    def local(self) -> Local:
        """The engine, where it is one of this machine and somebody wants to look into it."""
        assert isinstance(self.engine, Local)
        return self.engine

    @property
    def sizes(self) -> np.ndarray:
        return self.clients.sizes

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.dataset, self.partition, self.setup.w)

    @cached_property
    def label_counts(self) -> np.ndarray:
        """[clients, classes] on the host."""
        counts: np.ndarray = self.clients.label_counts.cpu().numpy()
        return counts

    @property
    def label_table(self) -> list[list[int]] | None:
        return self.label_counts.astype(np.int64).tolist() if self.dataset.task == "classification" else None

    @property
    def inputs(self) -> Inputs:
        return Inputs.of(self.dataset)

    def scored(self) -> Line:
        w, buffers = self.deployed()
        scores = launch_evaluation(self.model, w, buffers, self.test, self.config.evaluate.metrics)
        held_out = None if self.validation is None else launch_evaluation(self.model, w, buffers, self.validation)
        watches = self.watches if self.watched else ()
        own = personal_scores(self, w, buffers) if self.config.evaluate.personal else None  # before states move on

        def line() -> dict[str, Any]:
            metrics, correct = scores()
            if self.config.evaluate.per_client and metrics["per_class"] is not None:
                counts = self.label_counts
                metrics["client_accuracy"] = per_client(metrics["per_class"], correct, self.partition, counts)
            if own is not None:
                metrics["personal_accuracy"] = own
            if self.config.evaluate.groups and metrics["per_class"] is not None:
                metrics["group_accuracy"] = by_group(metrics["per_class"], class_groups(self.label_counts.sum(0)))
            if watches and metrics["per_class"] is not None:
                metrics |= of_scored(watches, Scored(metrics["per_class"], correct, self.partition, self.label_counts))
            if held_out is not None:
                others, _ = held_out()
                metrics |= validation(others["accuracy"], others["loss"])
            return metrics

        return line


def fingerprint(dataset: Dataset, partition: Partition, w: Tensor) -> str:
    """A few letters that change with the data, its partition or the initial model."""
    digest = hashlib.sha256()
    for split in (dataset.train, dataset.test):
        some = split.x[:: max(1, len(split) // 1000)]  # a thousand samples tell data sets apart
        digest.update(repr((split.x.shape, split.x.dtype)).encode())
        digest.update(np.ascontiguousarray(some).tobytes() + np.ascontiguousarray(split.y).tobytes())
    digest.update(partition.sizes.tobytes())
    digest.update(np.concatenate(partition.clients).tobytes())
    digest.update(w.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def build_simulation(spec: RunSpec, beside: Simulation | None = None) -> Simulation:
    """Build the federation before its first round.

    Data and samples that it has in common with a simulation `beside` are shared, and so are that one's Ray workers.
    """
    config, chain, objects = spec.config, spec.chain, spec.objects
    device, dtype = ready(config)
    dataset = _dataset_of(config, objects, beside)
    partition = objects.partition if objects.partition is not None else partition_of(config, dataset)
    check_partition(dataset, partition)
    split = divided_by(config, dataset, partition)
    model = network_of(config, chain, dataset, objects.model)
    model = model if spec.initial_weights is None else model.beginning_with(spec.initial_weights)
    validate_settings(spec)
    validate_on_data(spec, dataset, len(partition))
    shared = beside if beside is not None and _same_place(beside, config, dataset) else None
    if shared is not None and shared.partition.noise is None and partition.noise is None:
        samples = shared.clients.samples
    else:
        samples = Samples.of(dataset, noisy(dataset, partition), dtype, device, config.augment)
    clients = Clients.of(dataset, split.training, dtype, device, config.augment, samples)
    held_out = samples.at(torch.as_tensor(split.validation).to(device)) if len(split.validation) else None
    setup = setup_of(config, model, dataset, clients, len(partition))
    setup = replace(setup, label_counts=clients.label_counts.to(setup.w).sum(0))
    optimizer = optimizer_of(config)
    server = begin(chain, setup)
    cohort = made_cohort(config, setup, clients.sizes, 0)
    first = FirstRound(config, chain, model, optimizer, setup, server, clients, cohort)
    states = spec.directory.states if spec.directory else None
    engine, store = _engine_and_store(first, dataset.task, states, beside)
    return Simulation(
        config,
        chain,
        model,
        optimizer,
        setup,
        engine,
        store,
        server,
        dataset,
        split.training,
        clients,
        shared.test if shared else Samples.of(dataset, dataset.test, dtype, device),
        held_out,
        watches=find_watches(config.analyses),
    )


def _engine_and_store(
    first: FirstRound, task: Task, directory: Path | None, beside: Simulation | None
) -> tuple[Engine, ClientStore]:
    """Build the engine that trains the clients, here or on a Ray cluster, and where their states are kept."""
    config, setup = first.config, first.setup
    kind = choose(config.engine.here, first.model, first.clients.samples)
    _check_room(config, first.chain, setup, kind)
    states = {s.name: s.init_client(setup) for s in first.chain}
    own_buffers = config.buffers == "local"
    if own_buffers:
        states[OWN_BUFFERS] = {"buffers": setup.buffers}
    store = ClientStore(states, directory, on_disk=config.save.clients_on_disk)
    make = partial(
        Local,
        LocalJob(first.chain, first.model, first.optimizer, task),
        setup,
        first.clients,
        config.local,
        store,
        chunk=config.engine.chunk,
        capacity=setup.cohort,
        workers=config.engine.workers,
        precision=config.engine.precision,
        compile_seconds=config.engine.compile_seconds,
        own_buffers=own_buffers,
    )
    local = choose_engine(first, make, kind)
    if config.engine.kind == "ray":
        return spread(local, store, config.engine, beside.engine if beside is not None else None)
    return local, store


def setup_of(config: Config, model: Model, dataset: Dataset, clients: Clients, population: int) -> Setup:
    """Return what strands know before the first round; refuse a network that does not take the clients' samples."""
    samples, sampling = clients.samples, config.sampling
    check_network(model, samples, dataset)
    w, buffers = model.initial(samples.dtype, samples.x.device)
    with torch.no_grad():
        width = model.predict(w, buffers, samples.inputs(clients.order[:2])).features.shape[-1]
    fixed = None if sampling.scheme == "bernoulli" else sampling.clients or population
    bins = clients.label_counts.shape[1]
    return Setup(
        w,
        buffers,
        model.layout,
        dataset.classes,
        bins,
        width,
        population,
        fixed,
        config.rounds,
        config.seed,
        models.last_layer(model.training),
        fixed or coming(population, sampling.rate),
        model.frozen,
        model.norms,
    )


def _dataset_of(config: Config, objects: UserObjects, beside: Simulation | None) -> Dataset:
    if beside is not None and beside.config.data == config.data and objects.data in (None, beside.dataset):
        return beside.dataset
    dataset = objects.data or data.load(config.data.name, objects.data_dir, **config.data.options)
    check_dataset(dataset)
    return dataset


def _check_room(config: Config, chain: Chain, setup: Setup, kind: EngineKind) -> None:
    """Refuse a cohort whose models do not fit in memory, where all of them are held at once."""
    in_parts = config.engine.chunk or kind != "loop" or config.engine.kind == "ray"
    if "each model" in chain.needs or not in_parts:
        validate_memory(config, setup, "" if in_parts else ", or engine.chunk to a few")


def _same_place(beside: Simulation, config: Config, dataset: Dataset) -> bool:
    """Return whether another simulation has the same data on the same device."""
    here, there = ((c.engine.device, c.engine.dtype, c.augment) for c in (config, beside.config))
    return beside.dataset is dataset and here == there


def partition_of(config: Config, dataset: Dataset) -> Partition:
    """Partition the data set as the configuration says."""
    part = config.partition
    clients = part.clients or (None if part.name in KNOW_THEIR_CLIENTS else CLIENTS)
    return data.make_partition(dataset, part.name, clients, config.seed, **part.options)


def divided_by(config: Config, dataset: Dataset, partition: Partition) -> Divided:
    """Divide a partition into samples to train on and samples to validate on."""
    return divided(partition, dataset.train.y, config.evaluate.validation, config.seed)
