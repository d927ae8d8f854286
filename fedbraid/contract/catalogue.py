"""Catalogue of methods and strands, with papers, hyper-parameters, cost and source."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

from fedbraid.contract.checks import federation
from fedbraid.core.chain import Chain
from fedbraid.core.round import one_round
from fedbraid.core.strand import Strand
from fedbraid.errors import UserError, unknown
from fedbraid.strands import GROUPS, METHODS, PAPERS, STRANDS, installed
from fedbraid.strands.parser import parse

INSTALLED = "other packages"


def everything() -> list[dict[str, Any]]:
    """Every method and every strand, one line each; a strand that is a method under its paper's name only there."""
    return [brief(name) for name in listed_names()]


def listed_names() -> list[str]:
    """Return the names of every method and strand; of a strand that is a method by its paper's name only that name."""
    alone = {chain for chain in METHODS.values() if "+" not in chain}
    return [*METHODS, *(s.name for s in STRANDS if s.name not in alone)]


def groups() -> dict[str, list[str]]:
    """Return the names of every method and strand by what they change of FedAvg, and those of installed packages."""
    group_of = {s.name: group for group, strands in GROUPS.items() for s in strands}
    found: dict[str, list[str]] = {group: [] for group in GROUPS}
    for name in listed_names():
        first = next(iter(parse(name)), None)
        found[group_of[first.name] if first else next(iter(GROUPS))].append(name)
    return found | ({INSTALLED: installed.names()} if installed.names() else {})


def brief(name: str) -> dict[str, Any]:
    chain = parse(name)
    kinds = [type(s) for s in chain]
    return {
        "name": name,
        "paper": PAPERS.get(name) or "; ".join(k.title for k in kinds),
        "strands": [k.name for k in kinds],
        "written": "+".join(map(_written, chain)) or "none",
        "cost": cost(chain),
        "averages": chain.averaging,
        "needs": sorted(chain.needs),
        "not with": sorted({other for s in chain for other in refusals(s)}),
    }


def refusals(strand: Strand) -> dict[str, str]:
    """The strands that this one cannot be chained with, and why."""
    refused = {}
    for other in STRANDS:
        if other is not type(strand):
            try:
                Chain((strand, parse(other.name).strands[0]))
            except UserError as reason:
                refused[other.name] = str(reason)
    return refused


def page() -> str:
    """docs/methods.md: every method and strand, and every pair that is refused."""
    lines = [
        "# Methods",
        "",
        "A method is a chain of strands joined by `+`; a paper's name stands for the chain beside it, hyper-parameters",
        "are shown with their defaults. Cost: floats down and up per client and round, P the number of the model's",
        "parameters, counted from the payloads of a small federation (5 features, 3 classes, a hidden layer of 4).",
        "What a strand changes, its equations, where it differs from the authors' code: `fedbraid methods NAME`.",
        "Clients are averaged as in the method's paper; `+sizes` or `+uniform` says otherwise.",
        "",
        "| method | chain | paper | averages | cost |",
        "|---|---|---|---|---|",
    ]
    for entry in everything():
        cells = f"`{entry['name']}`", _code(entry["written"], entry), entry["paper"], entry["averages"], entry["cost"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## What is refused", "", "Every other pair of strands is accepted.", ""]
    pairs = [(s.name, other, why) for s in STRANDS for other, why in refusals(parse(s.name).strands[0]).items()]
    order = [s.name for s in STRANDS]
    lines += [f"- `{a}+{b}`: {why}" for a, b, why in pairs if order.index(a) < order.index(b)]
    return "\n".join(lines) + "\n"


def _code(written: str, entry: dict[str, Any]) -> str:
    return f"`{written}`" if written != "none" else f"`{'+'.join(entry['strands'])}`" if entry["strands"] else "empty"


def one(name: str) -> dict[str, Any]:
    """A method or strand whole, with its source."""
    known = {s.name for s in STRANDS} | set(METHODS) | set(installed.names())
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
        "averages": shown["averages"],
        "needs": ", ".join(shown["needs"]),
        "not with": ", ".join(shown["not with"]),
        "source": [inspect.getsource(k) for k in kinds],
    }


def cost(chain: Chain) -> str:
    """Floats per client and round, counted from the payloads of a tiny federation, in units of the model's size P."""
    experiment = federation(chain, "loop", rounds=8, hidden=(12, 4))  # a model larger than any other payload
    for _ in range(6):  # what clients are asked before their first training only is no round's cost
        cohort = experiment.cohort()
        flow = one_round(chain, experiment.lr, experiment.setup, experiment.server, cohort, seed=0)
        down, up, job = 0, 0, next(flow)
        if job.kind == "train":
            break
        experiment.advance()
    while True:  # what the server makes of the replies costs nothing on the wire
        replies = experiment.engine.run(job)
        down, up = down + job.bytes_down, up + replies.bytes_up
        if job.kind == "train":
            break
        job = flow.send(replies)
    size = experiment.server.w.element_size() * len(cohort)
    return " / ".join(_in_models(moved // size, experiment.model.layout.size) for moved in (down, up))


def _in_models(floats: int, parameters: int) -> str:
    models, rest = divmod(floats, parameters)
    if not models:  # parameters that are not trained are not uploaded
        return f"P − {parameters - rest}"
    return ("P" if models == 1 else f"{models} P") + (f" + {rest}" if rest else "")


def _written(strand: Strand) -> str:
    """A strand with all of its hyper-parameters."""
    values = ", ".join(f"{f.name}={getattr(strand, f.name)}" for f in fields(strand))  # type: ignore[arg-type]
    return f"{strand.name}({values})" if values else strand.name
