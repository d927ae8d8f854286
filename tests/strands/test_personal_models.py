"""FedPer, LG-FedAvg, FedRep, FedBN, Ditto, APFL and pFedMe: known numbers, plain loops, what stays."""

import numpy as np
import pytest
import torch
from helpers import advanced, federation, toy
from quadratic import World, clients
from torch import nn

from fedbraid.core.chain import own_model
from fedbraid.core.optimizer import Sgd
from fedbraid.core.outputs import Outputs
from fedbraid.errors import UserError
from fedbraid.strands import Parts
from fedbraid.strands.parser import parse

HEAD = "parts(own=['head'])"
ETA, SOME, STEPS, COHORTS = 0.1, clients(4, 3), (2, 3, 1, 4), [(0, 1, 2), (1, 3), (0, 2, 3), (3, 1), (2, 0, 1)]


def own(world, strand, key):
    return [state[strand][key].numpy() for state in world.states]


def near(value):
    return pytest.approx(np.array(value), abs=1e-9)


def test_known_numbers_of_fedper_and_fedrep():
    per, rep = World(HEAD), World("parts(own=['head'], own_epochs=1)")
    for x, mine, world in [(-0.085, (0, 0.38), per), (-0.05, (0, 0.2), rep)]:
        assert world.round().server.w.numpy() == near([x, 0.0])
        assert np.concatenate(own(world, "parts", "head")) == near(mine)
    assert per.round().server.w.numpy() == near([-0.146625, 0.0])
    assert np.concatenate(own(per, "parts", "head")) == near([0, 0.6878])
    assert rep.round().server.w.numpy() == near([-0.0925, 0.0])
    assert np.concatenate(own(rep, "parts", "head")) == near([0, 0.38])


def test_known_numbers_of_ditto():
    for lam, due in ((0.0, [(0.3439, 0), (-0.5904, 0.6878)]), (1.0, [(0.2799, 0.0323), (-0.52105, 0.6246)])):
        world = World(f"ditto(lam={lam})")
        assert world.rounds(2)[-1] == near([-0.146625, 0.32775])
        assert np.array(own(world, "ditto", "v")) == near(due)


def test_known_numbers_of_apfl_and_pfedme():
    apfl = World("apfl").round([0])
    v, w = own(apfl, "apfl", "v")[0], apfl.server.w.numpy()
    assert (v[0], w[0], (v[0] + w[0]) / 2) == (near(0.09625), near(0.19), near(0.143125))
    pfedme = World("pfedme(lam=2.0, lr=0.1, steps=3)").round([0])
    assert pfedme.server.w[0].item() == near(0.09770028)
    assert own(pfedme, "pfedme", "theta")[0][0] == pytest.approx(0.3133014, abs=5e-8)


# --- plain loops


def g(k, w):
    a, b = SOME[k]
    return a * (w - b)


def fedrep(own_epochs):
    """The first coordinate is shared. Every step is an epoch; momentum rests with the part that rests."""
    x, mine = np.zeros(3), {k: np.zeros(2) for k in range(4)}
    for cohort in COHORTS:
        ends = []
        for k in cohort:
            y, v = np.concatenate([x[:1], mine[k]]), np.zeros(3)
            for step in range(STEPS[k]):
                on = np.ones(3) if not own_epochs else np.array([0, 1, 1]) if step < own_epochs else np.array([1, 0, 0])
                fresh = 0.5 * v + g(k, y) + 0.2 * y  # weight decay
                v = np.where(on, fresh, v)
                y = np.where(on, y - ETA * fresh, y)
            ends.append(y[0])
            mine[k] = y[1:]
        x = np.array([np.mean(ends), 0.0, 0.0])
    return x, mine


@pytest.mark.parametrize("own_epochs", [0, 1, 2])
def test_fedrep_is_a_plain_loop(own_epochs):
    method = f"uniform+parts(own=['head'], own_epochs={own_epochs})"
    world = World(method, SOME, steps=STEPS, optimizer=Sgd(momentum=0.5, weight_decay=0.2))
    for cohort in COHORTS:
        world.round(cohort)
    x, mine = fedrep(own_epochs)
    assert np.abs(world.server.w.numpy() - x).max() < 1e-12
    assert np.abs(np.array(own(world, "parts", "head")) - list(mine.values())).max() < 1e-12


def beside(kind, lam=0.3, alpha=0.4, adaptive=False):
    """FedAvg with Ditto's or APFL's own models beside it."""
    x, v, mix = np.zeros(3), {k: np.zeros(3) for k in range(4)}, dict.fromkeys(range(4), alpha)
    for cohort in COHORTS:
        ends = []
        for k in cohort:
            y = x.copy()
            for _ in range(STEPS[k]):
                if kind == "ditto":
                    v[k] = v[k] - ETA * (g(k, v[k]) + lam * (v[k] - x))
                else:
                    slope, a = g(k, mix[k] * v[k] + (1 - mix[k]) * y), mix[k]
                    if adaptive:
                        mix[k] = np.clip(a - ETA * (v[k] - y) @ slope, 0, 1)
                    v[k] = v[k] - ETA * a * slope
                y = y - ETA * g(k, y)
            ends.append(y)
        x = np.mean(ends, 0)
    return x, v, mix


@pytest.mark.parametrize(("kind", "adaptive"), [("ditto", False), ("apfl", False), ("apfl", True)])
def test_ditto_and_apfl_are_plain_loops(kind, adaptive):
    method = "ditto(lam=0.3)" if kind == "ditto" else f"apfl(alpha=0.4, adaptive={adaptive})"
    world = World(method, SOME, steps=STEPS)
    plain = World("fedavg", SOME, steps=STEPS)
    for cohort in COHORTS:
        world.round(cohort), plain.round(cohort)
    x, v, mix = beside(kind, adaptive=adaptive)
    assert torch.equal(world.server.w, plain.server.w) and np.abs(world.deployed - x).max() < 1e-12
    assert np.abs(np.array(own(world, kind, "v")) - list(v.values())).max() < 1e-12
    if kind == "apfl":
        assert np.array(own(world, "apfl", "alpha")) == near(list(mix.values()))
        made, _ = own_model(world.chain, world.server.w, world.setup.buffers, world.states[2], world.setup)
        assert np.abs(made.numpy() - (mix[2] * v[2] + (1 - mix[2]) * x)).max() < 1e-12


def test_pfedme_is_a_plain_loop():
    lam, steps, a, beta = 3.0, 4, 0.07, 0.8
    world = World(f"pfedme(lam={lam}, steps={steps}, lr={a}, beta={beta})", SOME, steps=STEPS)
    x, mine = np.zeros(3), {}
    for cohort in COHORTS:
        world.round(cohort)
        ends = []
        for k in cohort:
            y, theta = x.copy(), x.copy()
            for _ in range(STEPS[k]):
                for _ in range(steps):
                    theta = theta - a * (g(k, theta) + lam * (theta - y))
                y = y - ETA * lam * (y - theta)
            ends.append(y)
            mine[k] = theta
        x = x + beta * (np.mean(ends, 0) - x)
    assert np.abs(world.deployed - x).max() < 1e-12
    assert np.abs(np.array(own(world, "pfedme", "theta")) - [mine[k] for k in range(4)]).max() < 1e-12


# --- identities


def test_the_limits_of_ditto():
    """Without a pull training alone; with a strong one the global model."""
    alone = World("ditto(lam=0.0)", SOME, steps=2)
    alone.rounds(3)
    for k, v in enumerate(own(alone, "ditto", "v")):
        w = np.zeros(3)
        for _ in range(6):
            w = w - ETA * g(k, w)
        assert np.abs(v - w).max() < 1e-12
    near_x = World("ditto(lam=9.9)", SOME, steps=40)
    near_x.rounds(2)
    x = World("fedavg", SOME, steps=40).rounds(1)[0]
    assert max(np.abs(v - x).max() for v in own(near_x, "ditto", "v")) < 0.2


def test_the_limits_of_apfl():
    still = World("apfl(alpha=0.0)", SOME)
    still.rounds(2)
    assert not np.any(own(still, "apfl", "v"))


def test_where_everything_stays_the_model_never_moves():
    world = World("parts(own=['head', 'body'])", SOME)
    world.rounds(3)
    assert world.server.w.abs().max() < 1e-15
    alone = World("fedavg", SOME[1:2])
    made, _ = own_model(world.chain, world.server.w, world.setup.buffers, world.states[1], world.setup)
    assert np.allclose(made, alone.rounds(3)[-1], rtol=0, atol=1e-12)


def test_a_part_is_unchanged_in_rounds_without_its_client():
    world = World(HEAD, SOME).round([0, 1])
    before = own(world, "parts", "head")
    after = own(world.round([1, 2]), "parts", "head")
    assert (before[0] == after[0]).all() and (before[1] != after[1]).any()


def test_fedbn_without_normalisation_is_fedavg():
    fedbn, fedavg = World("parts(own=norms)", SOME), World("fedavg", SOME)
    assert (fedbn.rounds(3)[-1] == fedavg.rounds(3)[-1]).all()


class Normed(nn.Module):
    """A network with BatchNorm."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x):
        features = self.norm(self.first(x)).relu()
        return Outputs(self.head(features), features)


@pytest.mark.parametrize("kind", ["stack", "loop"])
def test_fedbn_keeps_normalisation_and_its_statistics(kind):
    made = advanced(federation("fedbn", module=Normed(), data=toy((8, 12, 4)), engine={"kind": kind}), 3)
    before, after = (made.setup.layout.views(w) for w in (made.setup.w, made.server.w))
    for name in before:
        assert torch.allclose(before[name], after[name], rtol=0, atol=1e-15) == name.startswith("norm."), name
    assert torch.allclose(made.server.buffers, made.setup.buffers, rtol=0, atol=1e-15)
    mine = [made.store.read([k])["parts"] for k in range(len(made.partition.clients))]
    for key in ("norm.weight", "norm.bias", "the buffers"):
        assert not any(torch.equal(one[key], mine[0][key]) for one in mine[1:])
    w, buffers = own_model(made.chain, *made.deployed(), {"parts": {k: v[0] for k, v in mine[1].items()}}, made.setup)
    assert torch.equal(buffers, mine[1]["the buffers"][0])
    assert torch.equal(made.setup.layout.views(w)["norm.bias"], mine[1]["norm.bias"][0])


NETWORK = {"model": {"name": "mlp", "hidden": [5]}, "optimizer": {"momentum": 0.5}}


@pytest.mark.parametrize("method", ["fedper", "fedrep", "lg_fedavg", "ditto", "apfl", "pfedme", "ditto+fedper"])
def test_own_models_are_the_same_in_the_stack_and_in_the_loop(method):
    ends = []
    for kind in ("stack", "loop"):
        made = advanced(federation(method, engine={"kind": kind}, **NETWORK), 3)
        w, buffers = made.deployed()
        kept = [made.store.read([k]) for k in range(len(made.partition.clients))]
        mine = [{s: {key: v[0] for key, v in tree.items()} for s, tree in tree.items()} for tree in kept]
        ends.append(torch.stack([own_model(made.chain, w, buffers, state, made.setup)[0] for state in mine]))
    assert (ends[0] - ends[1]).abs().max() < 1e-10
    assert (ends[0] - ends[0][0]).abs().max() > 1e-3


def test_words_that_name_no_part_are_refused():
    with pytest.raises(UserError, match="the network has no part called 'heads'; it has body, head"):
        World("parts(own=['heads'])")
    with pytest.raises(UserError, match=r"parts's own must be "):
        parse("parts(own=tail)")
    for other in ("scaffold", "drift", "cm", "smoo"):
        with pytest.raises(UserError, match=rf"parts and {other} do not go together|{other} and parts"):
            parse(f"{other}+parts")
    assert Parts(("head",)).own == ("head",)
