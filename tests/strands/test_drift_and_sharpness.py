"""FedCM, MoFedSAM, FedGAMMA, FedLESAM, FedSMOO, FedACG, FedInit and FedExP: known numbers, plain loops, identities."""

import numpy as np
import pytest
import torch
from quadratic import World, clients

from fedbraid.core.optimizer import Sgd
from fedbraid.errors import UserError
from fedbraid.strands import Exp
from fedbraid.strands.parser import parse

ETA, K = 0.1, 2

GOLDEN = {
    "fedcm": [(-0.00985, 0.0199), (-0.028205475, 0.05698365), (-0.0536123902, 0.108313357)],
    "mofedsam": [(-0.0102510867, 0.0206055525), (-0.029355275, 0.058905596), (-0.0558063156, 0.111714701)],
    "fedgamma": [(-0.0877487932, 0.196941846), (-0.160028133, 0.327747981), (-0.213405739, 0.41922845)],
    "fedlesam": [(-0.085, 0.19), (-0.157855067, 0.352852502), (-0.21067499, 0.470920566)],
    "fedlesam_s": [(-0.085, 0.19), (-0.164730067, 0.348102502), (-0.224108718, 0.461612721)],
    "fedlesam_d": [(-0.169, 0.378), (-0.349546936, 0.781026141), (-0.47788553, 1.06644578)],
    "fedsmoo": [(-0.174412922, 0.39183188), (-0.342627985, 0.735322868), (-0.454299557, 0.961588054)],
    "acg+prox(mu=0.01)": [(-0.08495, 0.1899), (-0.198912761, 0.444656072), (-0.299435671, 0.669368262)],
    "fedinit": [(-0.085, 0.19), (-0.1489625, 0.326135), (-0.195104431, 0.424812688)],
    "relaxed(mean=moves)": [(-0.085, 0.19), (-0.1489625, 0.326135), (-0.195104431, 0.424812688)],
}
"""The server's model after each of three rounds of fixture Q, to nine digits; FedDyn's with the sum that it adds."""


@pytest.mark.parametrize("method", GOLDEN)
def test_known_numbers(method):
    world = World(method)
    for due in GOLDEN[method]:
        assert np.abs(world.round().server.w.numpy() - due).max() < 1e-9


def test_known_states():
    smoo = World("fedsmoo")
    smoo.rounds(2)
    assert smoo.states[0]["smoo"]["mu"].numpy() == pytest.approx([-0.275778804, 0.308098331], abs=1e-9)
    assert smoo.server.kept["smoo"]["s"].numpy() == pytest.approx([0.0371043792, 0.092861537], abs=1e-9)
    acg = World("acg+prox(mu=0.01)")
    sent = [(acg.round().server.w + 0.85 * acg.server.kept["acg"]["m"]).numpy() for _ in range(2)]
    assert sent[0] == pytest.approx([-0.1571575, 0.351315], abs=1e-9)
    assert sent[1] == pytest.approx([-0.295781108, 0.661198734], abs=1e-9)


def test_fedinit_where_one_client_stays_away():
    for mean, due in (("models", (0.098875, 0.13376)), ("moves", (0.126375, 0.11476))):
        world = World(f"relaxed(mean={mean})").round()
        assert world.round([0]).server.w.numpy() == pytest.approx(due, abs=1e-12)


@pytest.mark.parametrize(
    ("shares", "eps", "due"), [((0.5, 0.5), 0.0, 2.2), ((0.5, 0.5), 0.1, 2.037037037), ((0.75, 0.25), 0.0, 1.0)]
)
def test_fedexps_step(shares, eps, due):
    updates, p = torch.tensor([[3.0, 0.0], [-1.0, 1.0]]).double(), torch.tensor(shares).double()
    delta = p @ updates

    class Now:
        w, weights = torch.zeros(2).double(), p

        def sum(self, key, weights):
            return weights @ updates.square().sum(1)

    step, _ = Exp(eps=eps).update(delta, Now())
    assert step.numpy() == pytest.approx((due * delta).numpy(), rel=1e-9)


def test_fedexp_hands_out_the_mean_of_the_last_two_models():
    world = World("exp(eps=0.0)")
    first = world.round().server.w.numpy()
    assert first == pytest.approx([-0.152097519, 0.339982689], abs=1e-9)
    assert world.deployed == pytest.approx(first / 2, abs=1e-12)
    assert world.round().deployed == pytest.approx((first + world.server.w.numpy()) / 2, abs=1e-12)


def test_fedexp_of_updates_that_are_alike_or_orthogonal():
    alike = World("exp(eps=0.0)", [clients(1, 3)[0]] * 3)
    assert np.allclose(alike.round().server.w, World("fedavg", [clients(1, 3)[0]] * 3).round().server.w, atol=1e-12)
    apart = [(np.ones(4), 3.0 * row) for row in np.eye(4)]
    assert np.allclose(World("exp(eps=0.0)", apart).round().server.w, 2 * World("fedavg", apart).round().server.w)


# --- plain loops, with cohorts of some, unequal steps and momentum

COHORTS = [(0, 1, 2), (1, 3), (0, 2, 3), (3, 1), (2, 0, 1)]
STEPS = (2, 3, 1, 4)
SOME = clients(4, 3)
RHO = 0.5


class Plain:
    """What the papers' algorithms need, in NumPy."""

    def __init__(self):
        self.x, self.zero = np.zeros(3), np.zeros(3)

    def g(self, k, w):
        a, b = SOME[k]
        return a * (w - b)

    def sgd(self, k, start, direction):
        """Local steps with momentum along `direction(y)`."""
        y, v = start.copy(), 0.0
        for _ in range(STEPS[k]):
            v = RHO * v + direction(y)
            y = y - ETA * v
        return y


def reach(steps):
    return sum(sum(RHO**i for i in range(t + 1)) for t in range(steps))


def fedcm(p, alpha=0.3):
    d = p.zero
    for cohort in COHORTS:
        ends = [p.sgd(k, p.x, lambda y, k=k, d=d: alpha * p.g(k, y) + (1 - alpha) * d) for k in cohort]
        delta = np.mean(ends, 0) - p.x
        d = -delta / np.mean([reach(STEPS[k]) * ETA for k in cohort])
        p.x = p.x + delta
    return p.x


def fedlesam(p, rho=0.2):
    seen = {}
    for cohort in COHORTS:
        ends = []
        for k in cohort:
            gap = seen.get(k, p.x) - p.x
            e = rho * gap / np.linalg.norm(gap) if gap.any() else p.zero
            ends.append(p.sgd(k, p.x, lambda y, k=k, e=e: p.g(k, y + e)))
            seen[k] = p.x
        p.x = np.mean(ends, 0)
    return p.x


def fedsmoo(p, rho=0.2, lam=0.1):
    mu, h, s, total = dict.fromkeys(range(4), p.zero), dict.fromkeys(range(4), p.zero), p.zero, p.zero
    for cohort in COHORTS:
        ends = []
        for k in cohort:

            def direction(y, k=k, s=s):
                q = p.g(k, y) - mu[k] - s
                e = rho * q / np.linalg.norm(q)
                mu[k] = mu[k] + e - s
                return p.g(k, y + e) + lam * (y - p.x + h[k])

            ends.append(p.sgd(k, p.x, direction))
            total = total + (ends[-1] - p.x) / 4
            h[k] = h[k] + ends[-1] - p.x
        mean = np.mean([mu[k] for k in cohort], 0)
        s = rho * mean / np.linalg.norm(mean)
        p.x = np.mean(ends, 0) + total
    return p.x


def fedacg(p, lam=0.6, b=0.05):
    m = p.zero
    for cohort in COHORTS:
        z = p.x + lam * m
        ends = [p.sgd(k, z, lambda y, k=k, z=z: p.g(k, y) + b * (y - z)) for k in cohort]
        m = lam * m + np.mean(ends, 0) - z
        p.x = p.x + m
    return p.x


def fedinit(p, b=0.2, moves=False):
    last = {}
    for cohort in COHORTS:
        starts = {k: p.x + b * (p.x - last.get(k, p.x)) for k in cohort}
        ends = {k: p.sgd(k, starts[k], lambda y, k=k: p.g(k, y)) for k in cohort}
        last |= ends
        p.x = p.x + np.mean([ends[k] - (starts[k] if moves else p.x) for k in cohort], 0)
    return p.x


def fedexp(p, eps=1e-3):
    before = p.x
    for cohort in COHORTS:
        updates = [p.sgd(k, p.x, lambda y, k=k: p.g(k, y)) - p.x for k in cohort]
        mean = np.mean(updates, 0)
        step = max(1.0, np.mean([u @ u for u in updates]) / (2 * (mean @ mean + eps)))
        before, p.x = p.x, p.x + step * mean
    return (before + p.x) / 2


LOOPS = {
    "cm(alpha=0.3)": fedcm,
    "lesam(rho=0.2)": fedlesam,
    "smoo(rho=0.2)+drift(alpha=0.1)": fedsmoo,
    "acg(lam=0.6)+prox(mu=0.05)": fedacg,
    "relaxed(b=0.2)": fedinit,
    "relaxed(b=0.2, mean=moves)": lambda p: fedinit(p, moves=True),
    "exp": fedexp,
}


@pytest.mark.parametrize("method", LOOPS)
def test_plain_loops(method):
    world = World(method, SOME, steps=STEPS, optimizer=Sgd(momentum=RHO))
    for cohort in COHORTS:
        world.round(cohort)
    due = LOOPS[method](Plain())
    got = world.server.w.numpy() if "drift" in method else world.deployed
    assert np.abs(got - due).max() < 1e-12
    assert np.abs(due - World("uniform", SOME, steps=STEPS, optimizer=Sgd(momentum=RHO)).rounds(5)[-1]).max() > 1e-3


# --- identities


def ends(method, **more):
    world = World(method, SOME, **more)
    for cohort in COHORTS:
        world.round(cohort)
    return world.server.w.numpy()


def test_fedcm_of_one_local_step_is_momentum_on_the_server():
    ema = ends("uniform+avgm(beta=0.7, dampened=true)", steps=1)
    assert np.allclose(ends("cm(alpha=0.3)", steps=1), ema, rtol=0, atol=1e-14)


def test_fedacg_sends_what_nesterov_on_the_server_makes():
    nesterov, acg = World("uniform+avgm(beta=0.6, nesterov=true)", SOME), World("acg(lam=0.6)", SOME)
    for cohort in COHORTS:
        nesterov.round(cohort), acg.round(cohort)
        sent = acg.server.w + 0.6 * acg.server.kept["acg"]["m"]
        assert (sent - nesterov.server.w).abs().max() < 1e-14


def test_without_perturbation_it_is_the_rest_of_the_chain():
    assert (ends("lesam(rho=0.0)+scaffold") == ends("scaffold")).all()
    assert (ends("lesam(rho=0.0)+drift") == ends("drift")).all()
    smooth, plain = ends("smoo(rho=0.0)+drift"), ends("drift")
    assert (smooth == plain).all()
    assert (ends("cm(alpha=1.0)+sam") == ends("uniform+sam")).all()


def test_the_first_round_is_that_of_fedavg():
    first = World("uniform", SOME).round().server.w
    assert torch.equal(World("lesam(rho=0.5)", SOME).round().server.w, first)
    assert torch.equal(World("relaxed(b=0.5)", SOME).round().server.w, first)


def test_a_perturbation_without_a_second_gradient():
    counts = {m: World(m, SOME) for m in ("uniform", "lesam", "sam", "smoo")}
    for world in counts.values():
        world.round()
    one = counts["uniform"].gradients
    assert [w.gradients / one for w in counts.values()] == [1, 1, 2, 2]


def test_what_makes_no_sense_together_is_refused():
    for method, why in {
        "sam+lesam": "both choose the point at which the gradient is taken",
        "acg+skip": "both choose the model that is sent",
        "acg+avgm": "both are the server's optimiser",
        "dp+acg": "another one",
        "relaxed+drift": "relaxed starts elsewhere",
        "exp+drift": "drift's sum",
    }.items():
        with pytest.raises(UserError, match=why):
            parse(method)
