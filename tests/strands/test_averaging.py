"""FedAvg and the strands that change who counts how much, against NumPy."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from by_hand import LR, ROUNDS, World, far
from helpers import advanced, federation
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbraid.core.chain import Chain
from fedbraid.core.strand import Strand
from fedbraid.data.dataset import Dataset, Partition, Split
from fedbraid.strands import Disco


def averaged(world, weigh, **local):
    """The model after all rounds, clients averaged by `weigh(cohort)`."""
    w = world.start
    for t in range(ROUNDS):
        cohort = world.cohort(t)
        p = weigh(cohort)
        w = sum(p[i] * world.local(t, k, w, **local) for i, k in enumerate(cohort))
    return w


def shares(world):
    return lambda cohort: world.sizes[cohort] / world.sizes[cohort].sum()


def test_fedavg_averages_by_data_size():
    world = World()
    assert far(world.trained("fedavg").server.w, averaged(world, shares(world))) < 1e-12


@pytest.mark.parametrize("nesterov", [False, True])
def test_fedavg_begins_every_round_without_momentum(nesterov):
    world = World()
    optimizer = {"momentum": 0.9, "nesterov": nesterov}
    expected = averaged(world, shares(world), rho=0.9, nesterov=nesterov)
    assert far(world.trained("fedavg", optimizer).server.w, expected) < 1e-12


RATES = {
    "decay": ({"decay": 0.8}, {}, lambda t: 0.8**t),
    "warm-up": ({}, {"warmup": 2}, lambda t: min(1, (t + 1) / 3)),
    "step": ({}, {"shape": "step", "milestones": [1], "gamma": 0.3}, lambda t: 0.3 if t else 1),
    "cosine": ({}, {"shape": "cosine", "floor": 0.2}, lambda t: 0.6 + 0.4 * np.cos(np.pi * t / ROUNDS)),
    "both": ({"decay": 0.8}, {"shape": "step", "milestones": [2]}, lambda t: 0.8**t * 0.1 ** (t >= 2)),
}


@pytest.mark.parametrize(("optimizer", "schedule", "share"), RATES.values(), ids=RATES)
def test_the_learning_rate_changes_round_by_round(optimizer, schedule, share):
    world = World()
    w = world.start
    for t in range(ROUNDS):
        cohort, n = world.cohort(t), world.sizes[world.cohort(t)]
        models = [world.local(t, k, w, lr=LR * share(t)) for k in cohort]
        w = np.average(models, axis=0, weights=n)
    assert far(world.trained("fedavg", optimizer, schedule=schedule).server.w, w) < 1e-12


def test_uniform_counts_every_client_the_same():
    world = World()
    expected = averaged(world, lambda cohort: np.full(len(cohort), 1 / len(cohort)))
    assert far(world.trained("uniform").server.w, expected) < 1e-12


def test_sizes_is_fedavg_and_wins_over_a_papers_uniform_averaging():
    world = World()
    assert torch.equal(world.trained("sizes").server.w, world.trained("fedavg").server.w)
    assert not torch.equal(world.trained("sizes+scaffold").server.w, world.trained("scaffold").server.w)
    assert torch.equal(world.trained("uniform+scaffold").server.w, world.trained("scaffold").server.w)


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.1), (1.5, 0.0), (0.2, 0.4)])
def test_disco_weighs_by_size_and_label_discrepancy(a, b):
    world = World()

    def weigh(cohort):
        d = []
        for k in cohort:
            q = world.labels(k) / world.labels(k).sum()
            d.append(sum(share * np.log(share * len(q)) for share in q if share > 0))
        n = world.sizes[cohort] / world.sizes[cohort].sum()
        p = np.maximum(0, n - a * np.array(d) / sum(d) + b)
        return p / p.sum()

    assert far(world.trained(f"disco(a={a}, b={b})").server.w, averaged(world, weigh)) < 1e-12


@dataclass(frozen=True)
class Notes(Strand):
    """Keeps the weights that a round was averaged with."""

    def update(self, delta, r):
        return delta, {"weights": r.weights}


def disco(counts, **hyper):
    """Disco's weights of a cohort whose clients hold so many samples of each class."""
    counts = np.array(counts)
    y = np.repeat(np.tile(np.arange(counts.shape[1]), len(counts)), counts.ravel())
    split = Split(np.zeros((len(y), 1)), y)
    clients = np.split(np.arange(len(y)), np.cumsum(counts.sum(1))[:-1])
    data = Dataset("labels", split, split, counts.shape[1]), Partition(tuple(clients))
    work = {"data": data, "model": {"name": "logistic"}, "local": {"batch": 0}, "engine": {"kind": "loop"}}
    return advanced(federation(Chain((Disco(**hyper), Notes())), **work), 1).server.kept["notes"]["weights"]


def test_the_discrepancy_of_one_class_alone_is_the_log_of_their_number():
    """Four classes, clients of 4 samples: d = (log 4, log 2, 0), scaled (2/3, 1/3, 0)."""
    p = torch.tensor([1 / 3 - 0.2, 1 / 3 - 0.1, 1 / 3], dtype=torch.float64)
    got = disco([[4, 0, 0, 0], [2, 0, 2, 0], [1, 1, 1, 1]], a=0.3, b=0.0)
    torch.testing.assert_close(got, p / p.sum())


def test_disco_by_hand():
    """d = (log 2, 0), scaled (1, 0); n = (3/4, 1/4): p ∝ (0.75 - 0.5 + 0.1, 0.25 + 0.1)."""
    torch.testing.assert_close(disco([[6, 0], [1, 1]], a=0.5, b=0.1), torch.tensor([0.5, 0.5], dtype=torch.float64))
    p = torch.tensor([0.75 - 0.4, 0.25], dtype=torch.float64)
    torch.testing.assert_close(disco([[6, 0], [1, 1]], a=0.4, b=0.0), p / p.sum())


def test_disco_of_uniform_clients_goes_by_size_and_offset():
    torch.testing.assert_close(disco([[2, 2], [6, 6]], a=5.0, b=0.0), torch.tensor([0.25, 0.75], dtype=torch.float64))
    p = torch.tensor([0.25 + 0.5, 0.75 + 0.5], dtype=torch.float64)
    torch.testing.assert_close(disco([[2, 2], [6, 6]], a=5.0, b=0.5), p / p.sum())


def test_disco_of_equally_skewed_clients_shares_the_discrepancy_out():
    p = torch.tensor([0.25 - 0.1, 0.75 - 0.1], dtype=torch.float64)
    torch.testing.assert_close(disco([[3, 0], [0, 9]], a=0.2, b=0.0), p / p.sum())


def test_disco_falls_back_to_sizes_when_all_weights_vanish():
    torch.testing.assert_close(disco([[3, 0], [0, 9]], a=9.0, b=0.0), torch.tensor([0.25, 0.75], dtype=torch.float64))


@pytest.mark.parametrize("a", [0.5, 20.0])
def test_disco_of_one_participant_is_one(a):
    torch.testing.assert_close(disco([[3, 1]], a=a, b=0.1), torch.ones(1, dtype=torch.float64))


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3).filter(any), min_size=1, max_size=12),
    st.floats(0, 20),
    st.floats(0, 2),
)
def test_disco_always_gives_shares(counts, a, b):
    p = disco(counts, a=a, b=b)
    assert (p >= 0).all() and p.isfinite().all()
    assert float(p.sum()) == pytest.approx(1)


@given(st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3).filter(any), min_size=1, max_size=12))
def test_neutral_disco_has_fedavgs_weights_to_the_bit(counts):
    sizes = torch.tensor(counts, dtype=torch.float64).sum(1)
    assert torch.equal(disco(counts, a=0.0, b=0.0), sizes / sizes.sum())
