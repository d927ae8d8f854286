"""Local optimisers against torch's own, and how far they reach."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbraid.core.optimizer import Adam, AdamW, RmsProp, Sgd, clipped

PAIRS = [
    (Sgd(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    (Sgd(0.1, momentum=0.9), lambda p: torch.optim.SGD(p, 0.1, 0.9)),
    (Sgd(0.1, momentum=0.9, weight_decay=0.02), lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.02)),
    (Sgd(0.1, 0.9, True, 0.02), lambda p: torch.optim.SGD(p, 0.1, 0.9, nesterov=True, weight_decay=0.02)),
    (Sgd(0.1, weight_decay=0.3), lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.3)),
    (Adam(0.05), lambda p: torch.optim.Adam(p, 0.05)),
    (
        Adam(0.05, 0.8, 0.95, 1e-3, 0.1),
        lambda p: torch.optim.Adam(p, 0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1),
    ),
    (
        AdamW(0.05, 0.8, 0.95, 1e-3, 0.1),
        lambda p: torch.optim.AdamW(p, 0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1),
    ),
    (RmsProp(0.02), lambda p: torch.optim.RMSprop(p, 0.02)),
    (
        RmsProp(0.02, 0.9, 1e-3, 0.1),
        lambda p: torch.optim.RMSprop(p, 0.02, alpha=0.9, eps=1e-3, weight_decay=0.1),
    ),
]


@pytest.mark.parametrize(("mine", "torchs"), PAIRS, ids=[str(mine) for mine, _ in PAIRS])
def test_a_hundred_steps_are_torchs(mine, torchs):
    w = torch.randn(5, dtype=torch.float64)
    parameter = torch.nn.Parameter(w.clone())
    optimizer, state, lr = torchs([parameter]), mine.init(w), torch.tensor(mine.lr, dtype=torch.float64)
    for _ in range(100):
        target = torch.randn(5, dtype=torch.float64)
        parameter.grad = (parameter.detach() - target) * torch.arange(1.0, 6.0)
        w, state = mine.step((w - target) * torch.arange(1.0, 6.0), state, w, lr)
        optimizer.step()
    torch.testing.assert_close(w, parameter.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mine", [mine for mine, _ in PAIRS], ids=str)
def test_a_step_writes_into_nothing_it_was_given(mine):
    w, g, lr = torch.randn(3), torch.randn(3), torch.tensor(0.1)
    state = mine.step(g, mine.init(w), w, lr)[1]
    before = [t.clone() for t in (w, g, *state.values())]
    mine.step(g, state, w, lr)
    assert all(torch.equal(a, b) for a, b in zip(before, (w, g, *state.values()), strict=True))


@given(st.integers(0, 60), st.floats(0, 0.99), st.booleans())
def test_reach_is_how_far_steps_of_a_unit_gradient_go(steps, momentum, nesterov):
    sgd = Sgd(1.0, momentum, nesterov)
    w, state, one = torch.zeros(1, dtype=torch.float64), None, torch.ones(1, dtype=torch.float64)
    state = sgd.init(w)
    for _ in range(steps):
        w, state = sgd.step(one, state, w, torch.tensor(1.0, dtype=torch.float64))
    reach = sgd.effective_steps(torch.tensor(float(steps), dtype=torch.float64))
    assert float(reach) == pytest.approx(-float(w), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("optimizer", [Sgd(), Adam(), AdamW(), RmsProp()])
def test_without_momentum_reach_is_the_number_of_steps(optimizer):
    assert float(optimizer.effective_steps(torch.tensor(7.0))) == 7.0


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=6), st.floats(0.01, 200))
def test_clipping_shortens_long_gradients_and_leaves_short_ones(values, largest):
    g = torch.tensor(values, dtype=torch.float64)
    got, norm = clipped(g, largest), float(g.norm())
    assert float(got.norm()) == pytest.approx(min(norm, largest), rel=1e-9, abs=1e-9)
    torch.testing.assert_close(got * max(norm, largest), g * largest, atol=1e-6, rtol=1e-9)
    assert clipped(g, 0.0) is g


def two_steps(optimizer):
    w, lr = torch.ones(1, dtype=torch.float64), torch.tensor(0.1, dtype=torch.float64)
    state, found = optimizer.init(w), []
    for g in (0.5, -0.25):
        w, state = optimizer.step(torch.tensor([g], dtype=torch.float64), state, w, lr)
        found.append(round(float(w), 9))
    return found


def test_decay_apart_from_the_gradient_and_in_it():
    assert two_steps(AdamW(weight_decay=0.01)) == [0.899000002, 0.871467299]
    assert two_steps(Adam(weight_decay=0.01)) == [0.900000002, 0.871229348]
    assert two_steps(AdamW(weight_decay=0.0)) == two_steps(Adam())
