"""Clients' gradients and how much they disagree, against closed forms and against each other."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import toy
from problems import EXACT, Point, record, targets
from torch import nn

import fedbraid as fb
from fedbraid.analyses import analyze, headline
from fedbraid.analyses.clients import gradients, task_gradients
from fedbraid.analyses.dissimilarity import disagreement
from fedbraid.analyses.recorded import Recorded
from fedbraid.training.user_objects import UserObjects

A = np.array([[2.0, 0.0], [0.0, 2.0], [-1.0, 1.0]])
W0 = np.array([1.0, 3.0])
ETA = 0.25
"""Of the step that a client takes: the learning rate 0.5 over two coordinates."""


def dissimilarity(g):
    return np.square(g).sum(1).mean() / np.square(g.mean(0)).sum()


@pytest.mark.parametrize(("method", "mu"), [("fedavg", 0.0), ("prox(mu=0.7)", 0.7)])
def test_dissimilarity_of_quadratics(tmp_path, method, mu):
    """∇f_k = (w − a_k) / 2 + μ (w − x): at x itself μ is nothing, at the mean of the local models it is the same pull
    for everybody."""
    objects = record(tmp_path, targets(*A), Point(W0), method)
    x = W0 - ETA * (W0 - A.mean(0))  # after the round that was run
    end = x - ETA * (x - A.mean(0))  # one local step from x, at which prox is still silent
    assert headline(tmp_path, ["dissimilarity"], objects=objects) == pytest.approx(
        {
            "dissimilarity.start": dissimilarity((x - A) / 2),
            "dissimilarity.end": dissimilarity((end - A) / 2 + mu * (end - x)),
            "dissimilarity.task": dissimilarity((end - A) / 2),
        },
        rel=1e-10,
    )


def test_clients_that_agree_have_dissimilarity_one():
    g = torch.tensor([1.0, -2.0])
    assert disagreement(g.expand(5, 2)) == pytest.approx(1)
    assert disagreement(torch.tensor([[1.0, 0.0], [0.0, 1.0]])) == pytest.approx(
        2
    )  # at right angles: the clients' number


def recorded(place, method="fedavg", **settings):
    data, partition = toy()
    usual = {"rounds": 2, "model": {"name": "mlp", "hidden": [5]}, "local": {"batch": 4}, "engine": EXACT}
    fb.run(method, out=place, data=data, partition=partition, **usual | settings)
    return Recorded(place, UserObjects(data, partition))


def test_what_fedavg_follows_is_the_slope_of_the_loss_whatever_the_batches(tmp_path):
    """Clients of 1 to 12 samples in batches of 4: each sample counts once."""
    run = recorded(tmp_path)
    w = run.simulation.server.w
    torch.testing.assert_close(gradients(run, w), task_gradients(run, w), rtol=1e-9, atol=1e-12)
    elsewhere = w + 0.1
    torch.testing.assert_close(gradients(run, elsewhere), task_gradients(run, elsewhere), rtol=1e-9, atol=1e-12)
    assert not torch.allclose(gradients(run, elsewhere), gradients(run, w))


def test_a_teacher_is_silent_at_itself_and_speaks_elsewhere(tmp_path):
    run = recorded(tmp_path, "asd")
    w = run.simulation.server.w
    torch.testing.assert_close(gradients(run, w), task_gradients(run, w), rtol=1e-9, atol=1e-12)
    assert not torch.allclose(gradients(run, w + 0.1), task_gradients(run, w + 0.1), rtol=1e-3)


def test_scaffold_corrects_by_what_it_keeps(tmp_path):
    """g_k − c_k + c, with c_k and c as the run left them."""
    run = recorded(tmp_path, "scaffold")
    e = run.simulation
    w, ids = e.server.w, run.next_round.cohort.ids.tolist()
    (kept,) = e.store.read(ids).values()
    (server,) = e.server.kept.values()
    corrected = task_gradients(run, w) - kept["c"] + server["c"]
    torch.testing.assert_close(gradients(run, w), corrected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", ["asd", "fedacd", "rfedavg_plus(lam=0.1)", "sam"])
def test_the_loop_gives_the_same_gradients(tmp_path, method):
    stack = recorded(tmp_path, method)
    loop = Recorded(tmp_path, stack.objects)
    config = loop.config
    loop.__dict__["config"] = replace(config, engine=replace(config.engine, kind="loop"))
    point = stack.simulation.server.w + 0.05
    torch.testing.assert_close(gradients(stack, point), gradients(loop, point), rtol=1e-7, atol=1e-10)


class Normed(nn.Module):
    """With BatchNorm, and a layer that is not trained."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)
        self.first.weight.requires_grad_(False)

    def forward(self, x):
        h = self.norm(self.first(x)).relu()
        return fb.Outputs(self.head(h), h)


def test_batchnorm_and_frozen_layers(tmp_path):
    """Batches are as in training, so that none is too small to be normalised; frozen layers have no gradient."""
    data, partition = toy((5, 9, 4))
    module = Normed()
    settings = {"local": {"batch": 4, "drop_last": True}, "rounds": 1, "engine": EXACT | {"kind": "loop"}}
    fb.run("fedavg", out=tmp_path, data=data, partition=partition, model=module, **settings)
    run = Recorded(tmp_path, UserObjects(data, partition, module))
    g = gradients(run, run.simulation.server.w)
    assert "first.weight" not in run.simulation.model.layout.names
    assert g.shape == (3, run.simulation.model.layout.size) and (g != 0).sum() > 0
    assert disagreement(g) > 1


def test_the_table_has_each_clients_part_in_it(tmp_path):
    run = recorded(tmp_path, "prox(mu=0.5)")
    (analysis,) = analyze(tmp_path, ["dissimilarity"], objects=run.objects)
    table = analysis.table
    at = table[table["at"] == "task"]
    mean_gradient = np.square(at["norm"]).mean() / analysis.numbers["dissimilarity.task"]
    projections = (at["norm"] * at["cosine"]).mean()  # of the gradients on their mean: its own length
    assert projections == pytest.approx(np.sqrt(mean_gradient))
    assert sorted(at["client"]) == list(range(6))
