"""Methods as they are written: what is read, and which sentence refuses the rest."""

from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbraid.core.chain import Chain
from fedbraid.core.strand import Strand
from fedbraid.errors import UserError
from fedbraid.strands import AvgM, Disco, Drift, Prox, Sam, Scaffold, Skip
from fedbraid.strands import parser as methods


@dataclass(frozen=True)
class Picky(Strand):
    size: int
    metric: Literal["kl", "l2"] = "kl"
    word: str = "x"
    widths: tuple = ()

    def grad(self, w, c, next):
        return next(w)


def parse(text, **kwargs):
    return methods.parse(text, own=[Picky], **kwargs)


@pytest.mark.parametrize(
    ("text", "strands"),
    [
        ("fedavg", ()),
        ("scaffold", (Scaffold(),)),
        ("fedprox", (Prox(),)),
        ("fedprox(mu=0.5)", (Prox(0.5),)),
        (" prox ( mu = 1 ) + disco ", (Prox(1.0), Disco())),
        ("fedavg+disco(a=.4, b=1e-3)", (Disco(0.4, 0.001),)),
        ("picky(size=-3)", (Picky(-3),)),
        ("prox(mu=1-1e-5)", (Prox(0.99999),)),
        ("avgm(nesterov=true,dampened=False)", (AvgM(nesterov=True),)),
        ("skip(every=2)", (Skip(2),)),
        ("picky(size=3, metric=l2)", (Picky(3, "l2"),)),
        ("picky(size=3, word='a b', widths=[1, 2])", (Picky(3, word="a b", widths=(1, 2)),)),
    ],
)
def test_what_is_written_is_read(text, strands):
    assert parse(text) == Chain(strands)


def test_settings_fill_in_what_the_text_leaves_open():
    settings = {"disco": {"a": 0.3, "b": 0.2}}
    assert parse("prox+disco(a=0.9)", settings=settings) == Chain((Prox(), Disco(0.9, 0.2)))


def test_settings_win_over_the_numbers_of_a_papers_name_and_the_text_over_both():
    settings = {"drift": {"alpha": 5.0}}
    assert parse("fedspeed").strands == (Sam(), Drift(alpha=0.1))
    assert parse("fedspeed", settings=settings).strands == (Sam(), Drift(alpha=5.0))
    assert parse("fedasam(rho=0.2)", settings={"sam": {"rho": 0.3, "mix": 0.5}}).strands == (
        Sam(rho=0.2, mix=0.5, adaptive=True),
    )


def test_settings_fill_in_what_a_chain_of_objects_leaves_open():
    chain = Chain((Prox(), Disco(a=0.9), Picky(3)))
    settings = {"prox": {"mu": 5}, "disco": {"a": 0.3, "b": 0.2}, "picky": {"size": 4}}
    assert methods.with_settings(chain, settings) == Chain((Prox(5.0), Disco(0.9, 0.2), Picky(3)))
    for wrong in ({"sam": {"rho": 0.1}}, {"prox": {"nu": 5.0}}, {"prox": {"mu": "a"}}):
        with pytest.raises(UserError, match=r"which is not part of 'prox\+disco|no hyper-parameter of prox|prox's mu"):
            methods.with_settings(chain, wrong)


A_TARGET = "one of 'uniform', 'global', 'cohort' or a list of numbers such as [0.5, 0.5]"
WRONG = [
    ("disko", "no method is called 'disko'; did you mean 'disco'?"),
    ("fedproxx+disco", "did you mean 'fedprox'?"),
    ("mine", "give a strand of your own with --strand FILE.py:CLASS (own=[CLASS] in Python"),
    ("disco(alpha=1)", "no hyper-parameter of disco is called 'alpha'"),
    ("uniform(lr=1)", "uniform has no hyper-parameters"),
    ("fedavg(mu=1)", "takes no hyper-parameters"),
    ("prox(mu='a')", "prox's mu must be a number, not 'a'"),
    ("prox(mu=true)", "prox's mu must be a number, not True"),
    ("prox(mu=None)", "prox's mu must be a number, not 'None'"),
    ("skip(every=2.5)", "skip's every must be a whole number"),
    ("skip(every=true)", "skip's every must be a whole number"),
    ("skip(every=0)", "skip's every must be at least 1, not 0"),
    ("avgm(nesterov=1)", "avgm's nesterov must be true or false"),
    ("picky", "picky needs a value for size"),
    ("picky(size=1, metric=l3)", "must be one of 'kl', 'l2', not 'l3'"),
    ("disco(target=globl)", f"disco's target must be {A_TARGET}, not 'globl'"),
    ("disco(target='abc')", f"disco's target must be {A_TARGET}, not 'abc'"),
    ("disco(target=[1, 'a'])", f"disco's target must be {A_TARGET}, not [1, 'a']"),
    ("disco(target=3)", f"disco's target must be {A_TARGET}, not 3"),
    ("disco(target=[])", "disco's target must be shares that sum to 1, not ()"),
    ("asd(temperature=0)", "asd's temperature must be above 0, not 0.0"),
    ("moon(temperature=0.0)", "moon's temperature must be above 0, not 0.0"),
    ("ntd(temperature=0.0)", "ntd's temperature must be above 0, not 0.0"),
    ("opt(beta1=2.0)", "opt's beta1 must be at least 0 and below 1, not 2.0"),
    ("qfair(q=-3.0)", "qfair's q must be at least 0, not -3.0"),
    ("avgm(beta=-1.0)", "avgm's beta must be at least 0 and below 1, not -1.0"),
    ("avgm(nesterov=true, dampened=true)", "avgm's nesterov and dampened are two forms"),
    ("creff(per_class=0)", "creff's per_class must be at least 1, not 0"),
    ("creff(head_batch=0)", "creff's head_batch must be at least 1, not 0"),
    ("creff(per_class=-3)", "creff's per_class must be at least 1, not -3"),
    ("rfedavg(noise=-1)", "rfedavg's noise must be at least 0, not -1.0"),
    ("rfedavg_plus(noise=1, clip=0)", "rfedavg_plus's clip must be above 0, not 0.0"),
    ("fedacd(tau=1)", "fedacd's tau must be above 0 and below 1, not 1.0"),
    ("nh(rho=1.5)", "nh's rho must be at least 0 and at most 1, not 1.5"),
    ("prox(mu=1e39)", "prox's mu must be finite in float32"),
    ("scaffold(option=3)", "scaffold's option must be one of 1, 2, not 3"),
    ("scaffold(option=true)", "scaffold's option must be one of 1, 2, not True"),
    ("prox(0.1)", "is not a method"),
    ("prox(*[1])", "is not a method"),
    ("prox(**{'mu': 1})", "is not a method"),
    ("prox(mu=2*3)", "is not a method"),
    ("prox(mu=__import__('os'))", "is not a method"),
    ("__import__('os')", "is not a method"),
    ("__import__('os').system('true')", "is not a method"),
    ("prox.mu", "is not a method"),
    ("prox-disco", "is not a method"),
    ("prox+", "is not a method"),
    ("+prox", "is not a method"),
    ("", "is not a method"),
    ("1", "is not a method"),
    ("prox disco", "is not a method"),
    ("lambda: 1", "is not a method"),
    ("prox\ndisco", "is not a method"),
    ("prox\0", "is not a method"),
    ("prox;disco", "is not a method"),
    ("[prox]", "is not a method"),
    ("prox(mu=[x for x in y])", "is not a method"),
    ("prox+prox(mu=1)", "the same strand twice"),
    ("uniform+disco", "both set the aggregation weights"),
]


@pytest.mark.parametrize(("text", "sentence"), WRONG)
def test_mistakes_get_one_sentence(text, sentence):
    with pytest.raises(UserError) as caught:
        parse(text)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("prox(mu={[]: 1})", id="an unhashable key"),
        pytest.param("prox(mu=1" + "0" * 400 + ")", id="a whole number beyond floats"),
        pytest.param("+".join(["prox"] * 5000), id="thousands of terms"),
        pytest.param("prox(mu=" + "-" * 5000 + "1)", id="thousands of signs"),
    ],
)
def test_outlandish_mistakes_get_one_sentence_too(text):
    with pytest.raises(UserError):
        parse(text)


@pytest.mark.filterwarnings("ignore")
@given(st.text(max_size=30) | st.text("proxdisc+(=),.0129 'mub[]{}", max_size=20))
def test_no_text_gives_anything_but_a_chain_or_a_user_error(text):
    try:
        assert isinstance(parse(text), Chain)
    except UserError as error:
        assert str(error)


def test_hyper_parameters_for_strands_that_are_not_there_are_refused():
    with pytest.raises(UserError, match="set for 'disco', which is not part of 'prox'"):
        parse("prox", settings={"disco": {"a": 1.0}})


def test_hyper_parameters_of_a_methods_name_are_told_the_strands():
    with pytest.raises(UserError, match=r"'fedprox' is a method, and its strands are called prox: set strands\.prox"):
        parse("fedprox", settings={"fedprox": {"mu": 1.0}})
    with pytest.raises(UserError, match="not part of 'fedavg'; there are no strands"):
        parse("fedavg", settings={"prox": {"mu": 1.0}})


def test_the_many_names_are_listed_only_where_none_is_near():
    with pytest.raises(UserError) as near:
        parse("scafold")
    with pytest.raises(UserError) as far:
        parse("mine")
    assert "known" not in str(near.value) and "known: acg, apfl, asd, " in str(far.value)


@pytest.mark.parametrize(("name", "value"), [("a", "x"), ("c", 1.0)])
def test_hyper_parameters_in_settings_are_checked_as_those_in_the_text(name, value):
    with pytest.raises(UserError, match="disco"):
        parse("disco", settings={"disco": {name: value}})
