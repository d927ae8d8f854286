"""Splits that FedDisco's released code draws from its seed, drawn again."""

import csv
import gzip
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from fedbraid.data import load, make_partition
from fedbraid.data.partitions import released_draws
from fedbraid.data.partitions.dirichlet import dirichlet
from fedbraid.data.partitions.niid2 import niid2
from fedbraid.data.partitions.shares import NOBODY
from fedbraid.errors import UserError

SIZES = {
    50_000: [5307, 3688, 4435, 5047, 5189, 3803, 5202, 4325, 8078, 4926],
    60_000: [6260, 4975, 5977, 6056, 4360, 6274, 5714, 6651, 5615, 8118],
}
"""Ten clients at beta = 0.5 and seed 0, of CIFAR-10 and of Fashion-MNIST."""

OWNERS = {
    "cifar10": "19687fa5371d0cf1f0156f583f1df8cc71cadc774e3ef1e49c8cc3bd46248d80",
    "fashion-mnist": "5f5c352aed519d9c19d5fc807cb892d6c94fd36ae72b4ec36fb407a87a65e1bd",
}
"""SHA-256 of who holds which sample, a byte each."""


def owners(partition, samples):
    found = np.full(samples, NOBODY, dtype=np.int64)
    for client, own in enumerate(partition.clients):
        found[own] = client
    return found


@pytest.mark.parametrize("samples", SIZES)
def test_sizes_follow_from_the_seed_and_the_classes_sizes(samples):
    """Balanced labels in any order: the generator is asked for the same numbers."""
    labels = np.arange(samples) % 10
    assert dirichlet(labels, 10, None, draws="feddisco").sizes.tolist() == SIZES[samples]
    assert dirichlet(np.sort(labels), 10, None, draws="feddisco").sizes.tolist() == SIZES[samples]


@pytest.mark.parametrize("name", OWNERS)
def test_every_sample_is_whose_it_was(name):
    """Needs the data set; with FEDBRAID_DRAWS, a folder with the authors' draws, also sample by sample."""
    try:
        dataset = load(name)
    except UserError:
        pytest.skip(f"needs the data set {name}")
    found = owners(make_partition(dataset, "dirichlet", 10, seed=7, draws="feddisco"), len(dataset.train))
    assert hashlib.sha256(found.astype(np.uint8).tobytes()).hexdigest() == OWNERS[name]
    if folder := os.environ.get("FEDBRAID_DRAWS"):
        with gzip.open(Path(folder) / f"niid1-beta0.5-10-clients-{name}-seed0.csv.gz", "rt") as file:
            listed = np.array([[int(cell) for cell in row] for row in list(csv.reader(file))[1:]])
        assert np.array_equal(found[listed[:, 0]], listed[:, 1]) and len(listed) == len(found)


def test_the_runs_seed_plays_no_part_and_the_released_one_does():
    dataset = load("digits")
    made = [
        make_partition(dataset, "dirichlet", 10, seed=seed, draws="feddisco", draws_seed=released)
        for seed, released in ((0, 0), (1, 0), (0, 1))
    ]
    a, b, c = (owners(partition, len(dataset.train)) for partition in made)
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


def test_every_sample_has_one_owner_and_full_clients_get_no_more():
    labels = np.arange(2000) % 10
    made = dirichlet(labels, 8, None, beta=0.1, draws="feddisco", draws_seed=3)
    assert np.array_equal(np.sort(np.concatenate(made.clients)), np.arange(2000))
    assert made.sizes.min() >= 10
    assert made.sizes.max() <= 2000 // 8 + 200  # it was not full before its last class


@pytest.mark.parametrize("draws", [None, "feddisco"])
def test_the_released_long_tail_counts_full_clients_by_the_size_before_the_tail(draws):
    """Class c keeps int(N / K ρ^(−c/(C−1))); with ten clients of ten balanced classes the first is whole."""
    labels, rng = np.arange(5000) % 10, np.random.default_rng(0)
    made = dirichlet(labels, 10, rng, beta=0.1, min_size=1, long_tail=10.0, draws=draws)
    kept = [int(500 * 10.0 ** (-c / 9)) for c in range(10)]
    assert np.array_equal(made.label_counts(labels, 10).sum(0), kept)
    even = sum(kept) // 10
    most = max(
        dirichlet(
            labels, 10, np.random.default_rng(seed), 0.1, 1, 10.0, draws, draws_seed=seed if draws else None
        ).sizes.max()
        for seed in range(5)
    )
    assert most > even + 500 * 0.5  # what no client could hold that is full at its even part of what is left


def test_fewer_clients_than_classes_cut_the_classes_as_the_code_does():
    """N / K is more than a class has: nothing is cut until ρ^(−c/(C−1)) makes up for it."""
    labels = np.arange(1000) % 10
    made = dirichlet(labels, 5, np.random.default_rng(0), 100.0, 1, long_tail=10.0)
    kept = [min(100, int(200 * 10.0 ** (-c / 9))) for c in range(10)]
    assert np.array_equal(made.label_counts(labels, 10).sum(0), kept)


@pytest.mark.parametrize(("biased", "unbiased"), [(5, 1), (50, 10), (40, 10)])
def test_niid2_cuts_sorted_samples_into_consecutive_shards(biased, unbiased):
    labels = np.random.default_rng(0).permutation(np.arange(6000) % 10)
    made = niid2(labels, None, np.random.default_rng(0), biased, unbiased, draws="feddisco")
    counts, shard = made.label_counts(labels, 10), 6000 // 10 // (biased + unbiased)
    held = np.concatenate(made.clients)
    assert len(np.unique(held)) == len(held)
    for client in range(biased):
        expected = np.zeros(10, dtype=int)
        expected[[2 * client % 10, (2 * client + 1) % 10]] = 5 * shard
        assert np.array_equal(counts[client], expected)
    assert (counts[biased:] == shard).all()
    first = np.flatnonzero(labels == 0)[: 5 * shard]  # the first five shards of class 0 are client 0's
    assert np.isin(first, made.clients[0]).all()


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"draws": "fedavg"}, "draws must be feddisco, or left out"),
        ({"draws_seed": 3}, "draws_seed=3 is for draws=feddisco"),
        ({"draws": "feddisco", "draws_seed": 2**32}, "below 2\\*\\*32"),
        ({"long_tail": 0.5}, "how much rarer"),
    ],
)
def test_what_cannot_be_is_refused(options, refusal):
    with pytest.raises(UserError, match=refusal):
        dirichlet(np.arange(2000) % 10, 10, np.random.default_rng(0), **options)


def test_a_size_that_no_draw_reaches_is_refused(monkeypatch):
    monkeypatch.setattr(released_draws, "TRIES", 5)
    with pytest.raises(UserError, match="none of 5 of the released code's draws"):
        dirichlet(np.arange(2000) % 10, 10, None, min_size=200, draws="feddisco")


def test_niid2_in_other_groups_is_refused():
    with pytest.raises(UserError, match="whole groups"):
        niid2(np.arange(2000) % 10, None, np.random.default_rng(0), 4, 1, draws="feddisco")
