"""Differential privacy of clients: the algorithm as a plain loop, what it bounds, what it adds, and what is refused."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from covering import ENGINES
from helpers import SIZES, advanced, federation, held, identical, toy
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_loops import COHORT, ROUNDS, N, World, far
from scipy.stats import kstest
from torch import nn

import fedbraid as fb
from fedbraid.core.random import stream
from fedbraid.core.sampling import Drawn, bernoulli, coming
from fedbraid.privacy import budget as privacy
from fedbraid.report.headline import caveats
from fedbraid.training.run_directory import RunDirectory


@pytest.mark.parametrize("kind", ENGINES)
def test_the_algorithm(kind):
    world, z, s = World(), 0.3, 0.8
    x, short = world.start, 0
    for t in range(ROUNDS):
        updates = [world.local(t, k, x) - x for k in world.cohort(t)]
        short += sum(float(u.norm()) > s for u in updates)
        total = sum(u * min(1.0, s / float(u.norm())) for u in updates)
        noise = torch.as_tensor(stream(0, "server/dp", round=t).normal(size=len(x)))
        x = x + total / COHORT + z * s / COHORT * noise
    assert 0 < short < ROUNDS * COHORT  # some are clipped, some are not
    assert far(world.trained(f"dp(noise={z}, clip={s})", kind).server.w, x) < 1e-12


@pytest.mark.parametrize("kind", ENGINES)
def test_neither_clipped_nor_noised_is_the_uniform_mean_to_the_bit(kind):
    uniform, *ours = (
        advanced(federation(m, engine={"kind": kind}, sampling={"clients": 4}))
        for m in ("uniform", "dp(noise=0, clip=0)", "dp(noise=0, clip=1e6)")
    )
    for one in ours:
        assert torch.equal(one.server.w, uniform.server.w)


def uploads(simulation):
    """What clients sent in the next round, as updates."""
    sent, run = [], simulation.engine.run
    simulation.engine.run = lambda job, *more: sent.append(run(job, *more)) or sent[-1]
    before = simulation.server.w
    simulation.advance()
    return sent[-1].each("model") - before


@settings(max_examples=15, deadline=None)
@given(clip=st.floats(1e-6, 10), lr=st.floats(0.01, 1e3), kind=st.sampled_from(["stack", "loop"]))
def test_no_update_is_longer_than_the_clip(clip, lr, kind):
    clip = float(np.float32(clip))
    made = federation(f"dp(noise=0, clip={clip})", optimizer={"lr": lr}, engine={"kind": kind})
    plain = federation("fedavg", optimizer={"lr": lr}, engine={"kind": kind})
    got, whole = uploads(made), uploads(plain)
    assert (got.norm(dim=1) <= clip * (1 + 1e-6)).all()
    shrunk = whole.norm(dim=1) > clip
    along = (got * whole).sum(1) / (got.norm(dim=1) * whole.norm(dim=1)).clamp(min=1e-300)
    finite = whole.norm(dim=1).isfinite()
    assert torch.equal(got[~shrunk], whole[~shrunk]) and (along[shrunk & finite] > 1 - 1e-6).all()


def test_an_update_that_is_not_finite_counts_as_none():
    for kind in ("stack", "loop"):
        made = federation(
            "dp(noise=0, clip=1.0)",
            optimizer={"lr": 1e30},
            local={"batch": 4, "epochs": 9},
            engine={"kind": kind, "dtype": "float32"},
        )
        sent = uploads(made)
        assert sent.isfinite().all() and (sent.norm(dim=1) == 0).any() and made.server.w.isfinite().all()


# --- noise

SCHEMES = {
    "fixed": ({"clients": 3}, 3.0),
    "everybody": ({}, 6.0),
    "lost": ({"clients": 4, "dropout": 0.6}, 4.0),
    "bernoulli": ({"scheme": "bernoulli", "rate": 0.3}, 6 * 0.3 / (1 - 0.7**6)),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_noise_is_by_the_clients_that_come_on_average(scheme):
    """Clients that do not move leave the noise alone, of N(0, (z S / m)²) whoever came."""
    sampling, m = SCHEMES[scheme]
    made = federation(
        "dp(noise=2.0, clip=0.5)",
        sampling=sampling,
        optimizer={"lr": 1e-12},
        rounds=3,
        model={"name": "mlp", "hidden": [300]},
    )
    for _ in range(3):
        before = made.server.w
        line = made.advance()
        if line["lost"] < line["clients"]:
            moved = (made.server.w - before).numpy() * m / (2.0 * 0.5)
            assert kstest(moved, "norm").pvalue > 1e-4 and abs(moved.std() - 1) < 0.05
    assert made.setup.expected == pytest.approx(m)


def test_how_many_come_on_average():
    came = [len(bernoulli(7, 0.2, seed=s, round=0)) for s in range(4000)]
    assert coming(7, 0.2) == pytest.approx(np.mean(came), abs=4 * np.std(came) / math.sqrt(4000))
    assert coming(7, 1.0) == 7


def test_updates_count_the_same_whoever_is_lost():
    """The denominator does not follow the cohort: by it, one client would change what all others count."""
    settings = {"sampling": {"clients": 4, "dropout": 0.5}, "rounds": 6}
    made = federation("dp(noise=0, clip=1e6)", **settings)
    lost = set()
    for _ in range(6):
        before, sent = made.server.w, uploads(made)
        assert far(made.server.w, before + sent.sum(0) / 4) < 1e-12
        lost.add(len(sent))
    assert len(lost) > 1


def test_a_servers_optimiser_sees_the_noisy_step():
    for method in ("dp(noise=0.5)+avgm", "avgm+dp(noise=0.5)"):
        made = federation(method, optimizer={"lr": 1e-12}, sampling={"clients": 3})
        advanced(made)
        drawn = [torch.as_tensor(stream(0, "server/dp", round=t).normal(size=len(made.server.w))) for t in range(3)]
        v = torch.zeros_like(made.server.w)
        for noise in drawn:
            v = 0.9 * v + 0.5 / 3 * noise
        assert far(made.server.kept["avgm"]["v"], v) < 1e-9


def test_what_is_not_trained_stays():
    made = federation("babu+dp")
    start = made.server.w.clone()
    moved = advanced(made).server.w != start
    still = made.model.frozen
    assert still.any() and torch.equal(moved, ~still), "to the bit: rounding would tell how many came"


# --- what is accounted


def test_a_comparison_says_what_each_spent():
    data, partition = toy()
    done = fb.compare("uniform", "dp(noise=2.0, clip=0.5)", data=data, partition=partition, rounds=2, seeds=2)
    (said,) = [line for line in caveats(done.records) if line.startswith("Privacy: ")]
    spent = privacy.epsilon_text(privacy.spent(2.0, 2))
    assert said == f"Privacy: dp(noise=2.0, clip=0.5) has epsilon {spent} at delta 1e-05 of a client."
    assert privacy.epsilon_text(None) == privacy.epsilon_text(float("inf")) == "no bound"
    assert privacy.epsilon_text(6.4501) == "6.46"


def test_epsilon_is_in_each_line_and_in_the_summary(tmp_path):
    """Killed and resumed to the same bit, with the same account."""
    settings = {"rounds": 4, "sampling": {"clients": 3}, "seed": 3, "save": {"every": 1}}
    data, partition = toy()
    run = fb.run("dp(noise=2.0, delta=0.001)", data=data, partition=partition, **settings)
    drawn = Drawn(len(SIZES), "fixed", clients=3)
    each = [line["privacy"]["dp"] for line in run.rounds]
    assert [one["epsilon"] for one in each] == [privacy.spent(2.0, t, 0.001, drawn) for t in (1, 2, 3, 4)]
    assert (
        run.summary["privacy"]["dp"]
        == each[-1]
        == {"epsilon": each[-1]["epsilon"], "delta": 0.001, "noise": 2.0, "releases": 4, "of": "client"}
    )
    again = {"data": data, "partition": partition, "out": tmp_path / "run"}
    fb.run(
        "dp(noise=2.0, delta=0.001)",
        on_round=lambda line, _: fb.STOP if line["round"] == 2 else None,
        **again,
        **settings,
    )
    assert RunDirectory(tmp_path / "run").summary()["privacy"]["dp"]["epsilon"] == each[1]["epsilon"]
    resumed = fb.run("dp(noise=2.0, delta=0.001)", resume=True, **again, **settings)
    assert resumed.summary["privacy"] == run.summary["privacy"]
    for one, other in zip(run.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_without_noise_there_is_no_privacy_to_tell_of():
    assert "privacy" not in federation("dp(noise=0)").advance()


# --- company


@dataclass(frozen=True)
class Peeks(fb.Strand):
    """Adds a little of what clients moved to the step, beside the noise."""

    share: float = 0.1

    def update(self, delta, r):
        return delta + self.share * r.moved, r.state


@dataclass(frozen=True)
class First(fb.Strand):
    """Wants the step before anybody else."""

    constraints = fb.Constraints(first_in={"update"})
    share: float = 0.1

    def update(self, delta, r):
        return (1 + self.share) * delta, r.state


@dataclass(frozen=True)
class Elsewhere(fb.Strand):
    """Has clients begin beside the server's model."""

    share: float = 0.1

    def send(self, r):
        return {"model": (1 + self.share) * r.w}


def test_updates_are_from_the_servers_model():
    with pytest.raises(fb.UserError, match="another strand sends another one"):
        federation(fb.chain("dp", Elsewhere())).advance()


def test_strands_of_ones_own_see_the_noisy_step_alone():
    chain = fb.chain("dp", Peeks())
    with pytest.raises(fb.UserError, match="see the noisy step and no more, but one asks for model"):
        federation(chain).advance()
    with pytest.raises(fb.UserError, match="dp and first do not go together"):
        fb.chain(First(), "dp")


REFUSED = {
    "scaffold": "uses what clients tell it beside",
    "feddyn": "uses what clients tell it beside",
    "rfedavg_plus": "uses what clients tell it beside",
    "fednh": "uses what clients tell it beside",
    "fedskip": "uses what clients tell it beside",
    "disco(target=cohort)": "uses what clients tell it beside",
    "feddisco": "count the same, and disco weighs them",
    "sizes": "count the same, and sizes weighs them",
    "fednova": "count the same, and nova weighs them",
}


@pytest.mark.parametrize("method", REFUSED)
def test_what_tells_more_of_clients_is_refused(method):
    for pair in (f"dp+{method}", f"{method}+dp"):
        with pytest.raises(fb.UserError, match=f"dp and .* do not go together: .*{REFUSED[method]}"):
            federation(pair)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"sampling": {"scheme": "by_size", "clients": 2}}, r"the same chance in every round; set sampling\.scheme=f"),
        ({"sampling": {"late": 0.5}}, r"the same chance in every round; set sampling\.late=0"),
        ({"evaluate": {"model": "cohort"}}, r"no mean of a round's models; set evaluate\.model=server"),
    ],
)
def test_settings_that_it_does_not_account_for_are_refused(settings, reason):
    with pytest.raises(fb.UserError, match=reason):
        federation("dp", **settings)


def test_running_statistics_are_refused():
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    with pytest.raises(fb.UserError, match="buffers that clients' data move"):
        federation("dp", module=module)


def test_noise_without_a_clip_is_refused():
    with pytest.raises(fb.UserError, match="give a clip above 0"):
        fb.chain("dp(clip=0)")


def test_beside_a_client_state_and_other_losses_it_is_the_same_in_a_stack_and_in_a_loop():
    stack, loop = (
        held(advanced(federation("moon+prox+dp+fedadam", engine={"kind": k}, sampling={"clients": 4})))
        for k in ("stack", "loop")
    )
    assert max(float((stack[key] - loop[key]).abs().max()) for key in stack if stack[key].numel()) < 1e-10
    assert not identical(stack, held(federation("moon+prox+dp+fedadam")))


def test_how_clients_are_drawn_is_accounted_for_where_rounds_are_alike():
    """A client that is drawn instead of another keeps what it learned then, and its later updates tell of that."""
    some, coins = {"clients": 2}, {"scheme": "bernoulli", "rate": 0.2}
    assert federation("dp", data=World().data).drawn == Drawn(N, "fixed", clients=N)
    assert federation("prox+dp", data=World().data, sampling=some).drawn == Drawn(N, "fixed", clients=2)
    assert federation("moon+dp", data=World().data, sampling=some).drawn is None
    assert federation("moon+dp", data=World().data, sampling=coins).drawn == Drawn(N, "bernoulli", rate=0.2)
