"""The plan: which samples come when, and what is drawn for them."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from made_up_strands import Mix

from fedbraid.core.chain import Chain
from fedbraid.core.plan import LocalWork, make_plan
from fedbraid.core.random import stream
from fedbraid.core.strand import Strand
from fedbraid.errors import UserError

SIZES, BATCHES, EPOCHS = st.integers(1, 60), st.integers(0, 20), st.integers(1, 4)


def plan(work, size, *, width=None, chain=Chain(), seed=0, round=0, client=0):  # noqa: B008
    return make_plan(chain, work, size, width or max(size, work.batch), seed=seed, round=round, client=client)


def epochs_of(made):
    """The samples of each epoch, in order."""
    starts = [*np.flatnonzero(made.first).tolist(), len(made)]
    return [
        np.concatenate([made.positions[t, : made.counts[t]] for t in range(a, b)])
        for a, b in itertools.pairwise(starts)
    ]


@given(SIZES, BATCHES, EPOCHS, st.integers(0, 99))
def test_every_sample_comes_exactly_once_in_an_epoch(size, batch, epochs, seed):
    made = plan(LocalWork(batch, epochs), size, seed=seed)
    each = epochs_of(made)
    assert len(each) == epochs
    for samples in each:
        assert sorted(samples) == list(range(size))
    assert made.samples == epochs * size


@given(SIZES, BATCHES, EPOCHS)
def test_all_batches_are_full_but_the_last_of_an_epoch(size, batch, epochs):
    made = plan(LocalWork(batch, epochs), size)
    full = min(batch or size, size)
    per_epoch = -(-size // full)
    assert len(made) == epochs * per_epoch
    assert made.counts.tolist() == ([full] * (per_epoch - 1) + [size - full * (per_epoch - 1)]) * epochs


@given(SIZES, BATCHES, EPOCHS)
def test_drop_last_leaves_the_smaller_batch_out_unless_it_is_the_only_one(size, batch, epochs):
    made = plan(LocalWork(batch, epochs, drop_last=True), size)
    full = min(batch or size, size)
    assert (made.counts == full).all()
    for samples in epochs_of(made):
        assert len(set(samples)) == len(samples) == size // full * full


@given(SIZES, BATCHES, st.integers(1, 30), st.booleans())
def test_a_number_of_steps_is_kept_and_goes_on_through_epochs(size, batch, steps, drop_last):
    made = plan(LocalWork(batch, steps=steps, drop_last=drop_last), size)
    assert len(made) == steps
    *whole, last = epochs_of(made)
    for samples in whole:
        assert len(set(samples)) == len(samples)
        assert drop_last or sorted(samples) == list(range(size))
    assert len(set(last)) == len(last)


@given(SIZES, st.integers(1, 20), EPOCHS, st.integers(1, 8))
def test_epochs_differ_in_their_order(size, batch, epochs, seed):
    assume(size > 12 and epochs > 1)
    each = epochs_of(plan(LocalWork(batch, epochs), size, seed=seed))
    assert not np.array_equal(each[0], each[1])


@pytest.mark.parametrize("work", [LocalWork(4, epochs=5, least=2), LocalWork(4, steps=5, least=2)])
def test_stragglers_draw_their_work_from_least_to_most(work):
    amounts = [
        len(made) if work.steps else int(made.first.sum())
        for made in (plan(work, 7, round=t, client=k) for t in range(10) for k in range(10))
    ]
    assert set(amounts) == {2, 3, 4, 5}


def test_without_stragglers_everybody_does_the_most():
    assert {len(plan(LocalWork(4, steps=5), 7, round=t)) for t in range(20)} == {5}


@given(SIZES, BATCHES, EPOCHS, st.integers(0, 15))
def test_a_wider_batch_axis_is_padding_alone(size, batch, epochs, extra):
    work, chain = LocalWork(batch, epochs), Chain((Mix(),))
    one = plan(work, size, chain=chain, client=3)
    wide = plan(work, size, width=one.positions.shape[1] + extra, chain=chain, client=3)
    assert np.array_equal(one.counts, wide.counts) and np.array_equal(one.first, wide.first)
    for t, count in enumerate(one.counts):
        assert np.array_equal(one.positions[t, :count], wide.positions[t, :count])
        assert np.array_equal(one.draws["mix.partner"][t, :count], wide.draws["mix.partner"][t, :count])
    assert np.array_equal(one.draws["mix.share"], wide.draws["mix.share"])


@dataclass(frozen=True)
class Greedy(Strand):
    def draw(self, d):
        return {"z": d.steps.random((len(d.counts), 50))}, {}


@given(SIZES, EPOCHS)
def test_a_strands_draws_disturb_neither_the_batches_nor_other_strands(size, epochs):
    work = LocalWork(4, epochs, least=1)
    alone, mixed = plan(work, size), plan(work, size, chain=Chain((Mix(),)))
    both = plan(work, size, chain=Chain((Greedy(), Mix())))
    for made in (mixed, both):
        assert np.array_equal(alone.positions, made.positions)
        assert np.array_equal(alone.counts, made.counts)
    assert all(np.array_equal(mixed.draws[key], both.draws[key]) for key in mixed.draws)
    assert set(both.draws) == {"greedy.z", "mix.partner", "mix.share"}


def test_plans_differ_between_seeds_rounds_and_clients():
    work = LocalWork(5)
    keys = [{}, {"seed": 1}, {"round": 1}, {"client": 1}]
    assert len({plan(work, 40, **key).positions.tobytes() for key in keys}) == 4
    assert np.array_equal(plan(work, 40).positions, plan(work, 40).positions)


@pytest.mark.parametrize(
    "wrong",
    [{"batch": -1}, {"epochs": 0}, {"steps": -1}, {"least": -1}, {"least": 2}, {"steps": 3, "least": 4}],
)
def test_impossible_work_is_refused(wrong):
    with pytest.raises(UserError, match=r"local"):
        LocalWork(**wrong)


@pytest.mark.parametrize("size", [1, 7, 64, 300])
def test_each_epoch_is_one_more_permutation_of_the_clients_stream(size):
    """The draws are part of what a seed means: they must not change with how they are made."""
    plan = make_plan(Chain(), LocalWork(batch=8, epochs=3), size, 8, seed=5, round=2, client=4)
    rng = stream(5, "local", round=2, client=4)
    drawn = [int(p) for t, n in enumerate(plan.counts) for p in plan.positions[t, :n]]
    assert drawn == [int(p) for _ in range(3) for p in rng.permutation(size)]
