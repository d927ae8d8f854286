"""The learning rate over rounds against torch's schedulers, in float64."""

import warnings

import pytest
import torch
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LinearLR,
    MultiStepLR,
    SequentialLR,
)

from fedbraid.config.schema import from_dict, optimizer_of
from fedbraid.core.rate_schedule import Schedule

LR, ROUNDS = 0.3, 20


def torchs(made):
    """The learning rates of all rounds by one of torch's schedulers."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))], LR)
    scheduler, rates = made(optimizer), []
    for _ in range(ROUNDS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        with warnings.catch_warnings(action="ignore"):  # SequentialLR calls its parts as they should not be
            scheduler.step()
    return rates


def warmed(rounds):
    return lambda o: LinearLR(o, start_factor=1 / (rounds + 1), total_iters=rounds)


SCHEDULES = {
    "constant": ({}, lambda o: ConstantLR(o, factor=1.0)),
    "warm-up": ({"warmup": 4}, warmed(4)),
    "step": ({"shape": "step", "milestones": [3, 4, 15], "gamma": 0.5}, lambda o: MultiStepLR(o, [3, 4, 15], 0.5)),
    "cosine": ({"shape": "cosine"}, lambda o: CosineAnnealingLR(o, ROUNDS)),
    "floor": ({"shape": "cosine", "floor": 0.2}, lambda o: CosineAnnealingLR(o, ROUNDS, eta_min=0.2 * LR)),
    "warm-up, then steps": (
        {"shape": "step", "milestones": [2, 8], "gamma": 0.1, "warmup": 5},
        lambda o: ChainedScheduler([warmed(5)(o), MultiStepLR(o, [2, 8], 0.1)]),
    ),
    "warm-up, then cosine": (
        {"shape": "cosine", "floor": 0.1, "warmup": 5},
        lambda o: SequentialLR(o, [warmed(5)(o), CosineAnnealingLR(o, ROUNDS - 5, eta_min=0.1 * LR)], [5]),
    ),
}


@pytest.mark.parametrize(("settings", "made"), SCHEDULES.values(), ids=SCHEDULES)
def test_every_schedule_is_torchs(settings, made):
    schedule = from_dict({"schedule": settings}).schedule
    mine = [LR * schedule.share(t, ROUNDS) for t in range(ROUNDS)]
    with warnings.catch_warnings(action="ignore"):
        expected = torchs(made)
    assert mine == pytest.approx(expected, rel=1e-12)


def test_the_decay_is_torchs_exponential_one():
    optimizer = optimizer_of(from_dict({"optimizer": {"lr": LR, "decay": 0.9}}))
    mine = [optimizer.lr * optimizer.decay**t * Schedule().share(t, ROUNDS) for t in range(ROUNDS)]
    assert mine == pytest.approx(torchs(lambda o: ExponentialLR(o, 0.9)), rel=1e-12)
    assert mine == [LR * 0.9**t for t in range(ROUNDS)], "to the bit as before there were schedules"


def test_the_last_round_still_learns_and_one_after_it_is_looked_at_with_its_rate():
    cosine = Schedule("cosine")
    last = cosine.share(ROUNDS - 1, ROUNDS)
    assert 0 < last < 0.01 and cosine.share(ROUNDS, ROUNDS) == last
