"""A run before it is made: all that decides how it goes, checked and parsed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from fedbraid.config.schema import Config, optimizer_of
from fedbraid.core.chain import Chain
from fedbraid.core.varied import form
from fedbraid.training.run_directory import RunDirectory
from fedbraid.training.user_objects import UserObjects


@dataclass(frozen=True)
class RunSpec:
    """A run to be made. The method is parsed when the spec is made (`RunSpec.of`), and carried from there on."""

    config: Config
    chain: Chain
    objects: UserObjects = field(default_factory=UserObjects)
    directory: RunDirectory | None = None  # where it is recorded
    initial_weights: Mapping[str, Tensor] | None = None
    """By parameter name: those that a recorded run of a user's network began with, which no seed makes again."""

    @classmethod
    def of(cls, config: Config, objects: UserObjects | None = None, directory: RunDirectory | None = None) -> RunSpec:
        """Parse the configuration's method, or take the user's chain, and put the run together."""
        objects = objects or UserObjects()
        return cls(config, objects.chain_of(config), objects, directory)

    @property
    def started(self) -> bool:
        """Return whether its directory holds this run already, begun with settings that were allowed then."""
        return self.directory is not None and self.directory.started

    @property
    def stack_key(self) -> str:
        """Equal for runs that may share a stack: those that differ in numbers, seeds, or in who holds what."""
        config = self.config
        return repr((form(self.chain, optimizer_of(config)), config.data, config.augment, config.model))

    def as_recorded(self) -> RunSpec:
        """Return the spec with what its directory fixed when the run was begun: initial weights and engine."""
        if self.directory is None or not self.directory.started:
            return self
        config = self.config
        if config.engine.kind == "auto":
            config = replace(config, engine=replace(config.engine, kind=self.directory.config().engine.kind))
        weights = self.directory.initial_weights() if self.objects.model is not None else None
        return replace(self, config=config, initial_weights=weights)
