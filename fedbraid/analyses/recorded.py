"""A recorded run, rebuilt to be looked at. Nothing in its directory changes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fedbraid.config.schema import Config, to_dict
from fedbraid.core.chain import Chain
from fedbraid.core.round import one_round
from fedbraid.core.tree import Tree
from fedbraid.engines.local_engine import Store
from fedbraid.errors import UserError
from fedbraid.report.run_groups import RunRecord
from fedbraid.training.run_directory import RunDirectory
from fedbraid.training.run_spec import RunSpec
from fedbraid.training.simulation import Simulation, build_simulation
from fedbraid.training.user_objects import UserObjects, check_supplied
from fedbraid.training.watches import TrainedRound


@dataclass(frozen=True)
class Unwritten:
    """Read-only client states: writes are discarded."""

    store: Store

    def read(self, ids: Sequence[int]) -> dict[str, Tree]:
        return self.store.read(ids)

    def write(self, ids: Sequence[int], kept: dict[str, Tree]) -> None:
        pass


@dataclass(frozen=True, eq=False)
class Recorded:
    """A run directory: its configuration and log at once, the federation as its last checkpoint left it on demand.

    `objects` is what the run was given beside its configuration (a data set, a network, strands of one's own).
    """

    path: Path
    objects: UserObjects = UserObjects()
    device: str = ""  # where the federation is rebuilt; "" = where its configuration says

    def __post_init__(self) -> None:
        if not self.directory.started:
            raise UserError(f"{self.path} holds no run; name the directory that `fedbraid run --out` wrote")
        if self.directory.over:
            self.directory.check_files("config.toml", self.directory.log.name)

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory(self.path)

    @cached_property
    def config(self) -> Config:
        return self.directory.config()

    @cached_property
    def chain(self) -> Chain:
        return self.objects.chain_of(self.config)

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """The lines of the log."""
        return self.directory.rounds()

    @cached_property
    def simulation(self) -> Simulation:
        """The federation after the last checkpoint. Training its clients changes neither it nor the directory."""
        check_supplied(
            self.config,
            self.objects,
            self.path,
            "analyse it in Python: fedbraid.analyses.analyze(…, objects=UserObjects({table}=…))",
        )
        simulation = build_simulation(self._spec)
        self.directory.read(simulation)
        simulation.local.store = Unwritten(simulation.store)
        return simulation

    @property
    def experiment(self) -> Simulation:
        """Old name of `simulation`."""
        warnings.warn("Recorded.experiment is called simulation now", DeprecationWarning, stacklevel=2)
        return self.simulation

    @cached_property
    def next_round(self) -> TrainedRound:
        """The round that would come next, with everybody who would be sampled for it and nobody lost.

        Clients train as a run trains them: by its engine, from what strands send and keep.
        """
        return trained_round(self.simulation)

    @cached_property
    def first_round(self) -> TrainedRound:
        """The run's first round once more, from the model that it began with."""
        return trained_round(build_simulation(replace(self._spec, directory=None), beside=self.simulation))

    @property
    def record(self) -> RunRecord:
        """The run as a report takes it."""
        config = self.config
        counts = self.simulation.label_table
        averages = self.chain.averaging
        return RunRecord(config.called, config.seed, tuple(self.rounds), to_dict(config), counts, averages)

    def need_classes(self, analysis: str) -> None:
        """Refuse a regression, which has no classes to look at one by one."""
        dataset = self.simulation.dataset
        if dataset.task != "classification":
            raise UserError(f"{analysis} looks at classes, but {dataset.name} is a regression; leave it out")

    @cached_property
    def _spec(self) -> RunSpec:
        begun = RunSpec(self.config, self.chain, self.objects, self.directory).as_recorded()
        return replace(begun, config=self._here)

    @property
    def _here(self) -> Config:
        """The configuration, on the requested device; one machine is enough for a round."""
        engine = self.config.engine
        if not self.device and engine.kind != "ray":
            return self.config
        return replace(self.config, engine=replace(engine, device=self.device or engine.device, kind="auto"))


def trained_round(e: Simulation) -> TrainedRound:
    """The federation's next round, without its becoming the federation's."""
    flow = one_round(e.chain, e.lr, e.setup, e.server, e.cohort(), e.config.seed)
    with e.threads(), torch.no_grad():
        job = next(flow)
        while True:
            replies = e.engine.run(job)
            try:
                job = flow.send(replies)
            except StopIteration as done:
                return TrainedRound(e.server, done.value, job, replies)
