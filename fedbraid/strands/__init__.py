"""The strands and the methods made of them: the whole field on one screen."""

from __future__ import annotations

from fedbraid.core.strand import Strand
from fedbraid.strands.acd import Acd
from fedbraid.strands.asd import Asd
from fedbraid.strands.avgm import AvgM
from fedbraid.strands.creff import Creff
from fedbraid.strands.decorr import Decorr
from fedbraid.strands.disco import Disco
from fedbraid.strands.dp import Dp
from fedbraid.strands.drift import Drift
from fedbraid.strands.lc import Lc
from fedbraid.strands.mixup import Mixup
from fedbraid.strands.moon import Moon
from fedbraid.strands.nh import Nh
from fedbraid.strands.nova import Nova
from fedbraid.strands.ntd import Ntd
from fedbraid.strands.opt import Opt
from fedbraid.strands.prox import Prox
from fedbraid.strands.qfair import QFair
from fedbraid.strands.rfedavg import RFedAvg, RFedAvgPlus
from fedbraid.strands.rod import Rod
from fedbraid.strands.sam import Sam
from fedbraid.strands.scaffold import Scaffold
from fedbraid.strands.skip import Skip
from fedbraid.strands.weights import Sizes, Uniform

STRANDS: tuple[type[Strand], ...] = (
    # aggregation weights
    Uniform,
    Sizes,
    Disco,
    Nova,
    QFair,
    # local gradients
    Prox,
    Scaffold,
    Drift,
    Sam,
    # local losses
    Asd,
    Ntd,
    Moon,
    RFedAvg,
    RFedAvgPlus,
    Decorr,
    Lc,
    Rod,
    Acd,
    # local data
    Mixup,
    # the server's step, the head
    AvgM,
    Opt,
    Nh,
    Creff,
    # who gets which model
    Skip,
    # what is told of clients
    Dp,
)

METHODS: dict[str, str] = {
    "fedavg": "",
    "feddisco": "disco",
    "fedskip": "skip",
    "fedprox": "prox",
    "fedavgm": "avgm",
    "fedadam": "opt(kind=adam)",
    "fedyogi": "opt(kind=yogi)",
    "fedadagrad": "opt(kind=adagrad, beta1=0.0)",
    "feddyn": "drift",
    "feddc": "scaffold+drift",
    "fednova": "nova",
    "qfedavg": "qfair",
    "fedntd": "ntd",
    "fedsam": "sam",
    "fedasam": "sam(adaptive=True, rho=0.7)",
    "fedspeed": "sam+drift(alpha=0.1)",
    "fedrod": "rod",
    "fedlc": "lc",
    "feddecorr": "decorr",
    "fednh": "nh",
}
"""Papers' names for chains; a strand's own name is a method too."""

PAPERS: dict[str, str] = {
    "fedavg": "FedAvg (McMahan et al., 2017)",
    "feddc": "FedDC (Gao et al., 2022)",
    "fedspeed": "FedSpeed (Sun et al., 2023)",
}
"""The papers of methods that are not a single strand."""
