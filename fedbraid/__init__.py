"""FedBraid: federated learning on data that differs from client to client. A method is a braid of strands."""

from fedbraid.api import chain, compare, run
from fedbraid.config.schema import Config
from fedbraid.contract.checks import check_strand
from fedbraid.core.batch import Batch
from fedbraid.core.chain import Chain
from fedbraid.core.strand import Client, Cohort, Release, Round, Setup, Strand
from fedbraid.core.tree import PerClient
from fedbraid.data import Dataset, Partition, Split
from fedbraid.errors import UserError
from fedbraid.inference.trained_model import Predictions, Trained, trained
from fedbraid.models import Outputs
from fedbraid.training.loading import load
from fedbraid.training.results import Comparison, Failure, Run
from fedbraid.training.run_writer import STOP
from fedbraid.version import __version__

__all__ = [
    "STOP",
    "Batch",
    "Chain",
    "Client",
    "Cohort",
    "Comparison",
    "Config",
    "Dataset",
    "Failure",
    "Outputs",
    "Partition",
    "PerClient",
    "Predictions",
    "Release",
    "Round",
    "Run",
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
