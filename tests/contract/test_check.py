"""The contract suite: every strand keeps it, and a strand that breaks a law is caught by that law."""

import re
from dataclasses import dataclass, replace
from threading import Thread

import pytest
import torch

import fedbraid as fb
from fedbraid.contract import checks as check
from fedbraid.contract.checks import Broken, NotApplicable, a_job, check_strand, sums_are_enough
from fedbraid.strands import METHODS, STRANDS
from fedbraid.strands.parser import parse
from fedbraid.strands.scaffold import Scaffold
from fedbraid.training import failures as faults

SUMS = {
    "scaffold": {"change"},
    "scaffold(option=1)": {"change"},
    "nh": {"mean", "n"},
    "creff(per_class=2, match_steps=1, head_epochs=1)": {"weight", "bias", "has"},
    "drift(added=cohort)": {"h"},
    "cm": {"reach"},
    "smoo": {"mu"},
    "disco(target=cohort)": {"counts"},
}
"""The uploads of which sums are enough."""
OTHERS = [s.name for s in STRANDS if s.name != "creff"]  # a few of its many steps are enough
CHAINS = {parse(name): name for name in (*METHODS, *OTHERS, *SUMS, "scaffold+prox+disco+skip+avgm")}
"""Each once: most methods are a strand by another name."""
CHAINS = {chain: name for chain, name in CHAINS.items() if name != "fedbn"}
"""FedBN is FedAvg on a network without normalisation, such as the suite's; tests/strands has it on one with."""
OF_A_STRAND = {parse(name) for name in OTHERS} | {parse("creff(per_class=2, match_steps=1, head_epochs=1)")}
BRAIDS = [
    pytest.param(c, marks=() if c in OF_A_STRAND or len(c.strands) > 2 else pytest.mark.slow, id=CHAINS[c])
    for c in CHAINS
]
"""By hand: a strand with other hyper-parameters, and two together, which the tests of composition try all."""


@pytest.mark.parametrize("chain", BRAIDS)
def test_every_strand_and_method_keeps_the_contract(chain):
    results = check_strand(chain)
    assert {r.verdict for r in results} <= {"passed", "not applicable"}
    assert sum(r.verdict == "passed" for r in results) >= 6


@dataclass(frozen=True)
class DeadScaffold(Scaffold):
    """The correction is added to a copy, as in two public repositories."""

    def grad(self, w, c, next):
        g = next(w)
        torch.cat([g]).add_(c.received["c"] - c.state["c"])
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
        return {}, {"sum": c.state["sum"].add_(w)}

    def grad(self, w, c, next):
        return next(w) + 0.01 * c.state["sum"]


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
        return delta * (1 + 0.01 * len(COUNT)), r.state


COUNT: list[int] = []


@dataclass(frozen=True)
class OrderMatters(fb.Strand):
    """Draws for clients by where they stand in the cohort."""

    def send(self, r):
        return fb.PerClient(place=torch.arange(len(r.cohort.ids), dtype=torch.float64))

    def grad(self, w, c, next):
        return next(w) * (1 + 0.1 * c.received["place"])


@dataclass(frozen=True)
class LooksAtEach(fb.Strand):
    """Says that a sum is enough, and looks at the largest."""

    constraints = fb.Constraints(sum_only={"norm"})

    def end(self, w, c):
        return {"norm": w.norm()}, c.state

    def update(self, delta, r):
        return delta * r.sum("norm") / r.each("norm").max(), r.state


@dataclass(frozen=True)
class WeighsSums(fb.Strand):
    """Says that a plain sum is enough, and takes a weighted one."""

    constraints = fb.Constraints(sum_only={"norm"})

    def end(self, w, c):
        return {"norm": w.norm()}, c.state

    def absorb(self, r):
        r.sum("norm", r.cohort.sizes)
        return r.state


@dataclass(frozen=True)
class Misspells(fb.Strand):
    """Says that sums are enough of what it does not upload."""

    constraints = fb.Constraints(sum_only={"nrom"})

    def end(self, w, c):
        return {"norm": w.norm()}, c.state

    def update(self, delta, r):
        return delta / r.sum("norm"), r.state


@dataclass(frozen=True)
class LooksBeforeTraining(fb.Strand):
    constraints = fb.Constraints(sum_only={"norm"})

    def probe(self, c):
        return {"norm": c.start.norm()}

    def send(self, r):
        return fb.Ask() if r.replies is None else {"largest": r.each("norm").max()}


@dataclass(frozen=True)
class CountsClasses(fb.Strand):
    """Weighs clients by their classes, and forgets to divide."""

    def end(self, w, c):
        return {"classes": (c.label_counts > 0).sum().to(w.dtype)}, c.state

    def weigh(self, n, r):
        return r.each("classes")


@dataclass(frozen=True)
class Doubles(fb.Strand):
    constraints = fb.Constraints(last_in={"weigh"})

    def weigh(self, shares, r):
        return 2 * shares


@pytest.mark.parametrize("strand", [CountsClasses(), Doubles()], ids=lambda s: s.name)
def test_shares_that_do_not_sum_to_1_are_refused_by_the_hook_that_gave_them(strand):
    hook = f"weigh of {strand.name}"
    with pytest.raises(fb.UserError, match=rf"{hook} gives shares that sum to \d+, .* divide them by their sum"):
        check.trained(check.Chain((strand,)), "stack")


@pytest.mark.parametrize("method", ["qfair", "nova", "dp(noise=0.0)", "disco+skip+nova"])
def test_weights_that_are_rescaled_need_not_sum_to_1(method):
    check.trained(parse(method), "stack")


@pytest.mark.parametrize(
    ("strand", "law"),
    [
        (CountsClasses(), "what clients count in the mean sums to 1"),
        (Doubles(), "what clients count in the mean sums to 1"),
        (DeadScaffold(), "default hyper-parameters are not FedAvg"),
        (CountsPadding(), "padding changes nothing"),
        (WritesInPlace(), "hooks change nothing in place"),
        (Branches(), "vectorised = loop"),
        (WrongNeutral(), "neutral hyper-parameters = FedAvg"),
        (Forgets(), "saved and restored = uninterrupted"),
        (LooksAtEach(), "what is used as a sum is used as nothing else"),
        (WeighsSums(), "what is used as a sum is used as nothing else"),
        (Misspells(), "what is used as a sum is used as nothing else"),
        (LooksBeforeTraining(), "what is used as a sum is used as nothing else"),
    ],
)
def test_a_broken_strand_is_caught_by_its_law(strand, law, monkeypatch):
    monkeypatch.setattr(check, "LAWS", {law: check.LAWS[law]})
    (result,) = check_strand(strand, raises=False)
    assert result.verdict == "failed", result


@dataclass(frozen=True)
class OnlyAStep(fb.Strand):
    def update(self, delta, r):
        return 2 * delta


@dataclass(frozen=True)
class OnlyAModel(fb.Strand):
    def end(self, w, c):
        return w


@dataclass(frozen=True)
class NumberKept(fb.Strand):
    def absorb(self, r):
        return {"rounds": r.number}


@dataclass(frozen=True)
class AsksForMore(fb.Strand):
    def absorb(self, r):
        return {"x": r.each("k")}


@dataclass(frozen=True)
class ForgetsToDraw(fb.Strand):
    def batch(self, batch, c):
        return replace(batch, x=batch.x + batch.draws["forgetstodraw.z"])


@dataclass(frozen=True)
class DrawsInGrad(fb.Strand):
    def grad(self, w, c, next):
        return next(w) + torch.randn_like(w)


@dataclass(frozen=True)
class FailsInside(fb.Strand):
    """In a function of its own, around a gradient that works."""

    def grad(self, w, c, next):
        return _halved(next(w))


def _halved(g):
    return g.half_of_it()


COMPLAINTS = [
    (OnlyAStep(), r"update of onlyastep \(.*test_check.py:\d+\) returns a tensor .* must return \(delta, kept\)"),
    (OnlyAModel(), r"end of onlyamodel \(.*test_check.py:\d+\) returns a tensor .* must return \(uploads, kept\)"),
    (NumberKept(), r"absorb of numberkept .* returns a dict with 'rounds' = 0; it must return a dict of tensors"),
    (AsksForMore(), r"absorb of asksformore failed at .*test_check.py:\d+: clients upload nothing called 'k'"),
    (ForgetsToDraw(), r"batch of forgetstodraw failed at .*: there is nothing called 'forgetstodraw.z'"),
    (DrawsInGrad(), r"grad of drawsingrad failed at .*: a client hook draws at random, .* comes from `draw`"),
    (Branches(), r"grad of branches failed at .*: a client hook looked at a tensor's value"),
    (FailsInside(), r"grad of failsinside failed at .*: AttributeError: .*half_of_it"),
]


@pytest.mark.parametrize(("strand", "complaint"), COMPLAINTS, ids=[s.name for s, _ in COMPLAINTS])
def test_a_complaint_names_the_hook_and_its_place(strand, complaint, monkeypatch):
    law = "vectorised = loop"
    monkeypatch.setattr(check, "LAWS", {law: check.LAWS[law]})
    (result,) = check_strand(strand, raises=False)
    assert result.verdict == "failed" and re.search(complaint, result.detail), result.detail


@pytest.mark.parametrize("kind", ["stack", "loop"])
def test_a_hook_that_draws_is_told_where_randomness_comes_from(kind):
    with pytest.raises(fb.UserError, match=r"a client hook draws at random, .* comes from `draw`") as told:
        fb.run(DrawsInGrad, rounds=1, engine={"kind": kind, "device": "cpu"})
    assert faults.sentence(told.value).startswith("grad of drawsingrad failed at ")


@dataclass(frozen=True)
class DrawsBeside(fb.Strand):
    """What another thread draws while clients train; and the hook from a generator of its own."""

    def grad(self, w, c, next):
        thread = Thread(target=torch.rand, args=(3,))
        thread.start()
        thread.join()
        return next(w) + 0 * torch.randn(w.shape, generator=torch.Generator().manual_seed(1))


def test_a_hook_is_not_blamed_for_what_another_thread_draws():
    def trained(method):
        return fb.run(method, rounds=2, engine={"kind": "loop", "device": "cpu"})

    one, other = trained(DrawsBeside), trained("fedavg")
    assert all(map(torch.equal, one.model.state_dict().values(), other.model.state_dict().values()))
    assert [line["forward_samples"] for line in one.rounds] == [line["forward_samples"] for line in other.rounds]


def test_a_complaint_has_the_line_that_failed(monkeypatch):
    monkeypatch.setattr(check, "LAWS", {"it": check.vectorised_is_loop})
    (result,) = check_strand(FailsInside(), raises=False)
    assert f"test_check.py:{_halved.__code__.co_firstlineno + 1}:" in result.detail


@pytest.mark.parametrize("method", SUMS)
def test_sums_of_uploads_are_enough_for_these(method):
    """Each is uploaded in this form, and used as a plain sum only."""
    chain = parse(method)
    (strand,) = chain
    assert strand.constraints.sum_only == SUMS[method]
    assert chain.sum_only == {f"{strand.name}.{key}" for key in SUMS[method]}
    sums_are_enough(chain)
    job, simulation = a_job(chain)
    uploaded = simulation.engine.run(job).uploads.keys()
    if job.already:  # there was an exchange before training
        uploaded |= simulation.engine.run(replace(job, kind="probe")).uploads.keys()
    assert chain.sum_only <= uploaded


def test_no_other_strand_says_that_sums_are_enough():
    forms = [parse(s.name) for s in STRANDS] + [parse(method) for method in SUMS]
    assert {c.strands[0].name for c in forms if c.sum_only} == {parse(method).strands[0].name for method in SUMS}


@pytest.mark.parametrize("method", ["disco", "drift", "prox"])
def test_without_uploads_that_are_used_as_sums_there_is_nothing_to_test(method):
    with pytest.raises(NotApplicable):
        sums_are_enough(parse(method))


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
