"""CCVR: moments from sums are those of pooled features, and the head alone is refitted."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import toy

import fedbraid as fb
from fedbraid.analyses import analyze
from fedbraid.analyses.ccvr import class_sums, moments, refitted, virtual_features
from fedbraid.analyses.clients import sums_over_clients
from fedbraid.analyses.recorded import Recorded
from fedbraid.training.user_objects import UserObjects


def sums_of(*parts):
    """The sums of clients that hold features of one class each."""
    f = [torch.tensor(part, dtype=torch.float64) for part in parts]
    return {
        "n": torch.tensor([float(sum(len(x) for x in f))]).double(),
        "f": sum(x.sum(0) for x in f)[None],
        "ff": sum(x.T @ x for x in f)[None],
    }


def test_known_moments():
    found = moments(sums_of([[0.0], [2.0]], [[4.0], [4.0], [7.0]]))
    assert float(found.mean) == pytest.approx(3.4) and float(found.covariance) == pytest.approx(6.8)


@pytest.fixture
def trained(tmp_path):
    data, partition = toy()
    fb.run("fedavg", out=tmp_path, data=data, partition=partition, rounds=3, sampling={"clients": 2})
    return tmp_path, UserObjects(data, partition)


def test_moments_are_those_of_everybodys_features(trained):
    place, objects = trained
    run = Recorded(place, objects)
    e = run.simulation
    w, buffers = e.deployed()
    found = moments(sums_over_clients(run, w, buffers, class_sums))
    dataset, partition = objects.data, objects.partition
    own = np.concatenate(partition.clients)
    f = e.model.predict(w, buffers, torch.as_tensor(dataset.train.x[own]).to(w)).features.double()
    for c in range(dataset.classes):
        mine = f[torch.as_tensor(dataset.train.y[own] == c)]
        assert int(found.n[c]) == len(mine)
        assert torch.allclose(found.mean[c].double(), mine.mean(0), atol=1e-5)
        assert torch.allclose(found.covariance[c].double(), mine.T.cov(), atol=1e-4)


def test_features_are_drawn_from_the_classes_normals():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2)) @ np.array([[2.0, 0.5], [0.0, 0.3]]) + [5, -1]
    drawn, labels = virtual_features(moments(sums_of(x.tolist())), 20_000, np.random.default_rng(1))
    assert labels.unique().tolist() == [0] and drawn.mean(0).numpy() == pytest.approx(x.mean(0), abs=0.05)
    assert np.cov(drawn.T.numpy()) == pytest.approx(np.cov(x.T), abs=0.1)
    flat, _ = virtual_features(moments(sums_of([[1.0, 2.0]])), 5, np.random.default_rng(1))
    assert torch.allclose(flat, torch.tensor([1.0, 2.0]).double().expand(5, 2))  # one sample has no spread


def test_the_head_is_trained_by_plain_sgd():
    x, y = torch.randn(6, 3).double(), torch.tensor([0, 1, 2, 0, 1, 1])
    head = {"weight": torch.randn(3, 3).double(), "bias": torch.randn(3).double()}
    found = refitted(head, x, y, epochs=1, lr=0.1, batch=6, rng=np.random.default_rng(0))
    weight, bias = (head[key].clone().requires_grad_() for key in ("weight", "bias"))
    slopes = torch.autograd.grad(F.cross_entropy(F.linear(x, weight, bias), y), (weight, bias))
    for key, slope in zip(("weight", "bias"), slopes, strict=True):
        assert torch.allclose(found[key], head[key] - 0.1 * slope)


def test_without_epochs_nothing_changes_and_with_them_it_learns(trained):
    place, objects = trained
    (still,) = analyze(place, ["ccvr(epochs=0)"], objects=objects)
    assert still.columns["before"] == still.columns["after"]
    (found,) = analyze(place, ["ccvr(epochs=30)"], objects=objects)
    assert found.columns["before"] == still.columns["before"] and found.columns["after"] != found.columns["before"]
    assert found.columns["samples"] == np.bincount(objects.data.train.y, minlength=3).tolist()
    assert found.figure.axes[0].get_lines()
