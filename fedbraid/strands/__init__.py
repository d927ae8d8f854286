"""The strands and the methods made of them: the whole field on one screen."""

from __future__ import annotations

from fedbraid.core.strand import Strand
from fedbraid.strands.avgm import AvgM
from fedbraid.strands.disco import Disco
from fedbraid.strands.prox import Prox
from fedbraid.strands.scaffold import Scaffold
from fedbraid.strands.skip import Skip
from fedbraid.strands.weights import Sizes, Uniform

STRANDS: tuple[type[Strand], ...] = (
    # aggregation weights
    Uniform,
    Sizes,
    Disco,
    # local gradients
    Prox,
    Scaffold,
    # the server's step
    AvgM,
    # who gets which model
    Skip,
)

METHODS: dict[str, str] = {
    "fedavg": "",
    "fedprox": "prox",
    "fedavgm": "avgm",
    "feddisco": "disco",
    "fedskip": "skip",
}
"""Papers' names for chains; a strand's own name is a method too."""
