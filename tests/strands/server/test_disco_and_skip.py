"""FedDisco's weights and targets in all their forms, and FedSkip, as plain loops."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from covering import ENGINES
from helpers import held, identical
from plain_loops import CLASSES, COHORT, LABELS, ROUNDS, SIZES, N, World, far

from fedbraid.core.random import stream
from fedbraid.errors import UserError
from fedbraid.strands.disco import Disco, disco_weights

COUNTS = np.array([[labels.count(c) for c in range(CLASSES)] for labels in LABELS])
TARGET = (0.1, 0.2, 0.3, 0.4)


def weights(cohort, a, b, metric, normalise, target):
    n, counts = np.array(SIZES)[cohort] / np.array(SIZES)[cohort].sum(), COUNTS[cohort]
    goals = {"uniform": np.ones(CLASSES), "global": COUNTS.sum(0), "cohort": counts.sum(0)}
    goal = goals[target] / goals[target].sum() if isinstance(target, str) else target
    d = []
    for row in counts / counts.sum(1, keepdims=True):
        if metric == "kl":
            d.append(sum(p * np.log(p / t) for p, t in zip(row, goal, strict=True) if p))
        elif metric == "cosine":
            d.append(1 - row @ goal / np.linalg.norm(row) / np.linalg.norm(goal))
        else:
            d.append(np.linalg.norm(row - goal, ord=int(metric[1])))
    d = np.array(d) / (sum(d) if normalise and sum(d) else 1)
    p = np.maximum(0, n - a * d + b)
    return p / p.sum() if p.sum() else n


def disco(world, *hyper):
    w = world.start
    for t in range(ROUNDS):
        cohort = world.cohort(t)
        w = sum(p * world.local(t, k, w) for p, k in zip(weights(cohort, *hyper), cohort, strict=True))
    return w


@pytest.mark.parametrize("metric", ["kl", "l1", "l2", "cosine"])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("target", ["uniform", "global", "cohort", TARGET])
def test_feddisco(metric, normalise, target):
    world, a, b = World(), 0.3, 0.1
    expected = disco(world, a, b, metric, normalise, target)
    method = f"disco(a={a}, b={b}, metric={metric}, normalise={normalise}, target={target})"
    assert far(world.trained(method, "loop").server.w, expected) < 1e-12
    if metric == "kl":
        assert far(world.trained(method, "stack").server.w, expected) < 1e-10


def test_feddisco_falls_back_to_sizes():
    world = World()
    assert far(world.trained("disco(a=50, b=0)").server.w, disco(world, 50.0, 0.0, "kl", True, "uniform")) < 1e-12
    nobody_counts = world.trained("disco(a=1e9, b=0, normalise=False, metric=l1)").server.w
    assert far(nobody_counts, world.trained("fedavg").server.w) < 1e-12


@pytest.mark.parametrize("normalise", [True, False])
def test_a_client_infinitely_far_from_the_target_has_no_weight(normalise):
    n, d = torch.tensor([0.4, 0.3, 0.3]), torch.tensor([0.1, 0.3, torch.inf])
    near = torch.tensor([0.25, 0.75]) if normalise else d[:2]
    p = n[:2] - 0.2 * near + 0.1
    torch.testing.assert_close(disco_weights(n, d, 0.2, 0.1, normalise), torch.cat([p / p.sum(), torch.zeros(1)]))
    torch.testing.assert_close(disco_weights(n, d, 0.0, 0.1, normalise), (n + 0.1) / 1.3)  # sizes alone
    torch.testing.assert_close(disco_weights(n, torch.full((3,), torch.inf), 0.2, 0.1, normalise), n)


def test_a_target_without_a_class_that_clients_have_keeps_the_model_finite():
    world = World()
    simulation = world.trained("disco(target=(0.5, 0.5, 0.0, 0.0))")
    assert simulation.server.w.isfinite().all()


@pytest.mark.parametrize("target", [(0.5, 0.4), (0.5, 0.6, -0.1, 0.0), (0.3, 0.3, 0.3, 0.3), (0.5, 0.5)])
def test_a_target_is_shares_of_every_class(target):
    with pytest.raises(UserError, match="disco's target"):
        World().federation(f"disco(target={target})")


@pytest.mark.parametrize("kind", ENGINES)
def test_neutral_disco_is_fedavg_to_the_bit(kind):
    world = World()
    assert torch.equal(world.trained("disco(a=0, b=0)", kind).server.w, world.trained("fedavg", kind).server.w)
    neutral = "disco(a=0, b=0, target=cohort)"
    assert torch.equal(world.trained(neutral, kind).server.w, world.trained("fedavg", kind).server.w)


@pytest.mark.parametrize("kind", ENGINES)
def test_a_cohorts_target_is_its_own_distribution(kind):
    world = World()
    simulation, seen = world.federation("disco(target=cohort)", kind), []
    run = simulation.engine.run
    simulation.engine.run = lambda job, meanwhile: seen.append((job, run(job, meanwhile))) or seen[-1][1]
    for _ in range(3):
        simulation.advance()
    probes = [(job, replies) for job, replies in seen if job.kind == "probe"]
    targets = [job.sent["disco"]["target"] for job, _ in seen if job.kind == "train"]
    assert len(probes) == 3
    for (job, replies), target in zip(probes, targets, strict=True):
        own = COUNTS[job.cohort.ids]
        assert list(replies.uploads) == ["disco.counts"]
        assert replies.each("disco.counts").tolist() == own.tolist()
        assert far(target, torch.as_tensor(own.sum(0) / own.sum())) < 1e-15


def test_a_global_target_is_all_clients_distribution_and_nobody_is_asked_for_it():
    simulation, seen = World().federation("disco(target=global)"), []
    run = simulation.engine.run
    simulation.engine.run = lambda job, meanwhile: seen.append(job) or run(job, meanwhile)
    for _ in range(3):
        simulation.advance()
    assert [job.kind for job in seen] == ["train"] * 3
    for job in seen:
        assert far(job.sent["disco"]["target"], torch.as_tensor(COUNTS.sum(0) / COUNTS.sum())) < 1e-15


def test_a_server_that_does_not_know_all_labels_refuses_them_as_target():
    setup = replace(World().federation("fedavg").setup, label_counts=None)
    with pytest.raises(UserError, match="set target=cohort"):
        Disco(target="global").init_server(setup)


# --- FedSkip


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize(("every", "final"), [(2, True), (3, False), (3, True)])
def test_fedskip(kind, every, final):
    world = World(optimizer={"momentum": 0.6})
    w, slots, seen = world.start, [world.start] * COHORT, np.zeros(COHORT)
    for t in range(ROUNDS):
        cohort = world.cohort(t)
        slots = [world.local(t, k, slot) for k, slot in zip(cohort, slots, strict=True)]
        seen = seen + np.array(SIZES)[cohort]
        if (t + 1) % every == 0 or (final and t + 1 == ROUNDS):
            w = sum(n * slot for n, slot in zip(seen / seen.sum(), slots, strict=True))
            slots, seen = [w] * COHORT, np.zeros(COHORT)
        else:
            order = stream(0, "server/skip", round=t).permutation(COHORT)
            slots, seen = [slots[i] for i in order], seen[order]
    assert far(world.trained(f"skip(every={every}, final_aggregate={final})", kind).server.w, w) < 1e-10


@pytest.mark.parametrize("kind", ENGINES)
def test_skipping_nothing_is_fedavg_to_the_bit(kind):
    world = World()
    assert torch.equal(world.trained("skip(every=1)", kind).server.w, world.trained("fedavg", kind).server.w)
    for method in ("scaffold", "avgm", "drift"):
        assert identical(
            {k: v for k, v in held(world.trained(f"{method}+skip(every=1)", kind)).items() if "skip" not in k},
            held(world.trained(method, kind)),
        )


@pytest.mark.parametrize(
    "method", ["drift", "scaffold+drift", "drift+avgm", "creff(per_class=2, match_steps=1, head_epochs=1)"]
)
@pytest.mark.parametrize("first", [True, False])
def test_the_model_handed_out_stays_while_models_wander(method, first):
    world = World()
    simulation = world.federation(f"skip(every=3)+{method}" if first else f"{method}+skip(every=3)")
    before = simulation.deployed()[0]
    body = slice(0, None) if "creff" not in method else slice(0, 20)
    for t in range(ROUNDS):
        simulation.advance()
        after = simulation.deployed()[0]
        averaged = (t + 1) % 3 == 0 or t + 1 == ROUNDS
        assert torch.equal(before[body], after[body]) != averaged
        before = after


def test_everybody_takes_part_in_some_round():
    world = World()
    assert {k for t in range(ROUNDS) for k in world.cohort(t)} == set(range(N))
