"""What there is to choose from: methods and strands, with papers, hyper-parameters, cost and source."""

from __future__ import annotations

import inspect
from dataclasses import MISSING
from typing import Any

from fedbraid.check import federation
from fedbraid.core.chain import Chain, hyper_parameters
from fedbraid.core.strand import Strand
from fedbraid.errors import unknown
from fedbraid.methods import parse
from fedbraid.strands import METHODS, STRANDS


def everything() -> list[dict[str, Any]]:
    """Every method and every strand, one line each; a strand that is a method under its paper's name only there."""
    alone = {chain for chain in METHODS.values() if "+" not in chain}
    named = [brief(name) for name in METHODS]
    return named + [brief(s.name) for s in STRANDS if s.name not in alone]


def brief(name: str) -> dict[str, Any]:
    chain = parse(name)
    kinds = [type(s) for s in chain]
    return {
        "name": name,
        "paper": "; ".join(k.title for k in kinds) or "FedAvg (McMahan et al., 2017)",
        "strands": [k.name for k in kinds],
        "written": "+".join(f"{k.name}({_defaults(k)})" for k in kinds if hyper_parameters(k)) or "none",
        "cost": cost(chain),
        "needs": sorted(chain.needs),
    }


def one(name: str) -> dict[str, Any]:
    """A method or strand whole, with its source."""
    known = {s.name for s in STRANDS} | set(METHODS)
    if name not in known:
        raise unknown("method", name, known)
    kinds = [type(s) for s in parse(name)]
    shown = brief(name)
    return {
        "name": name,
        "paper": shown["paper"],
        "chain": "+".join(shown["strands"]) or "the empty chain",
        "hyper-parameters": shown["written"],
        "about": [inspect.getdoc(k) or "" for k in kinds],
        "cost": f"floats down / up per client and round: {shown['cost']}",
        "needs": ", ".join(shown["needs"]),
        "source": [inspect.getsource(k) for k in kinds],
    }


def cost(chain: Chain) -> str:
    """Floats per client and round, counted from the payloads of a tiny federation, in units of the model's size P."""
    experiment = federation(chain, "loop", rounds=2)
    experiment.advance()
    record = experiment.advance()
    size = experiment.server.w.element_size() * record["clients"]
    parameters = experiment.model.layout.size
    return " / ".join(_in_models(record[key] // size, parameters) for key in ("bytes_down", "bytes_up"))


def _in_models(floats: int, parameters: int) -> str:
    models, rest = divmod(floats, parameters)
    return ("P" if models == 1 else f"{models} P") + (f" + {rest}" if rest else "")


def _defaults(kind: type[Strand]) -> str:
    return ", ".join(f"{k}={'…' if v is MISSING else v}" for k, v in hyper_parameters(kind).items())
