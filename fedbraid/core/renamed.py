"""Earlier names of hooks and fields: they keep working, with a DeprecationWarning that says the name of today.

A strand beyond FedBraid's that was written for version 0.2 is translated when its class is made.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any

from fedbraid.core.constraints import TASK_LOSS, Constraints
from fedbraid.core.optimizer import Optimizer
from fedbraid.core.tree import Ask

if TYPE_CHECKING:
    from fedbraid.core.strand import Draws, Round, Strand

DECLARATIONS = ("needs", "claims", "sum_only", "first_in", "last_in")
"""Attributes that are fields of `constraints` now."""

EARLIER = (
    *("among", "unheard", "under", "concludes", "releases", "asks", "probed"),
    *("draw_once", "task", "reweigh"),
)
"""Hooks that have become part of others."""


def warn(old: str, new: str, level: int = 3) -> None:
    """Warn that `old` is now called `new`; `level` as in `warnings.warn`."""
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=level)


def reads(old: str, new: str) -> Any:
    """Return a property that reads the field `new` under its earlier name, written `Owner.name`."""

    def read(owner: Any) -> Any:
        warn(old, f"`{new}`")
        return getattr(owner, new)

    return property(read)


def declared(name: str) -> Any:
    """Return a property that reads a field of `constraints` where it was an attribute of the strand."""

    def read(strand: Strand) -> Any:
        warn(f"`{name}` of a strand", f"`constraints.{name}`")
        return getattr(strand.constraints, name)

    return property(read)


def translate(kind: type[Strand]) -> None:
    """Give a strand class that uses earlier names the hooks of today."""
    own = kind.__dict__
    for translation in (_constraints, _probe, _draw, _weigh, _task, _releases):
        for name, value in translation(kind, own).items():
            setattr(kind, name, value)


def _uses(kind: type[Strand], own: Any, names: tuple[str, ...], new: str) -> bool:
    found = [name for name in names if name in own]
    for name in found:
        warn(f"`{name}` of {kind.__name__}", new, level=6)
    return bool(found)


@dataclass(frozen=True, eq=False)
class _Earlier(Constraints):
    """Constraints of a strand that decides in methods of its own."""

    def adapted(self, strand: Strand, others: tuple[Strand, ...]) -> Strand | None:
        among = getattr(strand, "among", None)
        found: Strand | None = among(others) if among else super().adapted(strand, others)
        return found

    def inert(self, strand: Strand, others: tuple[Strand, ...]) -> str:
        unheard = getattr(strand, "unheard", None)
        return str(unheard(others)) if unheard else super().inert(strand, others)

    def check_optimizer(self, strand: Strand, optimizer: Optimizer) -> None:
        under = getattr(strand, "under", None)
        if under:
            under(optimizer)
        else:
            super().check_optimizer(strand, optimizer)


def _constraints(kind: type[Strand], own: Any) -> dict[str, Any]:
    words = {
        **{name: f"`constraints = Constraints({name}=...)`" for name in DECLARATIONS},
        "among": "`constraints` with `excludes`, `replaced_by` or `takes`",
        "unheard": "`constraints` with `takes`",
        "under": "`constraints` with `sgd_only`",
        "concludes": "`constraints` with `concludes`",
    }
    ours = vars(_base())
    used = [name for name in words if own.get(name) is not ours.get(name) and _uses(kind, own, (name,), words[name])]
    if not used:
        return {}
    before: Any = kind.constraints

    def constraints(self: Strand) -> Constraints:
        base: Constraints = before.__get__(self) if isinstance(before, property) else before
        said = {f.name: getattr(base, f.name) for f in fields(Constraints)}
        said |= {name: getattr(self, name) for name in (*DECLARATIONS, "concludes") if name in used}
        return _Earlier(**said)

    plain = set(used) <= set(DECLARATIONS) and not any(isinstance(own[name], property) for name in used)
    if plain and not isinstance(before, property):
        return {"constraints": replace(before, **{name: own[name] for name in used})}
    if plain and before is _base().__dict__["constraints"]:
        return {"constraints": Constraints(**{name: own[name] for name in used})}
    return {"constraints": property(constraints)}


def _base() -> type[Strand]:
    from fedbraid.core.strand import Strand

    return Strand


def _probe(kind: type[Strand], own: Any) -> dict[str, Any]:
    if not _uses(kind, own, ("asks", "probed"), "`send`, which returns Ask(...) and is called again with the answers"):
        return {}
    before: Any = kind.send

    @wraps(before)
    def send(self: Any, r: Round) -> Any:
        if r.replies is not None:
            return self.probed(r) if hasattr(self, "probed") else {}
        payload = before(self, r)
        return Ask(payload) if not hasattr(self, "asks") or self.asks(r) else payload

    return {"send": send}


def _draw(kind: type[Strand], own: Any) -> dict[str, Any]:
    drawn: Callable[..., Any] | None = own.get("draw")
    by_counts = drawn is not None and len(signature(drawn).parameters) == 4
    if by_counts:
        warn(f"`draw(rng, counts, width)` of {kind.__name__}", "`draw(d)`, which returns (steps, once)", level=5)
    once = _uses(kind, own, ("draw_once",), "the second part of what `draw(d)` returns")
    if not (by_counts or once):
        return {}
    before: Any = drawn if drawn is not None else kind.draw

    @wraps(before)
    def draw(self: Any, d: Draws) -> Any:
        steps, rest = (before(self, d.steps, d.counts, d.width), {}) if by_counts else before(self, d)
        return steps, rest | (self.draw_once(d.once, d.setup) if once else {})

    return {"draw": draw}


def _weigh(kind: type[Strand], own: Any) -> dict[str, Any]:
    if not _uses(kind, own, ("reweigh",), '`weigh` with `constraints = Constraints(last_in={"weigh"})`'):
        return {}
    sets = own.get("weigh")

    def weigh(self: Any, shares: Any, r: Round) -> Any:
        return self.reweigh(sets(self, shares, r) if sets else shares, r)

    if sets:
        return {"weigh": weigh}
    return {"weigh": weigh, "constraints": _more(kind, last_in={"weigh"})}


def _task(kind: type[Strand], own: Any) -> dict[str, Any]:
    if not _uses(kind, own, ("task",), f"`loss` with `constraints = Constraints(claims=({TASK_LOSS!r},))`"):
        return {}
    adds = own.get("loss")

    def loss(self: Any, out: Any, batch: Any, c: Any) -> Any:
        instead = self.task(out.logits, batch, c)
        return instead + adds(self, out, batch, c) if adds else instead

    return {"loss": loss, "constraints": _more(kind, claims=(TASK_LOSS,))}


def _more(kind: type[Strand], **more: Any) -> property:
    """The constraints of a strand class with further words."""
    before: Any = kind.constraints

    def constraints(self: Strand) -> Constraints:
        base: Constraints = before.__get__(self) if isinstance(before, property) else before
        words = {name: type(value)((*getattr(base, name), *value)) for name, value in more.items()}
        return replace(base, **words)

    return property(constraints)


def _releases(kind: type[Strand], own: Any) -> dict[str, Any]:
    if not _uses(kind, own, ("releases",), "`privacy`, which returns Noise(...)"):
        return {}

    def privacy(self: Any) -> Any:
        from fedbraid.core.strand import Noise, Release

        said = Release(*self.releases(1))
        return Noise(said.noise, said.of, said.delta, lambda rounds: Release(*self.releases(rounds)).times)

    return {"privacy": property(privacy)}
