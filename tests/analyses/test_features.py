"""How far apart clients' features lie, by hand, and where they are drawn."""

import numpy as np
import pytest
import torch
from problems import EXACT
from torch import nn

import fedbraid as fb
from fedbraid.analyses import analyze
from fedbraid.analyses.features import embedded
from fedbraid.analyses.recorded import Recorded
from fedbraid.core.outputs import Outputs
from fedbraid.data.dataset import Dataset, Partition, Split
from fedbraid.training.user_objects import UserObjects


class Scaled(nn.Module):
    """Features are the inputs, each coordinate by a factor that is learned."""

    def __init__(self):
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(2)), nn.Linear(2, 2)

    def forward(self, x):
        return Outputs(self.head(x * self.scale), x * self.scale)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 2))
    data = Dataset("points", Split(x, rng.integers(0, 2, 24)), Split(x, rng.integers(0, 2, 24)), 2)
    partition = Partition(tuple(np.split(np.arange(24), [5, 14])))
    place, module = tmp_path_factory.mktemp("run"), Scaled()
    fb.run("fedavg", out=place, data=data, partition=partition, model=module, rounds=2, engine=EXACT)
    return Recorded(place, UserObjects(data, partition, module))


def apart(means):
    return np.mean([np.linalg.norm(means[i] - means[j]) for i, j in [(0, 1), (0, 2), (1, 2)]])


def test_the_distance_between_clients_before_and_after_training(run):
    (analysis,) = analyze(run.path, ["features(samples=4)"], objects=run.objects)
    data, partition = run.objects.data, run.objects.partition
    span = run.simulation.model.layout.span("scale")
    means = np.stack([data.train.x[own].mean(0) for own in partition.clients])
    before = means * run.simulation.server.w[span].numpy()
    after = means * run.next_round.models[:, span].numpy()
    numbers = analysis.numbers
    assert numbers["features.mmd_before"] == pytest.approx(apart(before), rel=1e-10)
    assert numbers["features.mmd"] == pytest.approx(apart(after), rel=1e-10)
    relative = apart(after) / np.linalg.norm(after, axis=1).mean()
    assert numbers["features.mmd_relative"] == pytest.approx(relative, rel=1e-10)
    assert not np.allclose(before, after)


def test_the_table_has_so_many_samples_of_so_many_clients_with_their_classes(run):
    (analysis,) = analyze(run.path, ["features(clients=2, samples=7)"], objects=run.objects)
    table = analysis.table
    assert table.groupby(["when", "client"]).size().to_dict() == {
        (when, client): count for when in ("after", "before") for client, count in ((0, 5), (1, 7))
    }
    held = np.bincount(run.objects.data.train.y[run.objects.partition.clients[0]], minlength=2)
    drawn = table[(table["when"] == "after") & (table["client"] == 0)]["class"]
    assert np.bincount(drawn, minlength=2).tolist() == held.tolist()


def test_same_features_same_picture():
    values = np.random.default_rng(0).normal(size=(20, 3))
    near = embedded(values)
    assert near.shape == (20, 2) and np.array_equal(near, embedded(values))
    assert embedded(values[:3]).shape == embedded(values[:3, :1]).shape == (3, 2)


def test_options_that_make_no_sense_are_refused(run):
    with pytest.raises(fb.UserError, match="clients must be a whole number of at least 1"):
        analyze(run.path, ["features(clients=0)"], objects=run.objects)
