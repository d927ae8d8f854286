"""Flower Datasets' partitioners through the adapter; most of this needs flwr-datasets."""

import sys

import numpy as np
import pytest

from fedbraid.core.random import stream
from fedbraid.data.dataset import Dataset, Split
from fedbraid.data.partitions.by_name import make_partition
from fedbraid.data.partitions.flower_partitioners import flower
from fedbraid.data.partitions.natural import natural
from fedbraid.errors import UserError

LABELS = stream(0, "labels").integers(0, 5, 600)
USERS = np.array([f"user {u}" for u in stream(0, "users").integers(0, 9, 600)])


def made(partitioner, clients=6, users=USERS, seed=0, **arguments):
    return flower(LABELS, users, clients, stream(seed, "test"), partitioner, **arguments)


def test_without_the_package_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", None)
    with pytest.raises(UserError, match=r"pip install 'fedbraid\[flower-data\]'"):
        made("IidPartitioner")


@pytest.fixture
def _flower():
    pytest.importorskip("flwr_datasets")


needs_flower = pytest.mark.usefixtures("_flower")


@needs_flower
@pytest.mark.parametrize(
    ("partitioner", "arguments", "complete"),
    [
        ("IidPartitioner", {}, True),
        ("LinearPartitioner", {}, True),
        ("SquarePartitioner", {}, True),
        ("ExponentialPartitioner", {}, True),
        ("DirichletPartitioner", {"alpha": 0.5}, True),
        ("PathologicalPartitioner", {"num_classes_per_partition": 2, "class_assignment_mode": "deterministic"}, True),
        ("ShardPartitioner", {"num_shards_per_partition": 2}, True),
        ("SizePartitioner", {"partition_sizes": [10, 20, 30, 40, 50, 60]}, False),
        ("InnerDirichletPartitioner", {"partition_sizes": [100] * 6, "alpha": 0.5}, True),
        ("ContinuousPartitioner", {"strictness": 0.5}, True),
    ],
)
def test_partitioners_share_out_samples(partitioner, arguments, complete):
    first, again, other = (made(partitioner, seed=seed, **arguments) for seed in (0, 0, 1))
    assert len(first) == 6
    assert first.sizes.min() >= 1
    together = np.concatenate(first.clients)
    assert len(np.unique(together)) == len(together) == (600 if complete else 210)
    assert all(share.dtype == np.int64 and (np.diff(share) > 0).all() for share in first.clients)
    assert all(np.array_equal(a, b) for a, b in zip(first.clients, again.clients, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first.clients, other.clients, strict=True))


@needs_flower
def test_labels_arrive_with_their_samples():
    held = made("PathologicalPartitioner", num_classes_per_partition=2).label_counts(LABELS, 5)
    assert ((held > 0).sum(axis=1) == 2).all()


@needs_flower
def test_users_arrive_with_their_samples():
    ours = natural(USERS, None, None, stream(0, "test"))
    theirs = made("NaturalIdPartitioner", None, partition_by="user")
    assert all(np.array_equal(a, b) for a, b in zip(ours.clients, theirs.clients, strict=True))
    grouped = made("GroupedNaturalIdPartitioner", None, partition_by="user", group_size=3)
    assert len(grouped) == 3
    assert all(len(set(USERS[share])) == 3 for share in grouped.clients)


@needs_flower
def test_tables_may_be_written_as_lists():
    table = [[1.0, 2.0], [2.0, 1.0], [1.0, 1.0], [3.0, 1.0], [1.0, 3.0]]
    counts = {"num_unique_labels_per_partition": 2, "preassigned_num_samples_per_label": 1}
    held = made("DistributionPartitioner", 5, distribution_array=table, **counts).label_counts(LABELS, 5)
    assert ((held > 0).sum(axis=1) == 2).all()


@needs_flower
def test_iid_clients_are_not_runs_of_the_data_set():
    assert all(abs(share.mean() - 299.5) < 75 for share in made("IidPartitioner").clients)


@needs_flower
@pytest.mark.parametrize(
    ("partitioner", "clients", "arguments", "sentence"),
    [
        ("", 6, {}, "no partitioner of flwr-datasets is called ''; known: Cont"),
        ("DirichletPartitoner", 6, {}, "did you mean 'DirichletPartitioner'"),
        ("DirichletPartitioner", 6, {}, "DirichletPartitioner needs a value for alpha"),
        ("DirichletPartitioner", 6, {"beta": 1}, "no argument of DirichletPartitioner is called 'beta'"),
        ("DirichletPartitioner", None, {"alpha": 1}, "needs a number of clients"),
        ("DirichletPartitioner", 6, {"alpha": 1e-9}, "refuses this: The max number of attempts"),
        ("IidPartitioner", 6, {"num_partitions": 5}, "makes 5 clients of this, not 6"),
        ("NaturalIdPartitioner", None, {"partition_by": "writer"}, "refuses this: .*writer"),
        ("VerticalEvenPartitioner", 2, {}, "shares out columns, not samples"),
        ("DirichletPartitioner", 6, {"alpha": 1e-9, "min_partition_size": 0}, r"leaves client \d without samples"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(partitioner, clients, arguments, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        made(partitioner, clients, **arguments)
    assert "\n" not in str(caught.value)


@needs_flower
def test_the_recipe_makes_it_again():
    split = Split(np.zeros((600, 1)), LABELS, USERS)
    data = Dataset("six hundred", split, split, classes=5)
    arguments = {"partitioner": "DirichletPartitioner", "alpha": 0.5, "min_partition_size": 5}
    first = make_partition(data, "flower", 4, 0, **arguments)
    assert first.recipe["params"] == arguments
    again = make_partition(data, "flower", first.recipe["clients"], 0, **first.recipe["params"])
    assert all(np.array_equal(a, b) for a, b in zip(first.clients, again.clients, strict=True))
