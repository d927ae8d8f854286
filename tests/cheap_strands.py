"""Every strand by name, and hyper-parameters with which it is cheap and shows in two rounds."""

from fedbraid.strands import STRANDS

HYPER = {
    "creff": "creff(per_class=4, match_steps=2, head_epochs=2)",
    "skip": "skip(every=2)",
    "rfedavg": "rfedavg(lam=0.1)",
    "rfedavg_plus": "rfedavg_plus(lam=0.1)",
    "opt": "opt(lr=0.05)",
    "prox": "prox(mu=0.2)",
    "drift": "drift(alpha=0.2)",
    "normclip": "normclip(bound=0.1)",
    "krum": "krum(keep=2)",
    "cclip": "cclip(tau=0.05)",
    "dp": "dp(noise=0.0, clip=0.3)",
}
"""Cheap where the defaults are dear, and strong enough to show in two rounds."""
NAMES = [s.name for s in STRANDS]
