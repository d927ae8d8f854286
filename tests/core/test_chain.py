"""Chains: what may stand together, how they are written, and that they travel."""

import math
import pickle
from dataclasses import dataclass, fields
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from made_up_strands import MADE_UP, Fair, Focal

from fedbraid.core.chain import Chain, hyper_parameters, written
from fedbraid.core.constraints import Constraints
from fedbraid.core.number_checks import LARGEST
from fedbraid.core.strand import Strand
from fedbraid.errors import UserError
from fedbraid.strands import METHODS, STRANDS, AvgM, Disco, Prox, Skip, Uniform
from fedbraid.strands import parser as methods

VALUES = {
    bool: st.booleans(),
    int: st.integers(1, 10**6),
}
MORE, LESS = ("above", "at least"), ("below", "at most")


@st.composite
def chains(draw):
    """Any strands with any hyper-parameters that may stand together."""
    kinds = draw(st.lists(st.sampled_from([*STRANDS, *MADE_UP]), unique=True, max_size=5))
    try:
        return Chain(tuple(draw_strand(draw, kind) for kind in kinds))
    except UserError:
        reject()


def draw_strand(draw, kind):
    given, hints = {}, get_type_hints(kind)
    for name, f in ((f.name, f) for f in fields(kind)):
        if get_origin(hints[name]) is Literal:
            given[name] = draw(st.sampled_from(get_args(hints[name])))
        elif hints[name] in VALUES:
            given[name] = draw(VALUES[hints[name]])
        elif hints[name] is float:
            given[name] = draw(numbers(f.metadata.get("bounds", {})))
    return kind(**given)


def numbers(bounds):
    """The numbers that a hyper-parameter may be."""
    low, high = (next((bounds[word] for word in words if word in bounds), None) for words in (MORE, LESS))
    ends = {"exclude_min": "above" in bounds, "exclude_max": "below" in bounds}
    return st.floats(-LARGEST if low is None else low, LARGEST if high is None else high, **ends)


@given(chains())
def test_a_chain_prints_as_it_is_parsed(chain):
    assert methods.parse(str(chain), own=MADE_UP) == chain


@given(chains())
def test_a_chain_survives_pickling(chain):
    again = pickle.loads(pickle.dumps(chain))
    assert again == chain and str(again) == str(chain)
    assert [s.name for s in again.using("grad")] == [s.name for s in chain.using("grad")]


def test_objects_are_typed_as_what_is_written():
    assert Chain((Disco(target=[0.5, 0.5]),)) == methods.parse("disco(target=[0.5, 0.5])")
    for wrong in (Disco(target="globl"), Disco(metric="l3"), Prox(mu="much"), Skip(every=2.5)):
        with pytest.raises(UserError, match=rf"{wrong.name}'s \w+ must be "):
            Chain((wrong,))


def test_defaults_are_left_out_of_what_is_printed():
    assert str(Chain()) == "fedavg"
    assert str(Chain((Prox(), Disco(a=0.4)))) == "prox+disco(a=0.4)"
    assert written(AvgM(nesterov=True)) == "avgm(nesterov=True)"
    assert str(methods.parse("fedavg+fedprox+fedavg")) == "prox"


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_chain_with_numbers_that_are_not_finite_prints_as_it_is_parsed_or_is_refused(value):
    try:
        chain = Chain((Prox(mu=value),))
    except UserError:
        return
    assert str(methods.parse(str(chain))) == str(chain)


@dataclass(frozen=True)
class Ring(Strand):
    constraints = Constraints(claims=Skip().constraints.claims)

    def send(self, r):
        return {"model": r.w}


@dataclass(frozen=True)
class Square(Focal):
    pass


@pytest.mark.parametrize(
    ("strands", "first", "second"),
    [
        ((Prox(), Disco(), Prox(mu=0.5)), "prox", "prox(mu=0.5)"),
        ((Uniform(), Disco()), "uniform", "disco"),
        ((Disco(a=1.0), Uniform()), "disco", "uniform"),
        ((Skip(), Ring()), "skip", "ring"),
        ((Focal(), Square()), "focal", "square"),
    ],
)
def test_strands_that_cannot_stand_together_are_both_named(strands, first, second):
    with pytest.raises(UserError) as caught:
        Chain(strands)
    sentence = str(caught.value).lower()
    assert sentence.index(first) < sentence.rindex(second)
    assert "keep one of them" in sentence


class Bare(Strand):
    """Somebody forgot to make it a dataclass."""

    def deploy(self, w, state, setup):
        return 2 * w


def test_a_strand_that_is_no_dataclass_is_refused_with_a_sentence():
    with pytest.raises(UserError, match="Bare must be a frozen dataclass"):
        Chain((Bare(),))
    with pytest.raises(UserError, match="Bare must be a frozen dataclass"):
        methods.parse("bare", own=[Bare])


def test_chains_add_up_and_are_checked_when_they_do():
    assert Chain((Prox(),)) + Disco() == Chain((Prox(), Disco())) == Chain() + Chain((Prox(), Disco()))
    with pytest.raises(UserError, match="both set the aggregation weights"):
        Chain((Disco(),)) + Uniform()


def test_a_chain_knows_who_uses_a_hook():
    chain = Chain((Fair(), Prox(), Uniform()))
    assert chain.using("grad") == (Fair(), Prox())
    assert chain.using("probe") == (Fair(),)
    assert chain.using("update") == ()
    assert (chain.averages, methods.parse("prox+scaffold").averages) == ("sizes", "uniform")


@pytest.mark.parametrize("strand", STRANDS)
def test_every_strand_says_where_it_comes_from_and_names_real_hyper_parameters(strand):
    assert strand.title and strand.__doc__
    assert strand.name == strand.name.lower()
    assert set(strand.neutral or {}) <= set(hyper_parameters(strand))


def test_every_paper_is_a_chain_of_known_strands():
    for name, text in METHODS.items():
        chain = methods.parse(name)
        assert chain == (methods.parse(text) if text else Chain())
        assert methods.parse(str(chain)) == chain


def says(**words):
    return {"constraints": Constraints(**words)}


MISSPELT = [
    (
        says(needs={"fixed_cohort"}),
        "no word for needs of Odd is called 'fixed_cohort'; did you mean 'fixed",
    ),
    (
        {"constraints": Constraints(needs="labels")},
        "needs of Odd is 'labels'; give words as a set, of labels, fixed cohort",
    ),
    ({"averages": "unifrom"}, "no word for averages of Odd is called 'unifrom'; did you mean 'uniform'"),
    (
        {"constraints": Constraints(first_in={"updates"})},
        "no word for first_in of Odd is called 'updates'; did you mean 'update'",
    ),
    (
        {"constraints": Constraints(last_in={"grads"})},
        "no word for last_in of Odd is called 'grads'; did you mean 'grad'",
    ),
    ({"constraints": "labels"}, "constraints of Odd is 'labels'; write Constraints(...)"),
    ({"grad": 0.1}, "Odd has a field 'grad', which is the name of a hook; call it otherwise"),
]


@pytest.mark.parametrize(("declared", "sentence"), MISSPELT)
def test_a_declaration_that_means_nothing_is_refused_where_the_strand_is_defined(declared, sentence):
    with pytest.raises(UserError) as caught:
        type("Odd", (Strand,), declared)
    assert sentence in str(caught.value)
