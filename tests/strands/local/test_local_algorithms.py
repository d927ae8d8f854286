"""The papers' algorithms as plain loops: five rounds of unequal clients must end in the same model."""

import math
from functools import cache

import numpy as np
import pytest
import torch
from covering import ENGINES as QUICK_ENGINES
from local_world import CLASSES, COHORT, HIDDEN, LR, ROUNDS, World, apart, ce, net, slope_of
from torch.nn.functional import cosine_similarity, cross_entropy, kl_div, log_softmax, softmax

from fedbraid.core.random import stream

pytestmark = pytest.mark.parametrize("kind", QUICK_ENGINES)
CLOSE = 1e-10


def matches(world, kind, w, close=CLOSE, **settings):
    """The federation that trained to the loop's model w, which is not FedAvg's."""
    simulation = world.trained(kind, **settings)
    assert apart(simulation.server.w, w) < close
    assert apart(w, fedavg(world.rho, world.clients)) > 1e-5
    return simulation


@cache
def fedavg(rho, cohort):
    return World(rho=rho, cohort=cohort).trained().server.w


def not_true(z, y):
    """Logits of the classes that a sample does not have."""
    return torch.stack([torch.cat([row[:c], row[c + 1 :]]) for row, c in zip(z, y, strict=True)])


def asd_alphas(teacher, y, counts, temperature=1.0):
    q = softmax(teacher / temperature, -1)
    alpha = torch.exp((q * q.log()).sum(-1)) / (counts / counts.sum())[y]
    return alpha / alpha.sum()


@pytest.mark.parametrize(
    ("options", "entropy_at"), [("lam=3.0", 1.0), ("lam=3.0, temperature=3.0, entropy=temperature", 3.0)]
)
def test_asd(kind, options, entropy_at):
    world, tau = World(f"asd({options})"), 3.0 if "=3.0, t" in options else 2.0

    def loss_of(k, received):
        def loss(w, x, y, drawn):
            teacher, student = net(received, x)[0], net(w, x)[0]
            alpha = asd_alphas(teacher, y, world.counts[k], entropy_at)
            kl = kl_div(log_softmax(student / tau, -1), softmax(teacher / tau, -1), reduction="none").sum(-1)
            return cross_entropy(student, y) + 3.0 * (alpha * kl).sum()

        return loss

    matches(world, kind, world.federated(loss_of))


@pytest.mark.parametrize("method", ["asd(lam=3.0)+ntd", "ntd+asd(lam=3.0)"])
def test_asd_beside_ntd(kind, method):
    world = World(method)

    def loss_of(k, received):
        def loss(w, x, y, drawn):
            teacher, student = net(received, x)[0], net(w, x)[0]
            q, p = softmax(not_true(teacher, y) / 2, -1), log_softmax(not_true(student, y) / 2, -1)
            kl = (q * (q.log() - p)).sum(-1)
            return cross_entropy(student, y) + 3.0 * (asd_alphas(teacher, y, world.counts[k]) * kl).sum()

        return loss

    matches(world, kind, world.federated(loss_of))


@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_ntd(kind, tau):
    world = World(f"ntd(beta=2.0, temperature={tau})", rho=0.9)

    def loss_of(k, received):
        def loss(w, x, y, drawn):
            teacher, student = net(received, x)[0], net(w, x)[0]
            p, q = log_softmax(not_true(student, y) / tau, -1), softmax(not_true(teacher, y) / tau, -1)
            return cross_entropy(student, y) + 2.0 * tau**2 * kl_div(p, q, reduction="batchmean")

        return loss

    matches(world, kind, world.federated(loss_of))


def test_moon(kind):
    world, tau, mu = World("moon(mu=2.0, temperature=0.4)", rho=0.9), 0.4, 2.0
    w, previous = world.start, {}
    for t in range(ROUNDS):
        cohort, models = world.cohort(t), []
        for k in cohort:
            before = previous.get(k)

            def loss(m, x, y, drawn, received=w, mine=before):
                logits, z = net(m, x)
                value = cross_entropy(logits, y)
                if mine is not None:
                    near, far = (cosine_similarity(z, net(v, x)[1]) / tau for v in (received, mine))
                    value = value + mu * -torch.log(near.exp() / (near.exp() + far.exp())).mean()
                return value

            models.append(world.local(t, k, w, loss))
        previous = previous | dict(zip(cohort, models, strict=True))
        w = world.mean(models, world.sizes[cohort])
    kept = matches(world, kind, w).store.read(range(len(world.sizes)))["moon"]
    for k, model in previous.items():
        assert apart(kept["model"][k], model) < CLOSE
    assert kept["has"].tolist() == [float(k in previous) for k in range(len(world.sizes))]


@pytest.mark.parametrize("scale", ["code", "paper"])
def test_decorr(kind, scale):
    world, beta = World(f"decorr(beta=0.3, scale={scale})", rho=0.9), 0.3

    def loss_of(k, received):
        def loss(w, x, y, drawn):
            logits, f = net(w, x)
            value, n = cross_entropy(logits, y), len(y)
            if n == 1:
                return value
            f = (f - f.mean(0)) / (f.var(0, unbiased=True) + 1e-8).sqrt()
            if scale == "paper":
                return value + beta * ((f.T @ f / (n - 1)) ** 2).sum() / HIDDEN**2
            off = (f.T @ f)[~torch.eye(HIDDEN, dtype=torch.bool)]
            return value + beta * (off**2).mean() / n

        return loss

    matches(world, kind, world.federated(loss_of), close=1e-8)  # features that are nearly dead magnify rounding


@pytest.mark.parametrize(
    "method", ["lc(tau=0.7)", "lc(tau=0.7, missing=0.01)", "rod(gamma=0.7)", "rod(gamma=0.7, missing=0.01)"]
)
def test_logits_adjusted_by_the_clients_classes(kind, method):
    world = World(method, rho=0.9)

    def loss_of(k, received):
        n = world.counts[k]
        has = [int(c) for c in torch.nonzero(n if "missing" not in method else n + 1)]
        n = torch.where(n > 0, n, 0.01)[has]

        def loss(w, x, y, drawn):
            z = net(w, x)[0][:, has]
            z = z - 0.7 * n**-0.25 if "lc" in method else z + 0.7 * n.log()
            return cross_entropy(z, torch.tensor([has.index(c) for c in y.tolist()]))

        return loss

    matches(world, kind, world.federated(loss_of))


def test_rods_personal_heads(kind):
    """They are trained where their client is, without momentum, on logits and features taken as they are."""
    world = World("rod", rho=0.9)
    w, heads = world.start, {k: torch.zeros(CLASSES, HIDDEN + 1).double() for k in range(len(world.sizes))}
    for t in range(ROUNDS):
        cohort, models = world.cohort(t), []
        for k in cohort:

            def loss(m, x, y, drawn, k=k):
                z, f = net(m, x)
                with torch.enable_grad():
                    f1 = torch.cat([f.detach(), torch.ones(len(f), 1)], 1)
                    heads[k] -= LR * slope_of(lambda h: cross_entropy(z.detach() + f1 @ h.T, y), heads[k])
                has = world.counts[k] > 0
                return cross_entropy(torch.where(has, z + world.counts[k].log(), -math.inf), y)

            models.append(world.local(t, k, w, loss))
        w = world.mean(models, world.sizes[cohort])
    kept = matches(world, kind, w).store.read(range(len(world.sizes)))["rod"]
    for k, head in heads.items():
        assert apart(kept["weight"][k], head[:, :-1]) < CLOSE
        assert apart(kept["bias"][k], head[:, -1]) < CLOSE


def class_matrix(world, k, w):
    p = softmax(net(w, world.x[k])[0], -1)
    rows = [p[world.y[k] == c].mean(0) if world.counts[k][c] else torch.ones(CLASSES).double() for c in range(CLASSES)]
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("options", "alpha", "kl"),
    [
        ("mixup=0.0", 0, "mean_present"),
        ("", 1.0, "mean_present"),
        ("mixup=0.4, kl=sum, lam=0.5, missing=0.01, tau=0.9", 0.4, "sum"),
        ("mixup=0.0, score=False", 0, None),
        ("estimate=mixed", 1.0, "mean_present"),
    ],
)
def test_fedacd(kind, options, alpha, kl):
    lam, missing, tau = (0.5, 0.01, 0.9) if "lam" in options else (1.0, 1e-8, 1 - 1e-5)
    world = World(f"fedacd({options})", rho=0.9)
    Q = torch.full((CLASSES, CLASSES), (1 - tau) / (CLASSES - 1), dtype=torch.float64).fill_diagonal_(tau)
    w = world.start
    for t in range(ROUNDS):
        models, V = [], []
        for k in world.cohort(t):
            has, ratio = world.counts[k] > 0, {}

            mixes = {}  # Σ of shares times probabilities, and of shares, of an epoch's mixed samples

            def epoch(m, k=k, has=has, ratio=ratio, mixes=mixes):
                if "estimate=mixed" in options and mixes:
                    P = (mixes["p"] / mixes["n"].clamp(min=1e-12)[:, None]).clamp(min=1e-12)
                else:
                    P = class_matrix(world, k, m)
                mixes |= {"p": 0.0, "n": 0.0}
                ratio["log"] = torch.where(has, (P / P.T).log(), math.log(missing)).fill_diagonal_(0)

            def one(z, y, ratio=ratio):
                p = softmax(z, -1)
                q = ((1 - p[range(len(y)), y]) / (CLASSES - 1))[:, None].expand(-1, CLASSES).clone()
                q[range(len(y)), y] = p[range(len(y)), y]
                return (p * (p / q).log()).sum(-1).mean() + lam * cross_entropy(z + ratio["log"][y], y)

            def loss(m, x, y, drawn, one=one, mixes=mixes):
                if not alpha:
                    return one(net(m, x)[0], y)
                keep, partner = drawn["fedacd.keep"], drawn["fedacd.partner"][: len(y)]
                z = net(m, keep * x + (1 - keep) * x[partner])[0]
                shares = keep * torch.eye(CLASSES)[y] + (1 - keep) * torch.eye(CLASSES)[y[partner]]
                mixes["p"] = mixes["p"] + shares.T.double() @ softmax(z.detach(), -1)
                mixes["n"] = mixes["n"] + shares.sum(0)
                return keep * one(z, y) + (1 - keep) * one(z, y[partner])

            end = world.local(t, k, w, loss, epoch=epoch)
            P = class_matrix(world, k, end)
            rows = (P * (P / Q).log()).sum(1)[has]
            total = rows.mean() if kl == "mean_present" else rows.sum()
            V.append(1.0 if kl is None else float(torch.sigmoid(1 / total)))
            models.append(end)
        w = world.mean(models, V)
    matches(world, kind, w, close=1e-8)


def test_mixup(kind):
    world = World("mixup(alpha=0.4)", rho=0.9)

    def loss(w, x, y, drawn):
        keep, partner = drawn["mixup.keep"], drawn["mixup.partner"][: len(y)]
        z = net(w, keep * x + (1 - keep) * x[partner])[0]
        return keep * cross_entropy(z, y) + (1 - keep) * cross_entropy(z, y[partner])

    matches(world, kind, world.federated(lambda k, w: loss))


@pytest.mark.parametrize("options", ["", "mix=0.25", "adaptive=True, rho=0.7, eta=0.3"])
def test_sam(kind, options):
    world = World(f"sam({options})", rho=0.9)
    rho, mix = 0.7 if "adaptive" in options else 0.1, 0.25 if "mix" in options else 1.0
    edges = np.cumsum([4 * HIDDEN, HIDDEN, HIDDEN * CLASSES])
    weights = torch.tensor([not (edges[0] <= i < edges[1] or i >= edges[2]) for i in range(len(world.start))])

    def grad(f, w):
        w = w.detach()
        g = slope_of(f, w)
        T = torch.where(weights, w.abs() + 0.3, 1.0) if "adaptive" in options else torch.ones_like(w)
        worst = slope_of(f, w + rho * T**2 * g / (T * g).norm())
        return (1 - mix) * g + mix * worst + 0.05 * w  # weight decay belongs to the step, not to the ascent

    w = world.federated(lambda k, received: lambda m, x, y, drawn: ce(m, x, y), grad=grad)
    matches(world, kind, w, optimizer={"lr": LR, "momentum": 0.9, "weight_decay": 0.05})


def feature_mean(world, t, k, w, delta, once=None):
    at = world.plan(t, k).positions[0, : world.plan(t, k).counts[0]] if delta == "batch" else slice(None)
    f = net(w, world.x[k][at])[1]
    if once is None:
        return f.mean(0)
    sigma, clip, name = once
    f = torch.stack([row * min(1.0, clip / float(row.norm())) if row.any() else row for row in f])
    noise = stream(0, f"once/{name}", round=t, client=k).normal(size=HIDDEN)
    return (f.sum(0) + sigma * clip * torch.as_tensor(noise)) / len(f)


VARIANTS = [
    ("", "full", False, COHORT),
    ("", "full", False, 2),
    ("", "full", False, 6),
    ("delta=batch", "batch", False, COHORT),
    ("include_self=True, delta=batch", "batch", True, COHORT),
]


@pytest.mark.parametrize(("options", "delta", "include_self", "cohort"), VARIANTS)
def test_rfedavg(kind, options, delta, include_self, cohort):
    world, lam = World(f"rfedavg(lam=0.5, {options})".replace(", )", ")"), cohort=cohort), 0.5
    w, maps = world.start, {}
    for t in range(ROUNDS):
        cohort = world.cohort(t)
        known = {k: maps[k] if k in maps else feature_mean(world, t, k, world.start, delta) for k in cohort}
        models = []
        for k in cohort:
            others = [known[j] for j in cohort if include_self or j != k]

            def loss(m, x, y, drawn, others=others):
                z, f = net(m, x)
                return cross_entropy(z, y) + lam * sum(((f.mean(0) - d) ** 2).sum() for d in others) / len(others)

            models.append(world.local(t, k, w, loss))
        maps |= {k: feature_mean(world, t, k, m, delta) for k, m in zip(cohort, models, strict=True)}
        w = world.mean(models, world.sizes[cohort])
    kept = matches(world, kind, w).server.kept["rfedavg"]
    assert all(apart(kept["map"][k], m) < CLOSE for k, m in maps.items())


NOISY = [
    ("noise=0.8, clip=0.7", "full", False, COHORT),
    ("noise=0.8, clip=0.7, delta=batch", "batch", False, COHORT),
]


@pytest.mark.parametrize(("options", "delta", "include_self", "cohort"), VARIANTS + NOISY)
def test_rfedavg_plus(kind, options, delta, include_self, cohort):
    world, lam = World(f"rfedavg_plus(lam=0.5, {options})".replace(", )", ")"), cohort=cohort), 0.5
    w, once = world.start, (0.8, 0.7, "rfedavg_plus") if "noise" in options else None
    for t in range(ROUNDS):
        cohort = world.cohort(t)
        maps, models = {k: feature_mean(world, t, k, w, delta, once) for k in cohort}, []
        for k in cohort:
            target = torch.stack([maps[j] for j in cohort if include_self or j != k]).mean(0)

            def loss(m, x, y, drawn, target=target):
                z, f = net(m, x)
                return cross_entropy(z, y) + lam * ((f.mean(0) - target) ** 2).sum()

            models.append(world.local(t, k, w, loss))
        w = world.mean(models, world.sizes[cohort])
    matches(world, kind, w)
