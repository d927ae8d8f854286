"""Frozen models that look at the batches: looked at once or batch by batch, the outputs are the same."""

from dataclasses import dataclass

import pytest
import torch
from helpers import SIZES, advanced, apart, federation, held
from made_up_strands import MADE_UP, Teach

from fedbraid.core.chain import Chain
from fedbraid.core.plan import make_plan
from fedbraid.core.strand import Strand

EPOCHS, TOTAL = 2, sum(SIZES)


@dataclass(frozen=True)
class Distil(Strand):
    """One teacher: the model received."""

    def views(self, c):
        return {"received": (c.start, c.buffers)}

    def loss(self, out, batch, c):
        return batch.mean((out.logits - c.views["received"].logits).square().sum(-1))


def trained(method, cached, kind, **settings):
    simulation = federation(method, own=MADE_UP, engine={"kind": kind}, rounds=3, **settings)
    simulation.engine.cache_views = cached
    lines = [simulation.advance() for _ in range(3)]
    return held(simulation), [line["forward_samples"] for line in lines]


def by_hand(lam, mu, rounds=3, lr=0.1):
    """Plain autograd: both teachers evaluated on every batch."""
    simulation = federation(Teach(lam, mu))
    model, none, samples = simulation.model, simulation.server.buffers, simulation.clients.samples
    w = simulation.server.w
    previous = [w] * len(SIZES)
    for t in range(rounds):
        models = []
        for k, size in enumerate(SIZES):
            plan = make_plan(Chain(), simulation.config.local, size, 4, seed=0, round=t, client=k)
            own, at = simulation.clients.own(k), w
            for row, count in zip(plan.positions, plan.counts, strict=True):
                x, y = samples.x[own[row[:count]]], samples.y[own[row[:count]]]
                at = at.detach().requires_grad_()
                out = model.predict(at, none, x)
                loss = torch.nn.functional.cross_entropy(out.logits, y)
                loss = loss + lam * (out.logits - model.predict(w, none, x).logits.detach()).square().sum(1).mean()
                other = model.predict(previous[k], none, x).features.detach()
                loss = loss + mu * (out.features - other).square().sum(1).mean()
                at = (at - lr * torch.autograd.grad(loss, at)[0]).detach()
            models.append(at)
        previous = models
        w = sum(n * m for n, m in zip(SIZES, models, strict=True)) / TOTAL
    return w, torch.stack(previous)


@pytest.mark.parametrize("kind", ["stack", "loop"])
@pytest.mark.parametrize("cached", [True, False])
def test_looking_ahead_and_looking_batch_by_batch_give_what_plain_autograd_gives(cached, kind):
    w, previous = by_hand(0.7, 0.3)
    got, _ = trained("teach", cached, kind)
    torch.testing.assert_close(got["w"], w, rtol=0, atol=1e-12)
    torch.testing.assert_close(got["clients/teach/w"], previous, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["stack", "loop"])
def test_a_teacher_that_looks_ahead_costs_one_pass_instead_of_one_an_epoch(kind):
    assert trained(Distil(), True, kind)[1] == [(EPOCHS + 1) * TOTAL] * 3
    assert trained(Distil(), False, kind)[1] == [2 * EPOCHS * TOTAL] * 3


@pytest.mark.parametrize("kind", ["stack", "loop"])
def test_inputs_that_change_are_looked_at_as_they_are(kind):
    """After mixup the teacher must see the mixed batch, cached or not."""
    one, cost = trained("mix+teach", True, kind)
    other, other_cost = trained("mix+teach", False, kind)
    assert apart(one, other) == 0
    assert cost == other_cost == [3 * EPOCHS * TOTAL] * 3


def test_a_single_step_on_large_clients_is_not_worth_a_look_at_everything():
    work = {"batch": 2, "steps": 1}
    assert trained(Distil(), True, "stack", local=work)[1] == trained(Distil(), False, "stack", local=work)[1]


@pytest.mark.parametrize("chunk", [1, 2, 4])
def test_cached_outputs_find_their_clients_in_every_chunk(chunk):
    whole = held(advanced(federation("teach", own=MADE_UP)))
    parts = held(advanced(federation("teach", own=MADE_UP, engine={"chunk": chunk})))
    assert apart(whole, parts) < 1e-12
