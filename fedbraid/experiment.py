"""A federation put together from its configuration, round by round."""

from __future__ import annotations

import copy
import hashlib
import logging
import math
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedbraid import calibration, data, methods, models
from fedbraid.analyses.catalogue import watches
from fedbraid.analyses.watch import Scored, Trained, Watch, of_scored, of_trained
from fedbraid.config import Config, optimizer_of
from fedbraid.core import sampling
from fedbraid.core.chain import Chain
from fedbraid.core.local import FOR_THE_LOG, LocalJob, Work
from fedbraid.core.model import Model, outputs, refuse_random_outputs
from fedbraid.core.optimizer import Optimizer
from fedbraid.core.round import Job, Server, begin, one_round
from fedbraid.core.strand import Cohort, Setup, Strand
from fedbraid.data.dataset import Dataset, Partition, check_dataset, check_partition
from fedbraid.data.groups import class_groups
from fedbraid.engines.cluster import spread
from fedbraid.engines.cpu import keep_freed_memory, one_thread
from fedbraid.engines.engine import Engine
from fedbraid.engines.latest import Latest
from fedbraid.engines.local import Kind, Local, choose
from fedbraid.engines.memory import free_memory
from fedbraid.engines.replies import Answers
from fedbraid.engines.samples import Clients, Samples, picked
from fedbraid.engines.transfer import Reading, to_device
from fedbraid.errors import UserError
from fedbraid.evaluation import by_group, launch_evaluation, per_client
from fedbraid.store import ClientStore

log = logging.getLogger("fedbraid")

CLIENTS = 10
"""How many there are where nothing says otherwise."""
KNOW_THEIR_CLIENTS = {"natural", "assignment", "niid2", "flower"}
"""Partitions that know how many clients they make."""


@dataclass(frozen=True)
class Given:
    """What a user brings instead of naming it in the configuration."""

    data: Dataset | None = None
    partition: Partition | None = None
    model: nn.Module | None = None
    chain: Chain | None = None
    strands: tuple[type[Strand], ...] = ()
    data_dir: Path | None = None


Line = Callable[[], dict[str, Any]]
"""What a round's line of the log says. Reading it waits for a GPU, which may be a round behind."""
Training = Generator[Job, Answers, Line]
"""A round without its evaluation: yields jobs for clients, receives their replies."""


@dataclass(frozen=True, eq=False)
class Step:
    """Where a round stands: at a job for its clients, or (None) at its end, with a line for the log."""

    training: Training
    job: Job | None
    line: Line

    def next(self, replies: Answers) -> Step:
        return _step(self.training, lambda: self.training.send(replies))


def first_step(training: Training) -> Step:
    return _step(training, lambda: next(training))


def _step(training: Training, go: Callable[[], Job]) -> Step:
    try:
        return Step(training, go(), dict)
    except StopIteration as done:
        return Step(training, None, done.value)


@dataclass(eq=False)
class Experiment:
    """A federation between two rounds; `advance` runs the next one, `launch` does not wait for its end on a GPU."""

    config: Config
    dataset: Dataset
    partition: Partition
    chain: Chain
    model: Model
    optimizer: Optimizer
    setup: Setup
    clients: Clients
    test: Samples
    engine: Engine
    store: ClientStore
    server: Server
    watches: tuple[Watch, ...] = ()  # analyses that put numbers into the log
    finite: bool = True  # whether the model was finite after the round that was read last
    read_at: float = 0.0  # when that was
    _cohort: Latest[Cohort] = field(default_factory=Latest, init=False, repr=False)

    @property
    def local(self) -> Local:
        """The engine, where it is one of this machine and somebody wants to look into it."""
        assert isinstance(self.engine, Local)
        return self.engine

    @property
    def finished(self) -> bool:
        return self.server.round >= self.config.rounds

    @property
    def watched(self) -> bool:
        """Whether analyses look at the round that was the last one to end."""
        return bool(self.watches) and (self.finished or self.server.round % self.config.analysis.every == 0)

    @cached_property
    def fingerprint(self) -> str:
        """A few letters that change with the data, its partition or the initial model."""
        digest = hashlib.sha256()
        for split in (self.dataset.train, self.dataset.test):
            some = split.x[:: max(1, len(split) // 1000)]  # a thousand samples tell data sets apart
            digest.update(repr((split.x.shape, split.x.dtype)).encode())
            digest.update(np.ascontiguousarray(some).tobytes() + np.ascontiguousarray(split.y).tobytes())
        digest.update(self.partition.sizes.tobytes())
        digest.update(np.concatenate(self.partition.clients).tobytes())
        digest.update(self.setup.w.cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    def advance(self) -> dict[str, Any]:
        """One round; returns its line of the log."""
        return self.launch()()

    def launch(self) -> Line:
        """One round, or at least its start: a GPU may still be busy with it. Lines are to be read in their order."""
        began = time.perf_counter()
        with self.threads():
            step = first_step(self.training())
            while step.job is not None:
                step = step.next(self.engine.run(step.job, self.plan_ahead))
        scores = self.evaluated()

        def line() -> dict[str, Any]:
            record = step.line() | scores()
            before, self.read_at = max(began, self.read_at), time.perf_counter()
            return record | {"seconds": self.read_at - before}

        return line

    def threads(self) -> AbstractContextManager[None]:
        """How many threads there are while clients train."""
        return one_thread() if self.server.w.device.type == "cpu" else nullcontext()

    def training(self) -> Training:
        """The next round. Clients are lost while they train, after any probe: who does not come back is not asked."""
        cohort, before = self.cohort(), self.server
        flow = one_round(self.chain, self.optimizer, self.setup, before, cohort, self.config.seed)
        arriving = self._arriving(self.server.round, len(cohort)) if self.config.sampling.dropout else None
        down = up = 0
        work = Work()
        job = next(flow)
        while True:
            replies = yield from _arrived(job, arriving)
            down += job.bytes_down
            came = 0
            if replies is not None:
                up, work = up + replies.bytes_up, work + replies.work
                came = len(job.cohort) if replies.came is None else len(replies.came)
            try:
                job = flow.send(replies)
            except StopIteration as done:
                self.server = done.value
                break
        w, place = self.server.w, self.server.round
        sums = [replies.each(key).sum() for key in FOR_THE_LOG] if replies is not None else [w.new_zeros(())] * 2
        totals = Reading(torch.stack([*w.aminmax(), *sums]))
        analysed: dict[str, Any] = {}
        if replies is not None and self.watched:
            analysed = of_trained(self.watches, Trained(before, self.server, job, replies))

        def line() -> dict[str, Any]:
            least, most, losses, samples = totals.numpy().tolist()
            finite = all(map(math.isfinite, (least, most, losses)))  # all are, where the extremes are
            if self.finite and not finite:
                log.warning("round %d: the model is no longer finite; try a smaller optimizer.lr", place)
            self.finite = finite
            return {
                "round": place,
                "clients": len(cohort),
                "lost": len(cohort) - came,
                "finite": finite,
                "train_loss": losses / samples if samples else None,
                "bytes_down": down,
                "bytes_up": up,
                "forward_samples": work.forward,
                "backward_samples": work.backward,
                **analysed,
            }

        return line

    @cached_property
    def label_counts(self) -> np.ndarray:
        """[clients, classes] on the host."""
        counts: np.ndarray = self.clients.label_counts.cpu().numpy()
        return counts

    def deployed(self) -> tuple[Tensor, Tensor]:
        """The model that is evaluated: its parameters and buffers."""
        if self.config.evaluate.model == "cohort" and self.server.cohort_mean is not None:
            return self.server.cohort_mean
        return self.server.deployed(self.chain, self.setup), self.server.buffers

    def module(self) -> nn.Module:
        """The network with the trained model in it."""
        w, buffers = self.deployed()
        module = self.model.to(w.dtype, w.device).evaluating
        module.load_state_dict(self.model.layout.views(w) | self.model.buffers.views(buffers), strict=False)
        return module

    def plan_ahead(self) -> None:
        """What can be done for the next round while this one is under way."""
        if coming := self.coming():
            self.engine.prepare(*coming)

    def coming(self) -> tuple[int, int, list[int]] | None:
        """The round after the one that is under way: its seed, its number and who trains in it; None if it is last."""
        place = self.server.round + 1
        return self.trainees(place) if place < self.config.rounds else None

    def trainees(self, place: int) -> tuple[int, int, list[int]]:
        """A round as engines are told of it: its seed, its number and who trains in it."""
        cohort = self.cohort(place)
        return self.config.seed, place, cohort.ids[self._arriving(place, len(cohort))].tolist()

    def _arriving(self, place: int, clients: int) -> np.ndarray:
        """The places in the cohort of a round whose updates arrive."""
        return sampling.arriving(clients, self.config.sampling.dropout, seed=self.config.seed, round=place)

    def cohort(self, place: int | None = None) -> Cohort:
        """Those who take part in the round of this number, or in the next one, with what is known of them."""
        place = self.server.round if place is None else place
        return self._cohort.of(place, lambda: self._made_cohort(place))

    def _made_cohort(self, place: int) -> Cohort:
        s, seed, w = self.config.sampling, self.config.seed, self.server.w
        present = np.flatnonzero(_arrivals(self.config, len(self.clients)) <= place)
        if s.scheme == "fixed":
            who = sampling.fixed(len(present), s.clients or len(present), seed=seed, round=place)
        else:
            who = sampling.bernoulli(len(present), s.rate, seed=seed, round=place)
        ids = present[who]
        sizes = to_device(self.clients.sizes[ids].astype(np.float64), w.device, w.dtype)
        return Cohort(ids, sizes, picked(self.clients.label_counts, to_device(ids, w.device)))

    def evaluated(self) -> Line:
        """The round's evaluation, or None for each of its parts where it is not due."""
        if self.server.round % self.config.evaluate.every and not self.finished:
            return lambda: {"accuracy": None, "loss": None, "per_class": None}
        scores = launch_evaluation(self.model, *self.deployed(), self.test)
        watches = self.watches if self.watched else ()

        def line() -> dict[str, Any]:
            metrics, correct = scores()
            if self.config.evaluate.per_client and metrics["per_class"] is not None:
                counts = self.label_counts
                metrics["client_accuracy"] = per_client(metrics["per_class"], correct, self.partition, counts)
            if self.config.evaluate.groups and metrics["per_class"] is not None:
                metrics["group_accuracy"] = by_group(metrics["per_class"], class_groups(self.label_counts.sum(0)))
            if watches and metrics["per_class"] is not None:
                metrics |= of_scored(watches, Scored(metrics["per_class"], correct, self.partition, self.label_counts))
            return metrics

        return line


def _arrived(job: Job, arriving: np.ndarray | None) -> Generator[Job, Answers, Answers | None]:
    """The replies of those who come back (None = who can), or None if nobody does."""
    if job.kind == "probe" or arriving is None:
        return (yield job)
    if not len(arriving):
        return None
    return (yield job.only(arriving)).of_those_at(arriving)


def build(config: Config, given: Given, directory: Path | None = None, beside: Experiment | None = None) -> Experiment:
    """The federation before its first round. What it has in common with one `beside` it is held once."""
    device, dtype = device_of(config.engine.device), getattr(torch, config.engine.dtype)
    if device.type == "cpu":
        keep_freed_memory()
    else:
        coarse = config.engine.precision != "highest"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = coarse
    if beside is not None and beside.config.data == config.data and given.data in (None, beside.dataset):
        dataset = beside.dataset
    else:
        dataset = given.data or data.load(config.data.name, given.data_dir, **config.data.options)
        check_dataset(dataset)
    partition = given.partition or partition_of(config, dataset)
    check_partition(dataset, partition)
    chain = given.chain or methods.parse(config.method, config.strands, given.strands)
    module = given.model or models.build(
        config.model.name,
        dataset.shape,
        dataset.classes,
        tokens=dataset.tokens,
        seed=config.seed,
        **config.model.options,
    )
    check_needs(config, chain)
    _check_fit(config, chain, dataset, partition)
    model = Model.of(altered(module, chain)).to(dtype, device)
    there = beside if beside is not None and _same_place(beside, config, dataset) else None
    plain = there is not None and there.partition.noise is None and partition.noise is None
    samples = there.clients.samples if there is not None and plain else None
    clients = Clients.of(dataset, partition, dtype, device, config.augment, samples)
    _check_network(model, clients.samples, dataset)
    w, buffers = model.initial(dtype, device)
    with torch.no_grad():
        width = model.predict(w, buffers, clients.samples.inputs(clients.order[:2])).features.shape[-1]
    fixed = (config.sampling.clients or len(partition)) if config.sampling.scheme == "fixed" else None
    kind = choose(config.engine.here, model, clients.samples)
    in_parts = config.engine.chunk or kind != "loop" or config.engine.kind == "ray"
    if "each model" in chain.needs or not in_parts:
        way = "" if in_parts else ", or engine.chunk to a few"
        _check_memory(fixed or max(1, int(config.sampling.rate * len(partition))), w, way)
    bins = clients.label_counts.shape[1]
    setup = Setup(
        w, buffers, model.layout, dataset.classes, bins, width, len(partition), fixed, config.rounds, config.seed
    )
    store = ClientStore({s.name: s.init_client(setup) for s in chain}, directory, on_disk=config.save.clients_on_disk)
    optimizer = optimizer_of(config)
    job = LocalJob(chain, model, optimizer, dataset.task)

    def engine(kind: Kind) -> Local:
        return Local(
            job,
            setup,
            clients,
            config.local,
            store,
            kind,
            chunk=config.engine.chunk,
            capacity=fixed,
            workers=config.engine.workers,
            precision=config.engine.precision,
            compile_seconds=config.engine.compile_seconds,
        )

    usual = engine(kind)
    test = there.test if there else Samples.of(dataset, dataset.test, dtype, device)
    server = begin(chain, setup)
    looking = watches(config.analyses)
    made = Experiment(
        config, dataset, partition, chain, model, optimizer, setup, clients, test, usual, store, server, looking
    )
    local = made.engine = calibration.settled(made, engine)
    if config.engine.kind == "ray":
        made.engine, made.store = spread(local, store, config.engine, beside.engine if beside is not None else None)
    return made


def _same_place(beside: Experiment, config: Config, dataset: Dataset) -> bool:
    """Whether the data that another federation has on the device are this one's too."""
    here, there = ((c.engine.device, c.engine.dtype, c.augment) for c in (config, beside.config))
    return beside.dataset is dataset and here == there


def _arrivals(config: Config, population: int) -> np.ndarray:
    """[population] the round, counted from 0, from which each client is there."""
    s = config.sampling
    return sampling.arrivals(population, s.late, s.late_from - 1, s.late_by - 1, seed=config.seed)


def altered(module: nn.Module, chain: Chain) -> nn.Module:
    """The network as the chain's strands want it."""
    for strand in chain.using("model"):
        module = strand.model(copy.deepcopy(module))
    return module


def partition_of(config: Config, dataset: Dataset) -> Partition:
    """Who holds what under this configuration."""
    part = config.partition
    clients = part.clients or (None if part.name in KNOW_THEIR_CLIENTS else CLIENTS)
    return data.make_partition(dataset, part.name, clients, config.seed, **part.options)


def check_needs(config: Config, chain: Chain) -> None:
    """What a chain needs of the rounds it is put into."""
    if "fixed cohort" in chain.needs and config.sampling.scheme != "fixed":
        raise UserError(
            f"{_who(chain, 'fixed cohort')} needs the same number of clients in every round, "
            "but sampling.scheme is 'bernoulli'; set sampling.scheme=fixed"
        )
    if "fixed cohort" in chain.needs and config.sampling.dropout:
        raise UserError(
            f"{_who(chain, 'fixed cohort')} needs every client of a round to come back; set sampling.dropout=0"
        )


def _check_fit(config: Config, chain: Chain, dataset: Dataset, partition: Partition) -> None:
    if "labels" in chain.needs and dataset.task != "classification":
        raise UserError(f"{_who(chain, 'labels')} needs class labels, but {dataset.name} is a regression; leave it out")
    if config.sampling.clients > len(partition):
        raise UserError(
            f"sampling.clients is {config.sampling.clients}, but there are {len(partition)} clients; "
            f"choose at most {len(partition)}"
        )
    early = int((_arrivals(config, len(partition)) == 0).sum())
    if "fixed cohort" in chain.needs and (config.sampling.clients or len(partition)) > early:
        raise UserError(
            f"{_who(chain, 'fixed cohort')} needs the same number of clients in every round, but only {early} of "
            f"{len(partition)} are there from the beginning; set sampling.clients to at most {early}, or "
            "sampling.late=0"
        )


def _check_memory(clients: int, w: Tensor, other_way: str) -> None:
    """That every client's model can be in memory at once, where the round ends with that."""
    needed, free = clients * w.numel() * w.element_size(), free_memory(w.device)
    if needed > free:
        fits = max(1, int(0.5 * free / (w.numel() * w.element_size())))
        raise UserError(
            f"the models of a round's {clients:,} clients take {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are "
            f"free; set sampling.clients to {fits:,} or fewer{other_way}"
        )


def _check_network(model: Model, samples: Samples, dataset: Dataset) -> None:
    """That the network takes the samples and answers as it should, before the first round."""
    x = samples.inputs(torch.zeros(2, dtype=torch.int64, device=samples.x.device))
    try:
        refuse_random_outputs(model, x)
        logits = outputs(model.evaluating(x)).logits
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"the network does not take samples of shape {dataset.shape} ({reason})") from error
    if not logits.isfinite().all():
        raise UserError(
            f"the network's answers to the first sample of {dataset.name} are not finite; look at its weights, and at "
            "the data set's mean and std"
        )
    if logits.shape != (2, dataset.classes):
        raise UserError(
            f"the network answers two samples with logits of shape {tuple(logits.shape)}; "
            f"{dataset.name} needs (2, {dataset.classes})"
        )


def _who(chain: Chain, need: str) -> str:
    return next(s.name for s in chain if need in s.needs)


def device_of(name: str) -> torch.device:
    """The torch device that `auto`, `cpu` or `cuda` stands for."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"engine.device must be auto, cpu or cuda, not {name!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"engine.device must be auto, cpu or cuda, not {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("engine.device is cuda, but torch sees no GPU here; use cpu or auto")
    return device
