"""The analyses there are, by name."""

from __future__ import annotations

from collections.abc import Sequence

from fedbraid.analyses import drift
from fedbraid.analyses.analysis import Analysis
from fedbraid.analyses.bound import bound
from fedbraid.analyses.discrepancy import discrepancy
from fedbraid.analyses.hessian import hessian
from fedbraid.analyses.interpolation import interpolation
from fedbraid.analyses.watch import Watch
from fedbraid.errors import unknown
from fedbraid.registry import Entry

WATCHES: tuple[Watch, ...] = (drift.WATCH,)
"""Those that run inside a run: `analyses = ["drift"]` in its configuration."""

OF_ONE: tuple[Entry[Analysis], ...] = (
    Entry("drift", "how far clients' models lie from the server's and from each other", drift.drift),
    Entry("hessian", "how flat the loss is around the model: eigenvalues, trace and spectral density", hessian),
    Entry("discrepancy", "local models' accuracy against data size and label discrepancy", discrepancy),
    Entry("interpolation", "the accuracy of mixtures of two clients' models", interpolation),
    Entry("bound", "FedDisco's bound for weights by size, Disco's and the best ones", bound),
)
"""Those of one recorded run: `make(recorded, **options)`."""

OF_SEVERAL: tuple[Entry[Analysis], ...] = ()
"""Those of several recorded runs at once (or of one): `make([recorded, …], **options)`."""


def watches(names: Sequence[str]) -> tuple[Watch, ...]:
    """The analyses of these names that run inside a run."""
    known = {watch.name: watch for watch in WATCHES}
    for name in names:
        if name not in known:
            raise unknown("analysis that runs inside a run", name, known)
    return tuple(known[name] for name in dict.fromkeys(names))
