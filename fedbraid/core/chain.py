"""A method is a chain of strands; FedAvg is the empty one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property, partial
from math import inf
from typing import Any, get_type_hints

from torch import Tensor

from fedbraid.core.constraints import AS_TRAINED, MEAN, TASK_LOSS, WEIGHTS, check_constraints
from fedbraid.core.notebook import facts_table, short_repr
from fedbraid.core.options import check_ranges
from fedbraid.core.strand import HOOKS, Setup, Strand, View
from fedbraid.core.tree import Tree
from fedbraid.core.typed import is_plain, plain, structured
from fedbraid.errors import UserError

BY_SIZE, UNIFORMLY = "by data size", "uniformly"
"""What papers do that have no weights of their own."""


@dataclass(frozen=True)
class Chain:
    """Strands in order. Checked when it is built; prints as it is written."""

    strands: tuple[Strand, ...] = ()
    inert: tuple[str, ...] = field(default=(), init=False, compare=False, repr=False)
    """Sentences about hyper-parameters without effect: new runs refuse them, recorded ones are read."""

    def __post_init__(self) -> None:
        for strand in self.strands:
            if not isinstance(strand, Strand):
                raise no_strand(strand, self.strands)
        object.__setattr__(self, "strands", tuple(map(_typed, self.strands)))
        for strand in self.strands:
            _check_form(strand)
        together = [s.constraints.adapted(s, others(s, self.strands)) for s in self.strands]
        idle = (
            _replaced(s) if left is None else s.constraints.inert(s, others(s, self.strands))
            for s, left in zip(self.strands, together, strict=True)
        )
        object.__setattr__(self, "inert", tuple(filter(None, idle)))
        object.__setattr__(self, "strands", tuple(s for s in together if s is not None))
        seen: dict[str, Strand] = {}
        for strand in self.strands:
            if strand.name in seen:
                both = f"{written(seen[strand.name])} and {written(strand)}"
                raise UserError(f"{both} are the same strand twice; keep one of them")
            seen[strand.name] = strand
        claimed: dict[str, str] = {}
        for strand in self.strands:
            check_constraints(type(strand).__name__, strand.constraints, HOOKS)
            weighs = (WEIGHTS,) if strand in self.using("weigh") and not _transforms_shares(strand) else ()
            replaces = (MEAN,) if overrides(strand, "aggregate") else ()
            for claim in (*weighs, *replaces, *strand.constraints.claims):
                if claim in claimed:
                    raise UserError(f"{claimed[claim]} and {strand.name} both {claim}; keep one of them")
                claimed[claim] = strand.name

    def using(self, hook: str) -> tuple[Strand, ...]:
        """The strands that override `hook`, in order."""
        return self._using[hook]

    @cached_property
    def _using(self) -> dict[str, tuple[Strand, ...]]:
        said = {s.name: s.constraints for s in self.strands}

        def rank(hook: str, strand: Strand) -> tuple[bool, bool]:
            return hook not in said[strand.name].first_in, hook in said[strand.name].last_in

        using = {h: [s for s in self.strands if overrides(s, h)] for h in HOOKS}
        return {hook: tuple(sorted(strands, key=partial(rank, hook))) for hook, strands in using.items()}

    @cached_property
    def task_loss(self) -> Strand | None:
        """The strand whose `loss` replaces the task loss, if there is one."""
        return next((s for s in self.strands if TASK_LOSS in s.constraints.claims), None)

    @cached_property
    def needing_as_trained(self) -> tuple[str, ...]:
        """The strands that need the uploaded model to be the trained one, by name."""
        return tuple(s.name for s in self.strands if AS_TRAINED in s.constraints.needs)

    @property
    def sets_weights(self) -> Strand | None:
        """The strand that sets the aggregation weights, if there is one."""
        return next((s for s in self.using("weigh") if not _transforms_shares(s)), None)

    @property
    def aggregator(self) -> Strand | None:
        """The strand that replaces the mean of the updates, if there is one."""
        return next(iter(self.using("aggregate")), None)

    def of_numbers(self, strands: tuple[Strand, ...]) -> Chain:
        """The same chain with other strands in its place that differ in numbers only, and are not checked again.

        What depends on declarations is taken from this chain: a tensor in the place of a number cannot be asked.
        """
        chain = object.__new__(Chain)
        by_name = {s.name: s for s in strands}
        object.__setattr__(chain, "strands", strands)
        using = {hook: tuple(by_name[s.name] for s in mine) for hook, mine in self._using.items()}
        chain.__dict__["_using"] = using
        chain.__dict__["needing_as_trained"] = self.needing_as_trained
        chain.__dict__["task_loss"] = by_name[self.task_loss.name] if self.task_loss else None
        return chain

    @property
    def averages(self) -> str:
        """How the cohort is averaged where no strand sets the weights."""
        return "uniform" if any(s.averages == "uniform" for s in self.strands) else "sizes"

    @property
    def averaging(self) -> str:
        """How the cohort is averaged, in words that follow "averages"."""
        setter = self.sets_weights.name if self.sets_weights else self.averages
        return {"sizes": BY_SIZE, "uniform": UNIFORMLY}.get(setter, f"by the weights of {setter}")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset().union(*(s.constraints.needs for s in self.strands))

    @property
    def sum_only(self) -> frozenset[str]:
        """Uploads of which the server need see only sums over clients, by the names they have in replies."""
        return frozenset(f"{s.name}.{key}" for s in self.strands for key in s.constraints.sum_only)

    @property
    def within(self) -> dict[str, tuple[float, float]]:
        """Least and most values of uploads, by the names they have in replies."""
        return {f"{s.name}.{key}": range for s in self.strands for key, range in s.constraints.within.items()}

    @property
    def longest_update(self) -> float:
        """Length of the longest update that an honest client can upload."""
        return min((s.constraints.longest_update for s in self.strands), default=inf)

    def __iter__(self) -> Iterator[Strand]:
        return iter(self.strands)

    def __add__(self, other: Chain | Strand) -> Chain:
        return Chain(self.strands + (other.strands if isinstance(other, Chain) else (other,)))

    def __str__(self) -> str:
        return "+".join(map(written, self.strands)) or "fedavg"

    def __repr__(self) -> str:
        return short_repr("Chain", str(self))

    def _repr_html_(self) -> str:
        facts = {written(s): next(iter((s.__doc__ or "").strip().splitlines()), "") for s in self.strands}
        return facts_table(f"{self}, clients averaged {self.averaging}", facts)


def own_model(chain: Chain, w: Tensor, buffers: Tensor, kept: Mapping[str, Tree], setup: Setup) -> View:
    """Return a client's own model and its buffers.

    Args:
        w: [D] the deployed model.
        buffers: [Db] its buffers.
        kept: what each strand keeps on the client, by the strand's name.
    """
    for strand in chain.using("personalise"):
        made = strand.personalise(w, kept.get(strand.name, {}), setup)
        w, buffers = made if isinstance(made, tuple) else (made, buffers)
    return w, buffers


def _transforms_shares(strand: Strand) -> bool:
    return "weigh" in strand.constraints.last_in


def _replaced(strand: Strand) -> str:
    """What is wrong with the hyper-parameters of a strand whose work another does, if it has any."""
    if not changed(strand):
        return ""
    return (
        f"{written(strand)} has no effect here, where another strand does {strand.name}'s work with "
        f"hyper-parameters of its own; write {strand.name}, and set those of the other one"
    )


def no_strand(odd: Any, parts: Sequence[Any]) -> UserError:
    """What to tell of something among the parts of a method that is no strand: a text, a class, a list."""
    words = [written(part) if isinstance(part, Strand) else str(getattr(part, "name", part)) for part in parts]
    return UserError(
        f'{odd!r} is no strand; write the method as one text, "{"+".join(words)}", or put its parts together with '
        "fedbraid.chain"
    )


def _typed(strand: Strand) -> Strand:
    """A strand whose hyper-parameters are of their types: a list becomes the tuple that is declared."""
    _check_dataclass(type(strand))
    given = changed(strand)
    hints = _hints(type(strand)) if given else {}
    plain_ones = {key: plain(value) for key, value in given.items() if is_plain(hints.get(key))}
    values = {key: structured(value, hints[key], f"{strand.name}'s {key}") for key, value in plain_ones.items()}
    other = {key: value for key, value in values.items() if type(value) is not type(getattr(strand, key))}
    return replace(strand, **other) if other else strand  # type: ignore[type-var]


def _hints(kind: type[Strand]) -> dict[str, Any]:
    try:
        return get_type_hints(kind)
    except NameError:  # a class within a function, whose annotations name what only that function knows
        return {}


def _check_form(strand: Strand) -> None:
    """A strand has numbers in their ranges and overrides something; a misspelt hook would be FedAvg in disguise."""
    check_ranges(strand, f"{strand.name}'s ")
    if not overrides(strand, *HOOKS):
        kind = type(strand)
        raise UserError(f"{kind.__name__} overrides no hook, so it would be FedAvg; the hooks are {', '.join(HOOKS)}")


def _check_dataclass(kind: type[Strand]) -> None:
    if "__dataclass_params__" not in kind.__dict__ or not kind.__dict__["__dataclass_params__"].frozen:
        raise UserError(f"{kind.__name__} must be a frozen dataclass: write @dataclass(frozen=True) above it")


def overrides(strand: Strand, *hooks: str) -> bool:
    """Whether a strand overrides one of these hooks."""
    return any(getattr(type(strand), hook) is not getattr(Strand, hook) for hook in hooks)


def others(strand: Strand, strands: Sequence[Strand]) -> tuple[Strand, ...]:
    """The company of one of several strands, which its constraints are checked against."""
    return tuple(other for other in strands if other is not strand)


def written(strand: Strand) -> str:
    """A strand as it is written in a method: `disco(a=0.4)`, defaults left out."""
    values = ", ".join(f"{key}={_plain(value)!r}" for key, value in changed(strand).items())
    return strand.name + (f"({values})" if values else "")


def changed(strand: Strand) -> dict[str, Any]:
    """The hyper-parameters that are not a strand's defaults."""
    return {
        f.name: getattr(strand, f.name)
        for f in fields(strand)  # type: ignore[arg-type]
        if f.default is MISSING or getattr(strand, f.name) != f.default
    }


def _plain(value: Any) -> Any:
    """A number of NumPy's as Python's, which can be read back."""
    return value.item() if hasattr(value, "item") else value


def hyper_parameters(strand: type[Strand]) -> dict[str, Any]:
    """A strand's hyper-parameters with their defaults; MISSING where a value must be given."""
    _check_dataclass(strand)
    return {f.name: f.default for f in fields(strand)}  # type: ignore[arg-type]
