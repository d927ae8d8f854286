"""The analyses there are, by name."""

from __future__ import annotations

from fedbraid.analyses.adaptability import adaptability
from fedbraid.analyses.analysis import Analysis
from fedbraid.analyses.bound import bound
from fedbraid.analyses.ccvr import ccvr
from fedbraid.analyses.client_drift import drift
from fedbraid.analyses.cost import cost
from fedbraid.analyses.discrepancy import discrepancy
from fedbraid.analyses.dissimilarity import dissimilarity
from fedbraid.analyses.fairness import fairness
from fedbraid.analyses.features import features
from fedbraid.analyses.forgetting import forgetting
from fedbraid.analyses.hessian import hessian
from fedbraid.analyses.interpolation import interpolation
from fedbraid.analyses.personal import personal
from fedbraid.analyses.privacy import privacy
from fedbraid.config.registry import Entry

OF_ONE: tuple[Entry[Analysis], ...] = (
    Entry("drift", "how far clients' models lie from the server's and from each other", drift),
    Entry("dissimilarity", "how much clients' gradients disagree", dissimilarity),
    Entry("forgetting", "what local training does to the accuracy of each class", forgetting),
    Entry("fairness", "the accuracy on each client and each class", fairness),
    Entry("adaptability", "how well local models do on everybody's distribution", adaptability),
    Entry("personal", "what clients gain from a model of their own", personal),
    Entry("ccvr", "what the last layer gains when it is refitted on features drawn from class statistics", ccvr),
    Entry("features", "where clients' features lie, and how far apart", features),
    Entry("hessian", "how flat the loss is around the model: eigenvalues, trace and spectral density", hessian),
    Entry("discrepancy", "local models' accuracy against data size and label discrepancy", discrepancy),
    Entry("interpolation", "the accuracy of mixtures of two clients' models", interpolation),
    Entry("bound", "FedDisco's bound for weights by size, Disco's and the best ones", bound),
)
"""Those of one recorded run: `make(recorded, **options)`."""

OF_SEVERAL: tuple[Entry[Analysis], ...] = (
    Entry("cost", "bytes, aggregations, forward passes and time against accuracy, and until a target", cost),
    Entry("privacy", "accuracy against the noise on what clients tell, with (ε, δ)", privacy),
)
"""Those of several recorded runs at once (or of one): `make([recorded, …], **options)`."""
