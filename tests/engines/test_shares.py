"""Clients that are spread over several engines train as they do in one; clients that are lost before training."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import federation
from jobs import training_job

from fedbraid.core.round import one_round
from fedbraid.storage.client_store import ClientStore

CHAINS = ["fedavg", "scaffold(by_size=true)", "mixup", "rfedavg_plus(noise=1.0)", "moon+asd", "fedacd"]


def share(simulation, numbers):
    """An engine that holds the clients of these numbers only."""
    whole = simulation.engine
    return replace(
        whole,
        clients=whole.clients.only(numbers),
        store=ClientStore(simulation.store.blank),
        population_mean=whole.mean_size,
        least_width=whole.width,
    )


@pytest.mark.parametrize("kind", ["stack", "loop"])
@pytest.mark.parametrize("method", CHAINS)
def test_a_share_of_the_clients_trains_as_it_does_among_all(method, kind):
    simulation = federation(method, engine={"kind": kind}, augment={})
    simulation.advance()  # states are their own now
    numbers = [4, 1, 5]
    here = share(simulation, numbers)
    here.store.write(numbers, simulation.store.read(numbers)) if simulation.store.blank else None
    job = training_job(simulation)
    asked = np.array([1, 4])
    there = here.run(job.only(asked))
    whole = simulation.engine.run(job)
    for key, value in there.uploads.items():
        torch.testing.assert_close(value, whole.uploads[key][torch.as_tensor(asked)], rtol=1e-9, atol=1e-12)
    if simulation.store.blank:
        for strand, tree in here.store.read([1, 4]).items():
            for name, value in tree.items():
                expected = simulation.store.read([1, 4])[strand][name]
                torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)


def test_a_share_holds_no_samples_of_others():
    simulation = federation()
    clients = simulation.clients.only([3, 0])
    assert len(clients.samples) == simulation.clients.sizes[[3, 0]].sum()
    theirs = clients.samples.x[clients.own(clients.places([0])[0])]
    assert torch.equal(theirs, simulation.clients.samples.x[simulation.clients.own(0)])
    assert clients.numbered(clients.places([0, 3])) == [0, 3]


@pytest.mark.parametrize("method", ["rfedavg_plus", "disco(target=cohort)+rfedavg", "qfair+rfedavg_plus"])
def test_who_does_not_answer_the_probe_counts_no_further(method):
    """The round is the one of a cohort without the lost clients, had they not been drawn."""
    lost, all_there = federation(method), federation(method)
    came = np.array([0, 2, 3, 5])

    def rounds(simulation, cohort, shrink):
        flow = one_round(
            simulation.chain, simulation.lr, simulation.setup, simulation.server, cohort, simulation.config.seed
        )
        job = next(flow)
        assert job.kind == "probe"
        answers = simulation.engine.run(job.only(came) if shrink else job)
        job = flow.send(answers.of_those_at(came) if shrink else answers)
        assert job.cohort.ids.tolist() == came.tolist()
        with pytest.raises(StopIteration) as end:
            flow.send(simulation.engine.run(job))
        return end.value.value

    shrunk = rounds(lost, lost.cohort(), shrink=True)
    small = rounds(all_there, all_there.cohort().only(came), shrink=False)
    torch.testing.assert_close(shrunk.w, small.w, rtol=1e-12, atol=1e-12)


def test_places_compose_when_clients_are_lost_twice():
    simulation = federation()
    replies = simulation.engine.run(training_job(simulation).only(np.array([1, 3])))
    first = replace(replies, came=np.array([0, 2]))  # two of the three who were asked
    assert first.of_those_at(np.array([0, 2, 5])).came.tolist() == [0, 5]
    assert replies.of_those_at(np.array([1, 3])).came.tolist() == [1, 3]
