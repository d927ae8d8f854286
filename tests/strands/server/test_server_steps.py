"""FedNova, q-FedAvg, FedAvgM and FedOpt: each paper's algorithm once more as a plain loop."""

import pytest
import torch
from covering import ENGINES
from helpers import held, identical
from plain_loops import ROUNDS, World, far

from fedbraid.errors import UserError
from fedbraid.strands import parser as methods

UNEQUAL = {"batch": 4, "steps": 6, "least": 1}


@pytest.mark.parametrize("mu", [0.0, 0.4])
@pytest.mark.parametrize(("kind", "by_steps"), [("loop", False), ("loop", True), ("stack", False)])
@pytest.mark.parametrize(
    "optimizer",
    [{}, {"momentum": 0.9, "decay": 0.8}, {"momentum": 0.9, "nesterov": True}, {"lr": 0.3, "weight_decay": 0.1}],
)
def test_fednova(kind, mu, by_steps, optimizer):
    world = World(work=UNEQUAL, optimizer=optimizer)
    x = world.start
    for t in range(ROUNDS):
        cohort = world.cohort(t)
        p = world.sizes[cohort] / world.sizes[cohort].sum()
        a = torch.tensor([world.reach(t, k, mu) for k in cohort], dtype=torch.float64)
        steps = torch.tensor([len(world.plan(t, k)) for k in cohort], dtype=torch.float64)
        tau = (p * (steps if by_steps else a)).sum()
        moved = torch.stack([x - world.local(t, k, x, lambda w, at=x: mu * (w - at)) for k in cohort])
        d = moved / (world.lr(t) * a[:, None])  # normalised gradients
        x = x - tau * world.lr(t) * (p[:, None] * d).sum(0)
    method = f"nova(steps_effective={by_steps})" + (f"+prox(mu={mu})" if mu else "")
    assert far(world.trained(method, kind).server.w, x) < 1e-10


@pytest.mark.parametrize(
    ("rho", "nesterov", "pull", "expected"),
    [
        (0.0, False, 0.0, (2.0, 5.0, 9.0)),
        (0.0, False, 0.1, tuple((1 - 0.9**n) / 0.1 for n in (2, 5, 9))),
        (0.9, False, 0.0, tuple((n - 0.9 * (1 - 0.9**n) / 0.1) / 0.1 for n in (2, 5, 9))),
        (0.9, False, 0.1, (2.8, 10.29, 16.04)),  # measured under a unit gradient
    ],
)
def test_the_reach_of_a_local_solver(rho, nesterov, pull, expected):
    """‖a‖₁ in closed form, and where momentum meets a proximal pull as it was measured; η μ = pull."""
    for steps, wanted in zip((2, 5, 9), expected, strict=True):
        world = World(work={"batch": 4, "steps": steps}, optimizer={"lr": 0.1, "momentum": rho, "nesterov": nesterov})
        simulation = world.federation(f"nova+prox(mu={pull / 0.1})" if pull else "nova")
        uploads = []
        run = simulation.engine.run
        simulation.engine.run = lambda job, _, run=run, uploads=uploads: uploads.append(run(job)) or uploads[-1]
        simulation.advance()
        assert uploads[0].each("nova.a").tolist() == pytest.approx([wanted] * 3, abs=0.005)


def test_fednova_of_equal_steps_without_momentum_is_fedavg():
    world = World(work={"batch": 4, "steps": 3})
    assert far(world.trained("nova").server.w, world.trained("fedavg").server.w) < 1e-14
    world = World(work=UNEQUAL)
    assert far(world.trained("nova").server.w, world.trained("fedavg").server.w) > 1e-3


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize(("q", "decay"), [(0.0, 1.0), (0.5, 0.7), (1.0, 1.0), (3.0, 0.7)])
def test_qfedavg(kind, q, decay):
    world = World(optimizer={"decay": decay})
    x = world.start
    for t in range(ROUNDS):
        lipschitz, deltas, hs = 1 / world.lr(t), [], []
        for k in world.cohort(t):
            f = world.loss(x, k) + 1e-10
            dw = lipschitz * (x - world.local(t, k, x))
            deltas.append(f**q * dw)
            hs.append(q * f ** (q - 1) * dw.square().sum() + lipschitz * f**q)
        x = x - torch.stack(deltas).sum(0) / torch.stack(hs).sum()
    assert far(world.trained(f"qfair(q={q})", kind).server.w, x) < 1e-10


def test_qfedavg_that_is_not_fair_is_the_plain_mean():
    world = World()
    assert torch.equal(world.trained("qfair(q=0)").server.w, world.trained("uniform").server.w)


def test_qfedavg_counts_anothers_weights_as_shares_of_the_cohort():
    """With q = 0 the weights come through as they are; with q > 0 equal weights change nothing."""
    world = World()
    assert torch.equal(world.trained("disco+qfair(q=0)").server.w, world.trained("disco").server.w)
    assert far(world.trained("uniform+qfair").server.w, world.trained("qfair").server.w) < 1e-14
    assert far(world.trained("sizes+qfair").server.w, world.trained("qfair").server.w) > 1e-3


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("variant", ["heavy ball", "nesterov", "dampened"])
def test_fedavgm(kind, variant):
    world, beta = World(optimizer={"momentum": 0.5}), 0.8
    x, v = world.start, 0.0
    for t in range(ROUNDS):
        cohort = world.cohort(t)
        p = world.sizes[cohort] / world.sizes[cohort].sum()
        d = x - sum(p[i] * world.local(t, k, x) for i, k in enumerate(cohort))
        v = beta * v + (1 - beta if variant == "dampened" else 1) * d
        x = x - (d + beta * v if variant == "nesterov" else v)
    flag = "" if variant == "heavy ball" else f", {variant}=True"
    simulation = world.trained(f"avgm(beta={beta}{flag})", kind)
    assert far(simulation.server.w, x) < 1e-10
    assert far(simulation.server.kept["avgm"]["v"], -v) < 1e-10


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("rule", ["adam", "yogi", "adagrad"])
@pytest.mark.parametrize(("v0", "corrected"), [(0.0, False), (1e-4, False), (0.0, True)])
def test_fedopt(kind, rule, v0, corrected):
    if rule == "adagrad" and corrected:
        with pytest.raises(UserError, match="no bias to correct"):
            methods.parse("opt(kind=adagrad, bias_correction=true)")
        return
    world, b1, b2, tau, rate = World(), 0.8, 0.95, 1e-2, 0.05
    x, m, v = world.start, torch.zeros_like(world.start), torch.full_like(world.start, v0)
    for t in range(ROUNDS):
        d = torch.stack([world.local(t, k, x) - x for k in world.cohort(t)]).mean(0)
        m = b1 * m + (1 - b1) * d
        if rule == "adagrad":
            v = v + d**2
        elif rule == "adam":
            v = b2 * v + (1 - b2) * d**2
        else:
            v = v - (1 - b2) * d**2 * torch.sign(v - d**2)
        eta = rate * (1 - b2 ** (t + 1)) ** 0.5 / (1 - b1 ** (t + 1)) if corrected else rate
        x = x + eta * m / (v.sqrt() + tau)
    hyper = f"kind={rule}, lr={rate}, beta1={b1}, beta2={b2}, tau={tau}, v0={v0}, bias_correction={corrected}"
    simulation = world.trained(f"opt({hyper})", kind)
    assert far(simulation.server.w, x) < 1e-9
    assert far(simulation.server.kept["opt"]["m"], m) < 1e-10
    assert far(simulation.server.kept["opt"]["v"], v) < 1e-10


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("fedadam", "opt(kind=adam, lr=0.1, beta1=0.9, beta2=0.99, tau=0.001)"),
        ("fedyogi", "opt(kind=yogi, lr=0.1, beta1=0.9, beta2=0.99, tau=0.001)"),
        ("fedadagrad", "opt(kind=adagrad, lr=0.1, beta1=0, tau=0.001)"),
        ("fedavgm", "avgm(beta=0.9)"),
    ],
)
def test_named_server_optimisers(name, written):
    world = World()
    assert torch.equal(world.trained(name).server.w, world.trained(written).server.w)


@pytest.mark.parametrize("method", ["avgm", "opt(kind=yogi)", "scaffold+drift", "qfair+avgm", "nova+opt"])
def test_the_servers_state_survives_being_saved(method, tmp_path):
    from fedbraid.config.schema import Config
    from fedbraid.training.run_directory import RunDirectory

    world, run = World(), RunDirectory(tmp_path)
    run.begin(Config())
    half = world.federation(method, directory=run.states)
    for _ in range(2):
        half.advance()
    run.save(half)
    rest = world.federation(method, directory=run.states)
    run.load(rest)
    for _ in range(ROUNDS - 2):
        rest.advance()
    assert identical(held(rest), held(world.trained(method)))
