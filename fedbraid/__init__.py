"""FedBraid: federated learning on data that differs from client to client. A method is a chain of strands.

Public names load on first use (PEP 562): `import fedbraid` itself imports neither torch nor any other module.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedbraid.moved import install as _install
from fedbraid.version import __version__

if TYPE_CHECKING:  # for editors and type checkers; `_HOMES` below has the same names, and a test compares the two
    from fedbraid.api import chain, compare, run
    from fedbraid.config.schema import Config
    from fedbraid.contract.checks import check_strand
    from fedbraid.core.batch import Batch
    from fedbraid.core.chain import Chain
    from fedbraid.core.constraints import Constraints
    from fedbraid.core.outputs import Outputs
    from fedbraid.core.strand import Client, Cohort, Draws, Noise, Release, Round, Setup, Strand
    from fedbraid.core.tree import Ask, PerClient
    from fedbraid.data.dataset import Dataset, Partition, Split
    from fedbraid.errors import UserError
    from fedbraid.inference.trained_model import Predictions, Trained, trained
    from fedbraid.training.callbacks import Callback, EarlyStopping, RunState
    from fedbraid.training.loading import load
    from fedbraid.training.results import Comparison, Failure, Run
    from fedbraid.training.run_writer import STOP

_install()  # so that old names of modules are found, too

_HOMES = {
    "api": ("chain", "compare", "run"),
    "config.schema": ("Config",),
    "contract.checks": ("check_strand",),
    "core.batch": ("Batch",),
    "core.chain": ("Chain",),
    "core.constraints": ("Constraints",),
    "core.outputs": ("Outputs",),
    "core.strand": ("Client", "Cohort", "Draws", "Noise", "Release", "Round", "Setup", "Strand"),
    "core.tree": ("Ask", "PerClient"),
    "data.dataset": ("Dataset", "Partition", "Split"),
    "errors": ("UserError",),
    "inference.trained_model": ("Predictions", "Trained", "trained"),
    "training.callbacks": ("Callback", "EarlyStopping", "RunState"),
    "training.loading": ("load",),
    "training.results": ("Comparison", "Failure", "Run"),
    "training.run_writer": ("STOP",),
}
"""The public names, by the module that defines them."""

_MODULE_OF = {name: f"fedbraid.{module}" for module, names in _HOMES.items() for name in names}

__all__ = [
    "STOP",
    "Ask",
    "Batch",
    "Callback",
    "Chain",
    "Client",
    "Cohort",
    "Comparison",
    "Config",
    "Constraints",
    "Dataset",
    "Draws",
    "EarlyStopping",
    "Failure",
    "Noise",
    "Outputs",
    "Partition",
    "PerClient",
    "Predictions",
    "Release",
    "Round",
    "Run",
    "RunState",
    "Setup",
    "Split",
    "Strand",
    "Trained",
    "UserError",
    "__version__",
    "chain",
    "check_strand",
    "compare",
    "load",
    "run",
    "trained",
]


def __getattr__(name: str) -> Any:
    """Import a public name, or a room such as `fedbraid.models`, when it is first used."""
    if name in _MODULE_OF:
        value = getattr(import_module(_MODULE_OF[name]), name)
        globals()[name] = value
        return value
    if not name.startswith("_"):
        try:
            return import_module(f"fedbraid.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"fedbraid.{name}":
                raise
    raise AttributeError(f"module 'fedbraid' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
