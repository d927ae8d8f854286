"""Robust aggregation: known numbers, plain loops, identities, limits, and what one bad client can do."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from quadratic import Replied, World, clients

from fedbraid.core.round import begin, one_round
from fedbraid.core.strand import Cohort
from fedbraid.errors import UserError
from fedbraid.strands.parser import parse

V = torch.tensor([(0, 0), (1, 0), (0, 1), (1, 1.2), (10, 10)], dtype=torch.float64)
P = torch.tensor([0.1, 0.2, 0.3, 0.3, 0.1], dtype=torch.float64)
EQUAL = torch.full((5,), 0.2, dtype=torch.float64)


def aggregate(method, updates=V, shares=EQUAL, state=None):
    (strand,) = parse(method)
    setup = SimpleNamespace(w=updates[0], buffers=updates.new_zeros(0), cohort=len(updates))
    r = SimpleNamespace(shares=shares, state=strand.init_server(setup) if state is None else state)
    return strand.aggregate(updates, r)[0].numpy()


KNOWN = {
    ("median", "equal"): (1, 1),
    ("median", "shares"): (1, 1),
    ("trimmed(beta=0.2)", "equal"): (0.6666666667, 0.7333333333),
    ("trimmed(beta=0.2)", "shares"): (0.6666666667, 0.9),
    ("rfa", "equal"): (0.868087453, 1.0215152),
    ("rfa", "shares"): (0.760072657, 0.99685564),
    ("rfa(steps=500)", "equal"): (0.7256410, 0.842303),
    ("krum(bad=0.2)", "equal"): (0, 0),
    ("krum(bad=0.2, keep=3)", "equal"): (0.3333333333, 0.3333333333),
    ("krum(bad=0.2, keep=3)", "shares"): (0.2 / 0.6, 0.3 / 0.6),
    ("cclip(tau=1.0)", "equal"): (0.469458236, 0.495065612),
    ("cclip(tau=1.0, steps=3)", "equal"): (0.668860219, 0.717131128),
    ("normclip(bound=1.0)", "equal"): (0.469458236, 0.495065612),
    ("normclip(bound=1.0)", "shares"): (0.462765998, 0.601177062),
}


@pytest.mark.parametrize(("method", "shares"), KNOWN)
def test_known_numbers(method, shares):
    found = aggregate(method, shares=EQUAL if shares == "equal" else P)
    assert np.abs(found - KNOWN[method, shares]).max() < (1e-6 if "500" in method else 1e-8)


MEANS = ["normclip(bound=1e9)", "trimmed(beta=0.0)", "rfa(steps=0)", "krum(bad=0.0, keep=5)", "cclip(tau=1e9)"]
RULES = ["normclip", "normclip(bound=0.3)", "median", "trimmed", "rfa", "krum", "cclip"]


@pytest.mark.parametrize("method", MEANS)
def test_in_the_limit_it_is_the_mean(method):
    assert np.allclose(aggregate(method, shares=P), P @ V, atol=1e-12)
    averages, method = parse(method).averages, method.replace("keep=5", "keep=4")
    mean, robust = (
        World(m, clients(4, 3), sizes=(1, 2, 3, 4)) for m in ("uniform" if averages == "uniform" else "sizes", method)
    )
    for one, other in zip(mean.rounds(3), robust.rounds(3), strict=True):
        assert np.allclose(one, other, atol=1e-12)


@pytest.mark.parametrize("method", RULES)
def test_the_order_of_clients_changes_nothing(method):
    order = torch.tensor([3, 0, 4, 2, 1])
    assert np.allclose(aggregate(method, shares=P), aggregate(method, V[order], P[order]), atol=1e-12)


# --- independent loops, without shares


def medians(v):
    return np.median(v, axis=0)


def trimmed_means(v):
    cut = len(v) // 5
    return np.array([np.mean(sorted(column)[cut : len(v) - cut]) for column in v.T])


def weiszfeld(v):
    z = v.mean(0)
    for _ in range(4):
        b = [1 / max(1e-5, np.linalg.norm(z - one)) for one in v]
        z = sum(weight * one for weight, one in zip(b, v, strict=True)) / sum(b)
    return z


def multi_krum(v):
    bad = len(v) // 5
    scores = []
    for i in range(len(v)):
        squares = sorted(sum((v[i] - v[j]) ** 2) for j in range(len(v)) if j != i)
        scores.append(sum(squares[: len(v) - bad - 2]))
    return v[sorted(range(len(v)), key=scores.__getitem__)[:2]].mean(0)


def centred(v, around=0.0):
    for _ in range(2):
        steps = [(one - around) * min(1, 0.7 / np.linalg.norm(one - around)) for one in v]
        around = around + np.mean(steps, axis=0)
    return around


LOOPS = {
    "median": medians,
    "trimmed": trimmed_means,
    "rfa": weiszfeld,
    "krum(keep=2)": multi_krum,
    "cclip(tau=0.7, steps=2)": centred,
}


@pytest.mark.parametrize("method", LOOPS)
@pytest.mark.parametrize("clients", [5, 10])
def test_plain_loop(method, clients):
    v = np.random.default_rng(clients).normal(size=(clients, 7)) ** 3
    found = aggregate(method, torch.tensor(v), torch.full((clients,), 1 / clients, dtype=torch.float64))
    assert np.abs(found - LOOPS[method](v)).max() < 1e-12


def test_centred_clipping_starts_at_the_last_aggregate():
    world, x, v = World("cclip(tau=0.7, steps=2)", clients(4, 3)), np.zeros(3), 0.0
    plain = World("uniform", clients(4, 3))
    for _ in range(3):
        ends = []
        for k in range(4):
            plain.server = replace(plain.server, w=torch.tensor(x))
            ends.append(plain.round([k]).server.w.numpy() - x)
        v = centred(np.array(ends), v)
        x = x + v
        assert np.abs(world.round().server.w.numpy() - x).max() < 1e-12


def test_weighted_median_of_shares_that_sum_to_a_half():
    values = torch.tensor([[4.0], [1.0], [2.0]]).double()
    shares = torch.tensor([0.3, 0.3, 0.4]).double()
    assert aggregate("median", values, shares) == [2]
    assert aggregate("median", values, torch.tensor([0.5, 0.2, 0.3]).double()) == [3]


@pytest.mark.parametrize("method", ["normclip", "median", "trimmed", "rfa", "krum", "cclip"])
def test_equal_updates_are_the_aggregate(method):
    assert np.allclose(aggregate(method, V[3].repeat(5, 1), P), V[3], atol=1e-12)


@pytest.mark.parametrize("method", ["median", "trimmed", "rfa", "krum(keep=2)"])
def test_moved_updates_have_a_moved_aggregate(method):
    there = torch.tensor([3.0, -7.0]).double()
    assert np.allclose(aggregate(method, V + there, P), aggregate(method, V, P) + there.numpy(), atol=1e-9)


@pytest.mark.parametrize("method", ["rfa(steps=20)", *RULES[:4], *RULES[5:]])
def test_bad_clients_reach_neither_the_model_nor_its_buffers(method):
    """Two of ten send what is far away; the mean would follow them."""
    chain, world = parse(method), World(method, clients(10, 3))
    setup = replace(world.setup, buffers=torch.zeros(2, dtype=torch.float64))
    sizes = torch.ones(10, dtype=torch.float64)
    rng = np.random.default_rng(0)
    uploads = [
        {
            "model": torch.tensor(rng.normal(0.1, 0.01, 3)) + (1e6 if k < 2 else 0),
            "buffers": torch.tensor(rng.normal(0.2, 0.01, 2)) + (1e6 if k < 2 else 0),
        }
        for k in range(10)
    ]
    flow = one_round(chain, 0.1, setup, begin(chain, setup), Cohort(np.arange(10), sizes), seed=0)
    next(flow)
    with pytest.raises(StopIteration) as done:
        flow.send(Replied(uploads))
    after = done.value.value
    assert float(after.w.abs().max()) < 0.3 and float(after.buffers.abs().max()) < 0.4
    assert torch.equal(after.cohort_mean[0], after.w) and torch.equal(after.cohort_mean[1], after.buffers)


@pytest.mark.parametrize(("method", "least"), [("krum(bad=0.4)", 5), ("krum(keep=5)", 5)])
def test_krum_of_too_few_clients_is_refused(method, least):
    with pytest.raises(UserError, match=f"needs at least {least} clients in a round, and there are 4"):
        World(method, clients(4, 3))


def test_krum_of_a_round_from_which_too_few_came_back_leaves_the_model():
    world = World("krum(bad=0.4)", clients(9, 3))
    start = world.server.w
    assert torch.equal(world.round([0, 1, 2, 3, 4]).server.w, start)
    assert not torch.equal(world.round().server.w, start)


def test_secure_sums_have_nothing_to_hide_beside_a_robust_rule():
    from fedbraid.deploy.secure_policy import MODEL, hidden

    assert hidden(parse("fedprox")) == MODEL
    for method in RULES:
        assert not hidden(parse(f"{method}+prox"))


def test_one_client_moves_the_model_by_no_more_than_its_share_of_the_bound():
    far = [*clients(3, 3), (np.ones(3), np.full(3, 1e6))]
    world = World("normclip(bound=0.5)", far, sizes=(1, 1, 1, 1))
    without = World("normclip(bound=0.5)", far, sizes=(1, 1, 1, 0))
    moved = world.round().server.w - without.round().server.w * 0.75
    assert float(moved.norm()) == pytest.approx(0.25 * 0.5, rel=1e-9)


def test_without_a_bound_updates_are_clipped_to_the_median_length():
    lengths = V.norm(dim=1)
    assert np.array_equal(
        aggregate("normclip", shares=P), aggregate(f"normclip(bound={float(lengths[1])!r})", shares=P)
    )


def test_an_update_that_is_not_finite_counts_as_zero():
    bad = V.clone()
    bad[4] = torch.tensor([float("nan"), float("inf")])
    zero = V.clone()
    zero[4] = 0
    assert np.array_equal(aggregate("normclip(bound=1.0)", bad), aggregate("normclip(bound=1.0)", zero))


@pytest.mark.parametrize("rule", [rule.split("(")[0] for rule in RULES[1:]])
@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("scaffold", "uses what clients upload beside their models"),
        ("nova", "weighs the updates of a mean"),
        ("skip", "passes single models on to other clients"),
        ("fedacd", "uploads its own weight"),
        ("dp", "replaces the mean"),
    ],
)
def test_what_would_open_a_way_past_it_is_refused(rule, other, why):
    for chain in (f"{rule}+{other}", f"{other}+{rule}"):
        with pytest.raises(UserError, match=why):
            parse(chain)
