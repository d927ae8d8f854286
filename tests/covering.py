"""Fewer cases that prove as much: chains that hold every strand between them, and parts of products with every value.

What is left out of the default tests is marked slow, and still run by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from cheap_strands import NAMES
from made_up_strands import MADE_UP

BRAIDS = (
    "scaffold+drift(alpha=0.2)+disco+moon+mixup+lc+avgm+skip(every=2)",
    "nova+prox(mu=0.2)+asd(lam=1)+rfedavg(lam=0.1)+rod+sizes+opt(lr=0.05)",
    "qfair+ntd+decorr+sam+rfedavg_plus(lam=0.1)+nh+uniform",
    "fedacd+creff(head_epochs=2, match_steps=2)",
    "moon+dp(noise=0.0, clip=0.3)",
    "relaxed(b=0.3)+lesam(rho=0.3)+cm(alpha=0.3)+etf+rs+exp",
    "acg+smoo(rho=0.3)+babu+prox(mu=0.2)",
    "ditto+apfl+pfedme+parts(own=body)",
    "normclip(bound=0.1)+prox(mu=0.2)",
    "median+avgm",
    "trimmed+sizes",
    "rfa+disco",
    "krum(keep=2)+moon",
    "cclip(tau=0.1)+acg",
)
"""Every strand of FedBraid, as few chains as its refusals allow. `test_composition.py` says that none is missing."""
OWN_BRAIDS = (
    "anchor+teach+sharp+calibrate",
    "mix+teach+focal+tracker+fair+scaffold+disco+skip(every=2)+average",
    "halfway+prox",
)
"""Every made-up strand."""
ENGINES: list[Any] = ["stack", pytest.param("loop", marks=pytest.mark.slow)]
"""For tests of what strands compute: that both engines compute the same is shown with the braids."""
CHEAP = {"creff": "creff(head_epochs=2, match_steps=2)"}


def rest_slow(cases: Iterable[Any], quick: Callable[[Any], bool]) -> list[Any]:
    """The cases as parameters, of which those that are not quick are slow; tuples are several parameters."""
    values = [(case, case if isinstance(case, tuple) else (case,)) for case in cases]
    return [pytest.param(*given, marks=() if quick(case) else pytest.mark.slow) for case, given in values]


def chains(*more: str, own: bool = True) -> list[Any]:
    """FedAvg, all braids and `more`; each strand alone where there is time, since the braids have them all."""
    quick = ("fedavg", *BRAIDS, *(OWN_BRAIDS if own else ()), *more)
    alone = (*NAMES, *(strand.name for strand in MADE_UP if own))
    return [*quick, *(pytest.param(CHEAP.get(name, name), marks=pytest.mark.slow) for name in alone)]


def covering(*axes: Sequence[Any]) -> list[Any]:
    """The product of the axes as parameters; quick are as many as the longest axis has values, and have all values."""
    longest = max(map(len, axes))
    quick = {tuple(k % len(axis) for axis in axes) for k in range(longest)}
    places: list[tuple[int, ...]] = [()]
    for axis in axes:
        places = [(*place, k) for place in places for k in range(len(axis))]
    return [
        pytest.param(*values, marks=() if place in quick else pytest.mark.slow)
        for place in places
        for values in [[axis[k] for axis, k in zip(axes, place, strict=True)]]
    ]
