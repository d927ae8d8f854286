"""Old names of modules. They still import, with a warning that says the new name."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "fedbraid.accounting": "fedbraid.privacy.accounting",
    "fedbraid.check": "fedbraid.contract.checks",
    "fedbraid.evaluation": "fedbraid.training.evaluation",
    "fedbraid.experiment": "fedbraid.training.simulation",
    "fedbraid.federation": "fedbraid.deploy",
    "fedbraid.federation.node": "fedbraid.deploy.node",
    "fedbraid.federation.secure": "fedbraid.deploy.secagg",
    "fedbraid.federation.server": "fedbraid.deploy.federation_run",
    "fedbraid.federation.transport": "fedbraid.deploy.transport",
    "fedbraid.given": "fedbraid.training.user_objects",
    "fedbraid.loading": "fedbraid.training.loading",
    "fedbraid.methods": "fedbraid.strands.parser",
    "fedbraid.metrics": "fedbraid.core.metrics",
    "fedbraid.models.last": "fedbraid.core.last_layer",
    "fedbraid.models.outputs": "fedbraid.core.outputs",
    "fedbraid.prediction": "fedbraid.inference.trained_model",
    "fedbraid.registry": "fedbraid.config.registry",
    "fedbraid.report.lines": "fedbraid.report.curves",
    "fedbraid.report.split_table": "fedbraid.report.partition_table",
    "fedbraid.report.splits": "fedbraid.report.partition_figures",
    "fedbraid.report.table": "fedbraid.report.run_table",
    "fedbraid.results": "fedbraid.training.results",
    "fedbraid.rounds": "fedbraid.training.federation",
    "fedbraid.runs": "fedbraid.training.run_directory",
    "fedbraid.strands.catalogue": "fedbraid.contract.catalogue",
    "fedbraid.core.local": "fedbraid.core.client_step",
}
"""Modules that code outside the package may import, and where they are now."""


class MovedModules(MetaPathFinder, Loader):
    """Imports the module under its new name in place of the old one, so that both are the same object."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = MOVED[spec.name]
        warnings.warn(f"{spec.name} is called {new} now", DeprecationWarning, stacklevel=2)
        module = import_module(new)
        self.spec = module.__spec__  # the import system is about to replace it by the old name's
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec


def install() -> None:
    """Have old names imported as the new modules. Installing twice changes nothing."""
    if not any(type(finder).__name__ == MovedModules.__name__ for finder in sys.meta_path):
        # First, not last: Python would find `old.part` in the folder of `new`, and import it a second time.
        sys.meta_path.insert(0, MovedModules())
