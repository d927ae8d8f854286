"""The strands and the methods made of them: the whole field on one screen."""

from __future__ import annotations

from fedbraid.core.strand import Strand
from fedbraid.strands.acd import Acd
from fedbraid.strands.acg import Acg
from fedbraid.strands.apfl import Apfl
from fedbraid.strands.asd import Asd
from fedbraid.strands.avgm import AvgM
from fedbraid.strands.cclip import CClip
from fedbraid.strands.cm import Cm
from fedbraid.strands.creff import Creff
from fedbraid.strands.decorr import Decorr
from fedbraid.strands.disco import Disco
from fedbraid.strands.ditto import Ditto
from fedbraid.strands.dp import Dp
from fedbraid.strands.drift import Drift
from fedbraid.strands.etf import Babu, Etf
from fedbraid.strands.exp import Exp
from fedbraid.strands.krum import Krum
from fedbraid.strands.lc import Lc
from fedbraid.strands.lesam import Lesam
from fedbraid.strands.median import Median
from fedbraid.strands.mixup import Mixup
from fedbraid.strands.moon import Moon
from fedbraid.strands.nh import Nh
from fedbraid.strands.normclip import NormClip
from fedbraid.strands.nova import Nova
from fedbraid.strands.ntd import Ntd
from fedbraid.strands.opt import Opt
from fedbraid.strands.parts import Parts
from fedbraid.strands.pfedme import PFedMe
from fedbraid.strands.prox import Prox
from fedbraid.strands.qfair import QFair
from fedbraid.strands.relaxed import Relaxed
from fedbraid.strands.rfa import Rfa
from fedbraid.strands.rfedavg import RFedAvg, RFedAvgPlus
from fedbraid.strands.rod import Rod
from fedbraid.strands.rs import Rs
from fedbraid.strands.sam import Sam
from fedbraid.strands.scaffold import Scaffold
from fedbraid.strands.skip import Skip
from fedbraid.strands.smoo import Smoo
from fedbraid.strands.trimmed import Trimmed
from fedbraid.strands.weights import Sizes, Uniform

GROUPS: dict[str, tuple[type[Strand], ...]] = {
    "averaging weights": (
        Uniform,
        Sizes,
        Disco,
        Nova,
        QFair,
    ),
    "local gradient": (
        Prox,
        Scaffold,
        Drift,
        Cm,
        Sam,
        Lesam,
        Smoo,
    ),
    "local loss": (
        Asd,
        Ntd,
        Moon,
        RFedAvg,
        RFedAvgPlus,
        Decorr,
        Lc,
        Rs,
        Rod,
        Acd,
    ),
    "local data": (Mixup,),
    "server's step": (
        AvgM,
        Opt,
        Exp,
    ),
    "network's head": (
        Nh,
        Etf,
        Babu,
        Creff,
    ),
    "where clients start": (
        Skip,
        Acg,
        Relaxed,
    ),
    "clients' own models": (
        Parts,
        Ditto,
        Apfl,
        PFedMe,
    ),
    "robust aggregation": (
        NormClip,
        Median,
        Trimmed,
        Rfa,
        Krum,
        CClip,
    ),
    "privacy": (Dp,),
}
"""The strands, by what they change of FedAvg."""

STRANDS: tuple[type[Strand], ...] = tuple(strand for group in GROUPS.values() for strand in group)

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
    "fedcm": "cm",
    "mofedsam": "sam+cm",
    "fedgamma": "sam+scaffold",
    "fedlesam": "lesam",
    "fedlesam_s": "lesam+scaffold",
    "fedlesam_d": "lesam+drift(alpha=0.1)",
    "fedsmoo": "smoo+drift(alpha=0.1)",
    "fedacg": "acg+prox(mu=0.002)",
    "fedinit": "relaxed",
    "fedexp": "exp",
    "fedrs": "rs",
    "fedetf": "etf+rod(missing=1.0, personal=false)",
    "fedbabu": "babu",
    "fedper": "parts",
    "fedrep": "parts(own_epochs=1)",
    "lg_fedavg": "parts(own=body)",
    "fedbn": "parts(own=norms)",
}
"""Papers' names for chains; a strand's own name is a method too."""

PAPERS: dict[str, str] = {
    "fedavg": "FedAvg (McMahan et al., 2017)",
    "feddc": "FedDC (Gao et al., 2022)",
    "fedspeed": "FedSpeed (Sun et al., 2023)",
    "mofedsam": "MoFedSAM (Qu et al., 2022)",
    "fedgamma": "FedGAMMA (Dai et al., 2023)",
    "fedlesam_s": "FedLESAM-S (Fan et al., 2024)",
    "fedlesam_d": "FedLESAM-D (Fan et al., 2024)",
    "fedsmoo": "FedSMOO (Sun et al., 2023)",
    "fedacg": "FedACG (Kim et al., 2024)",
    "fedetf": "FedETF (Li et al., 2023)",
    "fedper": "FedPer (Arivazhagan et al., 2019)",
    "fedrep": "FedRep (Collins et al., 2021)",
    "lg_fedavg": "LG-FedAvg (Liang et al., 2020)",
    "fedbn": "FedBN (Li et al., 2021)",
}
"""The papers of methods that are not a single strand."""
