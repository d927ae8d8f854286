"""The contract suite: every strand keeps it, and a strand that breaks a law is caught by that law."""

from dataclasses import dataclass

import pytest
import torch

import fedbraid as fb
from fedbraid.check import Broken, check_strand
from fedbraid.methods import parse
from fedbraid.strands import METHODS, STRANDS
from fedbraid.strands.scaffold import Scaffold


@pytest.mark.parametrize("name", [*METHODS, *(s.name for s in STRANDS), "scaffold+prox+disco+skip+avgm"])
def test_every_strand_and_method_keeps_the_contract(name):
    results = check_strand(parse(name))
    assert {r.verdict for r in results} <= {"passed", "not applicable"}
    assert sum(r.verdict == "passed" for r in results) >= 6


@dataclass(frozen=True)
class DeadScaffold(Scaffold):
    """The correction is added to a copy, as in two public repositories."""

    def grad(self, w, c, next):
        g = next(w)
        torch.cat([g]).add_(c.received["c"] - c.kept["c"])
        return g


@dataclass(frozen=True)
class CountsPadding(fb.Strand):
    def loss(self, out, batch, c):
        return out.features.square().mean()


@dataclass(frozen=True)
class WritesInPlace(fb.Strand):
    def init_client(self, setup):
        return {"sum": torch.zeros_like(setup.w)}

    def end(self, w, c):
        return {}, {"sum": c.kept["sum"].add_(w)}

    def grad(self, w, c, next):
        return next(w) + 0.01 * c.kept["sum"]


@dataclass(frozen=True)
class Branches(fb.Strand):
    def grad(self, w, c, next):
        g = next(w)
        return g if g.sum() > 0 else 2 * g


@dataclass(frozen=True)
class WrongNeutral(fb.Strand):
    neutral = {"strength": 0.0}
    strength: float = 0.1

    def grad(self, w, c, next):
        return next(w) + (self.strength + 1e-12) * w


@dataclass(frozen=True)
class Forgets(fb.Strand):
    """Keeps its state outside of what is saved."""

    seen: tuple[float, ...] = ()

    def update(self, delta, r):
        COUNT.append(r.number)
        return delta * (1 + 0.01 * len(COUNT)), r.kept


COUNT: list[int] = []


@dataclass(frozen=True)
class OrderMatters(fb.Strand):
    """Draws for clients by where they stand in the cohort."""

    def send(self, r):
        return fb.PerClient(place=torch.arange(len(r.cohort.ids), dtype=torch.float64))

    def grad(self, w, c, next):
        return next(w) * (1 + 0.1 * c.received["place"])


@pytest.mark.parametrize(
    ("strand", "law"),
    [
        (DeadScaffold(), "default hyper-parameters are not FedAvg"),
        (CountsPadding(), "padding changes nothing"),
        (WritesInPlace(), "hooks change nothing in place"),
        (Branches(), "vectorised = loop"),
        (WrongNeutral(), "neutral hyper-parameters = FedAvg"),
        (Forgets(), "saved and restored = uninterrupted"),
    ],
)
def test_a_broken_strand_is_caught_by_its_law(strand, law):
    verdicts = {r.law: r.verdict for r in check_strand(strand, raises=False)}
    assert verdicts[law] == "failed", verdicts


def test_a_place_in_the_cohort_that_travels_with_the_client_is_no_offence():
    verdicts = {r.law: r.verdict for r in check_strand(OrderMatters(), raises=False)}
    assert verdicts["the order of clients changes nothing"] == "passed"


def test_check_strand_raises_with_the_law_and_the_chain():
    with pytest.raises(Broken, match="deadscaffold: default hyper-parameters are not FedAvg"):
        check_strand(DeadScaffold)


def test_a_strand_with_a_value_that_does_not_travel_is_told_so():
    @dataclass(frozen=True)
    class Local(fb.Strand):
        mu: float = 0.5

        def grad(self, w, c, next):
            return next(w) + self.mu * w

    verdicts = {r.law: r for r in check_strand(Local(), raises=False)}
    assert verdicts["it survives pickle and TOML"].verdict == "failed"
