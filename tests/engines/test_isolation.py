"""What a client hands in depends on its own data, its own state and what it received: on nothing else."""

import numpy as np
import pytest
import torch
from helpers import SIZES, advanced, apart, federation, toy
from jobs import permuted, training_job, uploads
from made_up_strands import MADE_UP

from fedbraid.core.plan import Plan

ROUNDING = 1e-12
CHAINS = ["scaffold+prox", "anchor+teach+tracker", "mix+teach+sharp", "skip+scaffold", "fair+halfway"]
WORK = {"batch": 4, "epochs": 2, "least": 1}


def second_round(method, **settings):
    """A federation whose strands have state already."""
    settings = {"local": WORK, "optimizer": {"momentum": 0.5}} | settings
    return advanced(federation(method, own=MADE_UP, **settings), 1)


@pytest.mark.parametrize("method", CHAINS)
def test_padding_changes_nothing(method):
    plain = uploads(second_round(method))
    wider, longer = second_round(method), second_round(method)
    wider.engine.width += 5
    longer.engine.stack.align = True
    assert apart(plain, uploads(wider)) <= ROUNDING
    assert apart(plain, uploads(longer)) <= ROUNDING


@pytest.mark.parametrize("method", ["fedavg", "scaffold+prox", "teach+tracker", "mix+sharp"])
def test_a_client_with_nothing_to_do_changes_nothing_and_hands_in_what_it_received(method):
    plain, idle = second_round(method), second_round(method)
    expected, job = uploads(plain), training_job(idle)
    make = idle.engine.plan

    def plan(seed, round, client, width):
        made = make(seed, round, client, width)
        if client != 2:
            return made
        return Plan(made.positions, 0 * made.counts, made.first, made.draws)

    idle.engine.plan = plan
    got = uploads(idle, job)
    others = [0, 1, 3, 4, 5]
    for key in expected:
        torch.testing.assert_close(got[key][others], expected[key][others], rtol=0, atol=ROUNDING)
    assert torch.equal(got["model"][2], job.model)
    assert got["log: samples"][2] == 0


@pytest.mark.parametrize("method", CHAINS)
def test_permuting_the_cohort_permutes_what_comes_back(method):
    order = [3, 0, 5, 1, 4, 2]
    here, there = (second_round(method) for _ in range(2))
    job = training_job(here)
    got = uploads(there, permuted(job, order))
    for key, value in uploads(here, job).items():
        torch.testing.assert_close(got[key], value[order], rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("method", CHAINS)
def test_changing_one_clients_data_changes_only_its_own_upload(method):
    here, there = (second_round(method) for _ in range(2))
    job = training_job(here)
    there.clients.samples.x[there.clients.own(2)] += 1.0
    before, after = uploads(here, job), uploads(there, job)
    others = [0, 1, 3, 4, 5]
    for key, value in before.items():
        torch.testing.assert_close(after[key][others], value[others], rtol=0, atol=ROUNDING)
    assert (after["model"][2] - before["model"][2]).abs().max() > 1e-4


@pytest.mark.parametrize("method", [c for c in CHAINS if "skip" not in c and "fair" not in c])
def test_who_else_is_sampled_changes_nothing(method):
    everybody = uploads(second_round(method))
    for ids in ([2], [4, 1], [5, 2, 0]):
        simulation = second_round(method)
        some = uploads(simulation, training_job(simulation, ids))
        for key, value in everybody.items():
            torch.testing.assert_close(some[key], value[ids], rtol=0, atol=ROUNDING)


def test_a_clients_batches_do_not_depend_on_the_population():
    """The same client in a smaller federation trains the same model."""
    dataset, partition = toy()
    fewer = type(partition)(partition.clients[:4])
    all_six, only_four = (
        uploads(federation("mix", own=MADE_UP)),
        uploads(federation("mix", own=MADE_UP, data=(dataset, fewer))),
    )
    torch.testing.assert_close(only_four["model"], all_six["model"][:4], rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("kind", ["stack", "loop"])
def test_training_writes_into_nothing_it_was_given(kind):
    simulation = second_round("scaffold+skip+teach+anchor", engine={"kind": kind})
    job = training_job(simulation)
    given = [job.model, job.buffers, job.cohort.sizes, *simulation.store.read(range(len(SIZES)))["scaffold"].values()]
    before = [t.clone() for t in given]
    uploads(simulation, job)
    assert all(torch.equal(old, new) for old, new in zip(before, given, strict=True))


def test_a_partition_may_leave_samples_out():
    dataset, partition = toy()
    short = type(partition)(tuple(np.sort(c)[: max(1, len(c) - 1)] for c in partition.clients))
    simulation = federation(data=(dataset, short), local={"batch": 0, "epochs": 1})
    assert simulation.advance()["backward_samples"] == sum(max(1, n - 1) for n in SIZES)
