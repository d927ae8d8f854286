"""FedNH and CReFF, the methods that take the last layer out of training: each paper's algorithm as a plain loop."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from covering import ENGINES
from helpers import advanced
from plain_loops import CLASSES, FEATURES, HIDDEN, LABELS, ROUNDS, SIZES, N, World, far

from fedbraid.core.random import stream

SPLIT = [HIDDEN * FEATURES, HIDDEN, CLASSES * HIDDEN]
HEAD = slice(sum(SPLIT[:2]), sum(SPLIT))
COUNTS = torch.tensor([[labels.count(c) for c in range(CLASSES)] for labels in LABELS], dtype=torch.float64)


def prototypes(w, x):
    """FedNH's network: the cosine to each prototype times a scale, which is the last parameter."""
    a, b, c, s = torch.split(w, [*SPLIT, 1])
    f = F.relu(x @ a.view(HIDDEN, FEATURES).T + b)
    return s * F.normalize(f, dim=-1) @ c.detach().view(CLASSES, HIDDEN).T, f


class Trained(World):
    """Autograd sees the trained parameters only: no gradient, decay or pull on the prototypes (and a fixed scale)."""

    def __init__(self, fixed_scale=False, clip=0.0, **settings):
        optimizer = settings.pop("optimizer", {})
        super().__init__(net=prototypes, optimizer=optimizer | ({"clip": clip} if clip else {}), **settings)
        self.clip = clip
        self.moves = torch.ones(sum(SPLIT) + 1, dtype=torch.float64)
        self.moves[HEAD] = 0
        if fixed_scale:
            self.moves[-1] = 0

    def slope(self, w, k, at=slice(None)):
        g = super().slope(w, k, at) * self.moves
        return g * min(1.0, self.clip / float(g.norm())) if self.clip else g

    def local(self, t, k, start, *args, **kwargs):
        decay = self.optimizer.pop("weight_decay", 0.0)
        inner = kwargs.pop("correct", lambda w: 0.0)
        try:
            return super().local(t, k, start, lambda w: self.moves * (inner(w) + decay * w), *args, **kwargs)
        finally:
            self.optimizer["weight_decay"] = decay


def fednh(world, start, rho, **local):
    w = start
    for t in range(ROUNDS):
        cohort = world.cohort(t)
        models = [world.local(t, k, w, **local) for k in cohort]
        total, n = torch.zeros(CLASSES, HIDDEN, dtype=torch.float64), COUNTS[cohort].sum(0)
        for k, model in zip(cohort, models, strict=True):
            x, y = world.of(k)
            f = F.normalize(world.net(model, x)[1], dim=-1)
            for c in set(y.tolist()):
                total[c] += COUNTS[k, c] * F.normalize(f[y == c].mean(0), dim=0)
        old = w[HEAD].view(CLASSES, HIDDEN).clone()
        w = torch.stack(models).mean(0)
        new = old.clone()
        for c in range(CLASSES):
            if n[c]:
                new[c] = F.normalize(rho * old[c] + (1 - rho) * F.normalize(total[c] / n[c], dim=0), dim=0)
        w[HEAD] = new.reshape(-1)
    return w


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("train_scale", [True, False])
@pytest.mark.parametrize("optimizer", [{}, {"momentum": 0.9, "weight_decay": 0.2, "decay": 0.9}])
def test_fednh(kind, train_scale, optimizer):
    world = Trained(fixed_scale=not train_scale, optimizer=dict(optimizer))
    method = f"nh(rho=0.7, scale=4.0, train_scale={train_scale})"
    start = world.federation(method).server.w
    expected = fednh(world, start, 0.7)
    simulation = world.trained(method, kind)
    assert far(simulation.server.w, expected) < 1e-10
    assert (abs(float(simulation.server.w[-1]) - 4.0) > 1e-3) == train_scale


def test_some_round_of_these_lacks_a_class():
    world = World()
    assert any((COUNTS[world.cohort(t)].sum(0) == 0).any() for t in range(ROUNDS))


def test_prototypes_start_orthonormal_and_stay_of_length_one():
    world = Trained()
    simulation = world.federation("nh")
    head = simulation.server.w[HEAD].view(CLASSES, HIDDEN)
    assert far(head @ head.T, torch.eye(CLASSES, dtype=torch.float64)) < 1e-6
    for t in range(ROUNDS):
        before = simulation.server.w[HEAD].view(CLASSES, HIDDEN)
        simulation.advance()
        after = simulation.server.w[HEAD].view(CLASSES, HIDDEN)
        present = COUNTS[world.cohort(t)].sum(0) > 0
        assert torch.equal(before[~present], after[~present])
        assert far(after[present].norm(dim=1), torch.ones(int(present.sum()), dtype=torch.float64)) < 1e-12
        assert ((after - before)[present].norm(dim=1) > 1e-4).all()


@pytest.mark.parametrize("optimizer", [{"momentum": 0.9, "weight_decay": 0.5}, {"name": "adam", "weight_decay": 0.5}])
@pytest.mark.parametrize("beside", ["", "+prox(mu=0.5)", "+scaffold(option=1)", "+drift", "+sam"])
def test_clients_return_the_prototypes_as_they_came(optimizer, beside):
    world = World(optimizer=optimizer)
    simulation = world.federation("nh" + beside)
    seen = []
    run = simulation.engine.run
    simulation.engine.run = lambda job, meanwhile: seen.append((job.model, run(job, meanwhile))) or seen[-1][1]
    advanced(simulation, 3)
    for sent, replies in seen:
        assert torch.equal(replies.each("model")[:, HEAD], sent[HEAD].expand(3, -1))


def test_clipping_goes_by_the_gradients_of_trained_parameters():
    world = Trained(clip=0.05)
    start = world.federation("nh(scale=4.0)").server.w
    assert far(world.trained("nh(scale=4.0)").server.w, fednh(world, start, 0.9)) < 1e-10


def test_the_ascent_leaves_prototypes_where_they_are():
    world = Trained()
    start = world.federation("nh(scale=4.0)").server.w
    expected = fednh(world, start, 0.9, ascent=0.2)
    assert far(world.trained("nh(scale=4.0)+sam(rho=0.2)").server.w, expected) < 1e-10


# --- CReFF


def head_gradient(f, y, head):
    """Of the mean cross-entropy of a linear head on features."""
    return torch.autograd.grad(F.cross_entropy(F.linear(f, *head), y), head, create_graph=True)


def creff(world, m, steps, epochs, match_lr, head_lr, batch):
    w = world.start
    features = torch.as_tensor(stream(0, "creff features").normal(size=(CLASSES, m, HIDDEN)))
    head = (w[HEAD].view(CLASSES, HIDDEN), w[HEAD.stop :])
    for t in range(ROUNDS):
        cohort, real = world.cohort(t), {c: [] for c in range(CLASSES)}
        psi = tuple(p.clone().requires_grad_() for p in head)
        for k in cohort:
            x, y = world.of(k)
            for c in set(y.tolist()):
                gs = head_gradient(world.net(w, x[y == c])[1], y[y == c], psi)
                real[c].append([g.detach() for g in gs])
        w = sum(world.sizes[k] * world.local(t, k, w) for k in cohort) / world.sizes[cohort].sum()
        for _ in range(steps):
            moving, gap = features.clone().requires_grad_(), 0.0
            for c in (c for c in range(CLASSES) if real[c]):
                weight, bias = (torch.stack(g).mean(0) for g in zip(*real[c], strict=True))
                ours = head_gradient(moving[c], torch.full((m,), c), psi)
                for g, real_g in ((ours[0], weight), (ours[1], bias)):
                    norms = g.norm(dim=-1) * real_g.norm(dim=-1)
                    gap = gap + (1 - (g * real_g).sum(-1) / (norms + 1e-6)).sum()
            features = features - match_lr * torch.autograd.grad(gap, moving)[0]
        head, rng = [], stream(0, "server/creff", round=t)
        for size in ((CLASSES, HIDDEN), (CLASSES,)):
            head.append(torch.as_tensor(rng.uniform(-(HIDDEN**-0.5), HIDDEN**-0.5, size)).requires_grad_())
        x, y = features.flatten(0, 1), torch.arange(CLASSES).repeat_interleave(m)
        for _ in range(epochs):
            for part in np.split(order := rng.permutation(len(x)), range(batch, len(order), batch)):
                head = [p - head_lr * g for p, g in zip(head, head_gradient(x[part], y[part], head), strict=True)]
        head = tuple(p.detach() for p in head)
    return w, features, head


@pytest.mark.parametrize("kind", ENGINES)
def test_creff(kind):
    world = World()
    w, features, head = creff(world, m=6, steps=4, epochs=3, match_lr=0.3, head_lr=0.2, batch=7)
    hyper = "per_class=6, match_steps=4, match_lr=0.3, head_epochs=3, head_lr=0.2, head_batch=7"
    simulation = world.trained(f"creff({hyper})", kind)
    kept = simulation.server.kept["creff"]
    assert far(simulation.server.w, w) < 1e-12
    assert far(kept["features"], features) < 1e-8
    assert far(kept["weight"], head[0]) < 1e-8
    assert far(kept["bias"], head[1]) < 1e-8
    deployed = simulation.deployed()[0]
    assert torch.equal(deployed[: HEAD.start], simulation.server.w[: HEAD.start])
    assert far(deployed[HEAD.start :], torch.cat([head[0].reshape(-1), head[1]])) < 1e-8


def test_features_of_a_class_that_nobody_has_stay():
    world = World()
    simulation = world.federation("creff(per_class=4, match_steps=3, head_epochs=1)")
    for t in range(ROUNDS):
        before = simulation.server.kept["creff"]["features"]
        simulation.advance()
        after = simulation.server.kept["creff"]["features"]
        present = COUNTS[world.cohort(t)].sum(0) > 0
        assert torch.equal(before[~present], after[~present])
        assert not torch.equal(before[present], after[present])


def test_the_network_itself_goes_on_as_fedavg():
    world = World()
    assert torch.equal(
        world.trained("creff(per_class=4, match_steps=2, head_epochs=2)").server.w, world.trained("fedavg").server.w
    )


@pytest.mark.parametrize("method", ["drift+{}", "{}+drift", "{}+scaffold+drift"])
def test_the_head_handed_out_is_the_retrained_one_whatever_stands_beside(method):
    world = World()
    simulation = world.trained(method.format("creff(per_class=4, match_steps=2, head_epochs=2)"))
    kept = simulation.server.kept["creff"]
    deployed = simulation.deployed()[0]
    assert far(deployed[HEAD.start :], torch.cat([kept["weight"].reshape(-1), kept["bias"]])) < 1e-14
    mean = simulation.server.cohort_mean[0]
    assert far(deployed[: HEAD.start], mean[: HEAD.start]) < 1e-13


def test_these_federations_are_what_they_seem():
    assert len(SIZES) == N and int(COUNTS.sum()) == sum(SIZES)
