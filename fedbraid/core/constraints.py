"""What a strand declares about the chains that it can be part of, with the reasons."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from fedbraid.core.optimizer import Optimizer, Sgd
from fedbraid.errors import UserError, unknown

if TYPE_CHECKING:
    from fedbraid.core.strand import Strand

STEP_ALONE = "step alone"
THREE_CLASSES = "three classes"
AS_TRAINED = "model as trained"
DRAWN_ALIKE = "clients drawn alike"
NEEDS = {
    "labels": "that the task is classification",
    "fixed cohort": "the same number of clients in every round",
    "each model": "the models of single clients, not only their sum",
    THREE_CLASSES: "three classes or more",
    AS_TRAINED: "that the model which is uploaded is the one that was trained",
    DRAWN_ALIKE: "that every client is drawn with the same chance in every round",
    STEP_ALONE: "that strands after it on the server see its step, and nothing of the replies",
}
"""What a strand may be unable to do without."""

TASK_LOSS = "replace the task loss"
"""The claim of a strand whose `loss` is computed instead of the task loss, not beside it."""

WEIGHTS = "set the aggregation weights"
"""The claim of a strand that overrides `weigh`, unless it is `last_in` that hook."""


MEAN = "replace the mean of the updates"
"""The claim of a strand that overrides `aggregate`."""


def _never(rounds: int) -> bool:
    return False


@dataclass(frozen=True, eq=False)
class Constraints:
    """What composition must know about a strand. A property of the strand where it depends on hyper-parameters."""

    needs: Set[str] = frozenset()
    """What the strand cannot do without, in the words of NEEDS."""
    claims: tuple[str, ...] = ()
    """What only one strand of a chain may do, as words that follow "both"."""
    sum_only: Set[str] = frozenset()
    """Uploads that the server uses only as sums in which every client counts the same, so that it need not see them."""
    within: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Least and most value that an honest client's upload can have, by name; a server refuses others."""
    longest_update: float = math.inf
    """Length of the longest update that an honest client can upload; a server that sees updates refuses longer ones."""
    first_in: Set[str] = frozenset()
    """Hooks in which the strand acts before the others, wherever it is listed."""
    last_in: Set[str] = frozenset()
    """Hooks in which the strand acts after the others, wherever it is listed."""
    excludes: Mapping[str, str] | Callable[[Strand], str] = lambda other: ""
    """Why the strand cannot stand beside another one: by the other's name, or as a function of it ("" = it can)."""
    replaced_by: str = ""
    """A strand that does this one's work where both are listed; hyper-parameters of this one are refused then."""
    takes: Mapping[str, str] | None = None
    """Hyper-parameters by what sets them in the same chain: another strand's ("prox.mu"), or that it is there ("ntd").

    One that is taken from another's has no effect without that strand, and is refused.
    """
    sgd_only: str = ""
    """Why local steps must be those of SGD, as a whole sentence; "" where they need not."""
    concludes: Callable[[int], bool] = _never
    """Whether in a run of so many rounds the strand does what it would not in a longer one, as `r.last` and
    `setup.rounds` let it; such a run cannot be made longer.
    """

    def reason_against(self, other: Strand) -> str:
        """Return why the strand cannot stand beside `other`, or ""."""
        return self.excludes(other) if callable(self.excludes) else self.excludes.get(other.name, "")

    def adapted(self, strand: Strand, others: tuple[Strand, ...]) -> Strand | None:
        """Return `strand` as it acts beside `others`: itself, a variant, or None where another does its work.

        Raises:
            UserError: the strand cannot stand beside one of the others, or they disagree about a hyper-parameter.
        """
        for other in others:
            reason = self.reason_against(other) if other.name != strand.name else ""
            if reason:
                raise UserError(f"{strand.name} and {other.name} do not go together: {reason}")
        present = {other.name: other for other in others}
        if self.replaced_by in present:
            return None
        taken = {}
        for key, source in (self.takes or {}).items():
            name, _, attribute = source.partition(".")
            if name in present:
                taken[key] = getattr(present[name], attribute) if attribute else True
                _check_agreement(strand, key, name, taken[key])
        return replace(strand, **taken) if taken else strand  # type: ignore[type-var]

    def inert(self, strand: Strand, others: tuple[Strand, ...]) -> str:
        """Return why hyper-parameters of `strand` have no effect beside `others`; "" if they have one."""
        present = {other.name for other in others}
        for key, source in (self.takes or {}).items():
            name, _, attribute = source.partition(".")
            value = getattr(strand, key)
            if attribute and name not in present and value != _field(strand, key).default:
                return (
                    f"{strand.name}'s {key}={value} is for {name}, and there is none; leave it out, or write "
                    f"{strand.name}+{name}({attribute}={value})"
                )
        return ""

    def check_optimizer(self, strand: Strand, optimizer: Optimizer) -> None:
        """Raise a UserError where the strand's equations do not hold with such local steps."""
        if self.sgd_only and not isinstance(optimizer, Sgd):
            raise UserError(self.sgd_only)


def check_words(what: str, said: Any, known: Set[str] | tuple[str, ...]) -> None:
    """Refuse words that mean nothing: they would be ignored."""
    if not isinstance(said, Set):
        raise UserError(f"{what} is {said!r}; give words as a set, of {', '.join(known)}")
    for word in said:
        if word not in known:
            raise unknown(f"word for {what}", word, known)


def check_constraints(owner: str, constraints: Constraints, hooks: tuple[str, ...]) -> None:
    """Refuse constraints of the strand `owner` whose words name no need and no hook."""
    if not isinstance(constraints, Constraints):
        raise UserError(f"constraints of {owner} is {constraints!r}; write Constraints(...)")
    for declared, known in {"needs": tuple(NEEDS), "first_in": hooks, "last_in": hooks}.items():
        check_words(f"{declared} of {owner}", getattr(constraints, declared), known)


def _check_agreement(strand: Strand, key: str, other: str, taken: Any) -> None:
    value = getattr(strand, key)
    if value not in (_field(strand, key).default, taken):
        raise UserError(
            f"{strand.name}'s {key} is {value} and {other}'s {taken}; leave {strand.name}'s out, it takes {other}'s"
        )


def _field(strand: Strand, key: str) -> Field[Any]:
    (found,) = (f for f in fields(strand) if f.name == key)  # type: ignore[arg-type]
    assert found.default is not MISSING, f"{strand.name}'s {key} has no default that would say it was left out"
    return found
