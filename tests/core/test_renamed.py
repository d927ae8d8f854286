"""Strands with hooks and fields by their earlier names: they do the same, and a warning says the name of today."""

import warnings
from dataclasses import dataclass, make_dataclass, replace
from types import SimpleNamespace

import pytest
import torch

import fedbraid as fb
from fedbraid.contract.checks import federation, finished
from fedbraid.core.chain import Chain
from fedbraid.core.constraints import TASK_LOSS
from fedbraid.core.optimizer import Adam, Sgd
from fedbraid.errors import UserError
from fedbraid.strands import Disco, Lc, Prox

MEAN = torch.arange(4.0)


def earlier(_name="Earlier", /, **hooks):
    """A strand class with these hooks, and what making it warned of."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made = dataclass(frozen=True)(type(_name, (fb.Strand,), hooks))
    assert {w.category for w in said} <= {DeprecationWarning}
    return made, " ".join(str(w.message) for w in said)


@pytest.mark.parametrize(
    ("hooks", "now"),
    [
        ({"needs": frozenset({"labels"})}, r"`needs` of Earlier is now `constraints = Constraints\(needs=\.\.\.\)`"),
        ({"claims": property(lambda self: ("do it",))}, "`constraints = Constraints"),
        ({"sum_only": frozenset()}, "`constraints = Constraints"),
        ({"first_in": frozenset({"grad"})}, "`constraints = Constraints"),
        ({"among": lambda self, others: self}, "`excludes`, `replaced_by` or `takes`"),
        ({"unheard": lambda self, others: ""}, "with `takes`"),
        ({"under": lambda self, optimizer: None}, "with `sgd_only`"),
        ({"concludes": lambda self, rounds: True}, "with `concludes`"),
        ({"releases": lambda self, rounds: (1.0, rounds)}, "`privacy`, which returns Noise"),
        ({"probed": lambda self, r: {}}, "`send`, which returns Ask"),
        ({"asks": lambda self, r: True}, "`send`, which returns Ask"),
        ({"draw": lambda self, rng, counts, width: {}}, r"`draw\(d\)`, which returns \(steps, once\)"),
        ({"draw_once": lambda self, rng, setup: {}}, r"the second part of what `draw\(d\)` returns"),
        ({"reweigh": lambda self, shares, r: shares}, '`weigh` with `constraints = Constraints.last_in={"weigh"}'),
        ({"task": lambda self, logits, batch, c: 0}, f"`loss` with .*{TASK_LOSS}"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_every_earlier_name_warns_with_the_name_of_today(hooks, now):
    with pytest.warns(DeprecationWarning, match=now):
        type("Earlier", (fb.Strand,), hooks)


def test_declarations_become_constraints():
    made, _ = earlier(
        needs=frozenset({"labels"}),
        claims=property(lambda self: ("do it",)),
        last_in=frozenset({"update"}),
        concludes=lambda self, rounds: rounds == 3,
        update=lambda self, delta, r: (delta, {}),
    )
    said = made().constraints
    assert (said.needs, said.claims, said.last_in) == ({"labels"}, ("do it",), {"update"})
    assert said.concludes(3) and not said.concludes(4)
    with pytest.warns(DeprecationWarning, match=r"constraints\.needs"):
        assert Lc().needs == {"labels"}


def test_methods_that_look_at_other_strands_still_do():
    def among(self, others):
        if any(o.name == "prox" for o in others):
            raise UserError("never beside prox")
        return None if any(o.name == "disco" for o in others) else replace(self, mu=2.0)

    def under(self, optimizer):
        if isinstance(optimizer, Adam):
            raise UserError("not with Adam")

    hooks = {"among": among, "unheard": lambda self, others: "mu has no effect", "under": under}
    with pytest.warns(DeprecationWarning):
        made = make_dataclass(
            "Made",
            [("mu", float, 1.0)],
            bases=(fb.Strand,),
            namespace={**hooks, "grad": lambda self, w, c, next: next(w)},
            frozen=True,
        )
    (strand,) = Chain((made(),))
    assert strand.mu == 2.0 and Chain((made(),)).inert == ("mu has no effect",)
    assert [s.name for s in Chain((made(), Disco()))] == ["disco"]
    with pytest.raises(UserError, match="never beside prox"):
        Chain((made(), Prox()))
    strand.constraints.check_optimizer(strand, Sgd())
    with pytest.raises(UserError, match="not with Adam"):
        strand.constraints.check_optimizer(strand, Adam())


def test_noise_is_accounted_for_as_before():
    made, _ = earlier(releases=lambda self, rounds: fb.Release(2.0, rounds + 1, of="client", delta=1e-3))
    noise = made().privacy
    assert (noise.scale, noise.of, noise.delta, noise.releases(7)) == (2.0, "client", 1e-3, 8) and made().hides


def test_fields_have_their_earlier_names():
    c = SimpleNamespace(state={"a": MEAN}, draws={"b": MEAN}, full_gradient=abs)
    for old, new in (("kept", "state"), ("chance", "draws"), ("slope", "full_gradient")):
        with pytest.warns(DeprecationWarning, match=f"Client.{old} is now `{new}`"):
            assert getattr(fb.Client, old).fget(c) is getattr(c, new)
    with pytest.warns(DeprecationWarning, match="Round.kept is now `state`"):
        assert fb.Round.kept.fget(c) is c.state
    with pytest.warns(DeprecationWarning, match="effective_steps"):
        assert Sgd(momentum=0.5).reach(MEAN).equal(Sgd(momentum=0.5).effective_steps(MEAN))


def exchange():
    """A strand that asks for clients' losses and scales gradients by them: as written now, and before."""

    def probe(self, c):
        return {"norm": c.start.norm() + c.size}

    def told(self, r):
        return fb.PerClient(factor=r.each("norm") / r.sum("norm"))

    def send(self, r):
        return fb.Ask() if r.replies is None else told(self, r)

    def grad(self, w, c, next):
        return c.received["factor"] * next(w)

    return {"probe": probe, "send": send, "grad": grad}, {"probe": probe, "probed": told, "grad": grad}


def drawing():
    """A strand that shifts logits by what it draws for the round and scales inputs by what it draws for steps."""

    def draw(self, d):
        return {"scale": d.steps.normal(size=len(d.counts))}, {"shift": d.once.normal(size=d.setup.classes)}

    def by_counts(self, rng, counts, width):
        return {"scale": rng.normal(size=len(counts))}

    def once(self, rng, setup):
        return {"shift": rng.normal(size=setup.classes)}

    shared = {
        "batch": lambda self, batch, c: replace(batch, x=batch.x * batch.draws["same.scale"]),
        "logits": lambda self, logits, batch, c: logits + c.draws["shift"],
    }
    return {"draw": draw, **shared}, {"draw": by_counts, "draw_once": once, **shared}


def replacing():
    """A strand with another task loss and a term of its own."""

    def task(self, logits, batch, c):
        return batch.mean((logits.softmax(-1) - batch.y).square().sum(-1))

    def term(self, out, batch, c):
        return 0.1 * batch.mean(out.features.square().sum(-1))

    def loss(self, out, batch, c):
        return task(self, out.logits, batch, c) + term(self, out, batch, c)

    return {"loss": loss, "constraints": fb.Constraints(claims=(TASK_LOSS,))}, {"task": task, "loss": term}


def evened():
    """A strand that evens out shares."""

    def even(self, shares, r):
        return (shares + 0.1) / (shares + 0.1).sum()

    return {"weigh": even, "constraints": fb.Constraints(last_in={"weigh"})}, {"reweigh": even}


@pytest.mark.parametrize("forms", [exchange, drawing, replacing, evened])
def test_a_strand_by_earlier_names_trains_as_it_did(forms):
    now, before = (earlier("Same", **hooks) for hooks in forms())
    assert not now[1] and before[1]
    ends = [finished(federation(Chain((made(),)), "loop")) for made, _ in (now, before)]
    assert torch.equal(*ends) and not torch.equal(ends[0], finished(federation(Chain(), "loop")))
