"""Methods as they are written: `feddyn+asd(lam=10)+disco` to a chain and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, replace
from functools import cache
from typing import Any, get_type_hints

from fedbraid.config.terms import terms
from fedbraid.core.chain import Chain, changed, hyper_parameters, others
from fedbraid.core.strand import Strand
from fedbraid.core.typed import structured
from fedbraid.errors import UserError, unknown
from fedbraid.strands import METHODS, STRANDS, installed

Own = type[Strand] | Sequence[type[Strand]]
"""A user's own strands, beyond those of FedBraid: one class, or several."""

A_METHOD = "a method; write strands joined by '+', such as prox(mu=0.1)+disco"
OWN = "give a strand of your own with --strand FILE.py:CLASS (own=[CLASS] in Python; check takes FILE.py:CLASS itself)"


def parse(
    text: str, settings: Mapping[str, Mapping[str, Any]] | None = None, own: Iterable[type[Strand]] = ()
) -> Chain:
    """The chain written as `text`.

    `settings` are hyper-parameters by strand: they win over those that belong to a paper's name, and numbers in the
    text win over them. `own` are strands beyond FedBraid's.

    >>> str(parse("fedavg+disco(a=0.4)"))
    'disco(a=0.4)'
    """
    strands = _strands(text, settings or {}, own)
    _check_used(settings or {}, strands, text)
    return Chain(tuple(strands))


def with_settings(chain: Chain, settings: Mapping[str, Mapping[str, Any]]) -> Chain:
    """A chain with hyper-parameters by strand; what differs from its defaults counts as written, and stays.

    >>> from fedbraid.strands import Disco
    >>> str(with_settings(Chain((Disco(a=0.4),)), {"disco": {"a": 0.1, "b": 0.2}}))
    'disco(a=0.4, b=0.2)'
    """
    _check_used(settings, chain.strands, str(chain))
    if not settings:
        return chain
    laid = (_checked(type(s), settings.get(s.name, {})) | changed(s) for s in chain)
    return Chain(tuple(replace(s, **given) for s, given in zip(chain, laid, strict=True)))  # type: ignore[type-var]


def _check_used(settings: Mapping[str, Mapping[str, Any]], strands: Sequence[Strand], text: str) -> None:
    for name in sorted(set(settings) - {s.name for s in strands})[:1]:
        raise UserError(
            f"hyper-parameters are set for {name!r}, which is not part of {text!r}; {instead(name, strands)}"
        )


def instead(name: str, strands: Iterable[Strand]) -> str:
    """Where hyper-parameters go that were set for `name`."""
    meant = [strand for strand, _ in terms(METHODS[name], A_METHOD)] if METHODS.get(name) else []
    if meant:
        return f"{name!r} is a method, and its strands are called {', '.join(meant)}: set strands.{meant[0]}"
    there = ", ".join(dict.fromkeys(s.name for s in strands))
    return f"the strands are called {there}" if there else "there are no strands"


def strand_names(
    text: str, settings: Mapping[str, Mapping[str, Any]] | None = None, own: Iterable[type[Strand]] = ()
) -> list[str]:
    """The strands that a method comes to have: of those it is written with, without one whose work another does.

    >>> strand_names("fedavgm+ntd+asd(lam=20)")
    ['avgm', 'asd']
    """
    strands = _strands(text, settings or {}, own)
    return [s.name for s in strands if s.constraints.adapted(s, others(s, strands)) is not None]


def _strands(text: str, settings: Mapping[str, Mapping[str, Any]], own: Iterable[type[Strand]]) -> list[Strand]:
    """The strands that a method is written with."""
    known = _known(own)
    for name, _ in terms(text, A_METHOD):
        if name not in known and name not in METHODS and (found := installed.find(name)):
            known[name] = found
    return [
        _build(known[name], preset | dict(settings.get(name, {})) | given)
        for name, preset, given in _parts(text, known)
    ]


def _known(own: Iterable[type[Strand]]) -> dict[str, type[Strand]]:
    known = {s.name: s for s in STRANDS}
    for strand in own:
        if known.get(strand.name, strand) is not strand or strand.name in METHODS:
            raise UserError(f"the name {strand.name!r} is taken; rename {strand.__name__}, or give it another `name`")
        known[strand.name] = strand
    return known


def _parts(text: str, known: Mapping[str, type[Strand]]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The strands of a method, papers' names expanded: what belongs to the name, and what the text gives."""
    for name, given in terms(text, A_METHOD):
        if name not in known and name not in METHODS:
            raise unknown("method", name, {*known, *METHODS, *installed.names()}, OWN)
        chain = METHODS.get(name, name)
        expanded = terms(chain, A_METHOD) if chain else []
        if given and len(expanded) != 1:
            raise UserError(
                f"{name!r} takes no hyper-parameters of its own; give them to its strands: {chain or 'none'}"
            )
        for strand, preset in expanded:
            yield strand, preset, given


def _build(strand: type[Strand], given: Mapping[str, Any]) -> Strand:
    values = _checked(strand, given)
    missing = [key for key, default in hyper_parameters(strand).items() if default is MISSING and key not in values]
    if missing:
        raise UserError(f"{strand.name} needs a value for {missing[0]}, such as {strand.name}({missing[0]}=1.0)")
    return strand(**values)


def _checked(strand: type[Strand], given: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters that the strand has, each of its type."""
    defaults = hyper_parameters(strand)
    for key in given:
        if key not in defaults:
            raise (
                unknown(f"hyper-parameter of {strand.name}", key, defaults)
                if defaults
                else UserError(f"{strand.name} has no hyper-parameters; leave {key!r} out")
            )
    hints = _types(strand)  # type: ignore[arg-type]  # mypy takes the class for an instance, which has a hash too
    return {key: structured(value, hints[key], f"{strand.name}'s {key}") for key, value in given.items()}


def own_strands(own: Own) -> tuple[type[Strand], ...]:
    """Return a user's own strands as a tuple of classes; refuse anything else."""
    listed = tuple(own) if isinstance(own, list | tuple) else (own,)
    for strand in listed:
        if not (isinstance(strand, type) and issubclass(strand, Strand)):
            raise UserError(f"own takes classes of strands, such as own=[MyStrand], not {strand!r}")
    return listed


@cache
def _types(strand: type[Strand]) -> Mapping[str, Any]:
    """The types of a strand's hyper-parameters. Reading them from annotations takes longer than all else here."""
    return get_type_hints(strand)
