"""Robust aggregation: known numbers, plain loops, identities, limits, and what one bad client can do."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from quadratic import World, clients

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
    ("normclip(bound=1.0)", "equal"): (0.469458236, 0.495065612),
    ("normclip(bound=1.0)", "shares"): (0.462765998, 0.601177062),
}


@pytest.mark.parametrize(("method", "shares"), KNOWN)
def test_known_numbers(method, shares):
    found = aggregate(method, shares=EQUAL if shares == "equal" else P)
    assert np.abs(found - KNOWN[method, shares]).max() < 1e-8


MEANS = ["normclip(bound=1e9)"]
RULES = ["normclip", "normclip(bound=0.3)"]


@pytest.mark.parametrize("method", MEANS)
def test_in_the_limit_it_is_the_mean(method):
    assert np.allclose(aggregate(method, shares=P), P @ V, atol=1e-12)
    averages = parse(method).averages
    mean, robust = (
        World(m, clients(4, 3), sizes=(1, 2, 3, 4)) for m in ("uniform" if averages == "uniform" else "sizes", method)
    )
    for one, other in zip(mean.rounds(3), robust.rounds(3), strict=True):
        assert np.allclose(one, other, atol=1e-12)


@pytest.mark.parametrize("method", RULES)
def test_the_order_of_clients_changes_nothing(method):
    order = torch.tensor([3, 0, 4, 2, 1])
    assert np.allclose(aggregate(method, shares=P), aggregate(method, V[order], P[order]), atol=1e-12)


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
