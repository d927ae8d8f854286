"""When the clients of a stack take their steps."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedbraid.core.chain import Chain
from fedbraid.core.plan import LocalWork, make_plan
from fedbraid.engines.step_schedule import longest_first, make_schedule, rung

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=9)
WORK = st.builds(
    lambda batch, epochs, steps, least: LocalWork(batch, epochs, steps, min(least, steps or epochs)),
    st.integers(0, 9),
    st.integers(1, 4),
    st.integers(0, 12),
    st.integers(0, 3),
)


def sorted_plans(sizes, work):
    plans = [make_plan(Chain(), work, n, max(sizes), seed=1, round=2, client=k) for k, n in enumerate(sizes)]
    return [plans[k] for k in longest_first(plans)]


@given(SIZES, WORK, st.booleans())
def test_every_client_takes_its_steps_in_order_and_no_others(sizes, work, align):
    plans = sorted_plans(sizes, work)
    schedule = make_schedule(plans, align_epochs=align)
    for k, plan in enumerate(plans):
        busy = schedule.counts[k] > 0
        np.testing.assert_array_equal(schedule.counts[k][busy], plan.counts)
        np.testing.assert_array_equal(schedule.positions[k][busy], plan.positions)


@given(SIZES, WORK, st.booleans())
def test_those_who_work_stand_in_the_active_prefix_whose_last_client_works(sizes, work, align):
    schedule = make_schedule(sorted_plans(sizes, work), align_epochs=align)
    for t, active in enumerate(schedule.active):
        assert schedule.counts[active - 1, t] > 0
        assert not schedule.counts[active:, t].any()


@given(SIZES, WORK)
def test_unaligned_nobody_waits_and_the_stack_only_shrinks(sizes, work):
    plans = sorted_plans(sizes, work)
    schedule = make_schedule(plans, align_epochs=False)
    assert len(schedule) == len(plans[0])
    assert (np.diff(schedule.active) <= 0).all()
    for k, plan in enumerate(plans):
        assert (schedule.counts[k, : len(plan)] > 0).all()


@given(SIZES, WORK)
def test_aligned_all_clients_begin_each_local_epoch_together(sizes, work):
    plans = sorted_plans(sizes, work)
    schedule = make_schedule(plans, align_epochs=True)
    begins = np.flatnonzero(schedule.new_epoch)
    assert len(begins) == max(int(plan.first.sum()) for plan in plans)
    for k, plan in enumerate(plans):
        times = np.flatnonzero(schedule.counts[k] > 0)
        np.testing.assert_array_equal(times[plan.first], begins[: int(plan.first.sum())])


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_a_rung_holds_its_clients_within_the_capacity_and_wastes_little(clients, capacity):
    clients = min(clients, capacity)
    size = rung(clients, capacity)
    assert clients <= size <= capacity
    assert size <= 1.25 * clients


@given(st.integers(1, 5000))
def test_rungs_are_monotone_and_few(capacity):
    rungs = [rung(clients, capacity) for clients in range(1, capacity + 1)]
    assert rungs == sorted(rungs)
    assert len(set(rungs)) <= 4 * capacity.bit_length()


@given(SIZES, WORK, st.booleans(), st.integers(0, 3))
def test_stretches_cover_the_timetable_in_order_and_their_steps_are_alike(sizes, work, align, spare):
    schedule = make_schedule(sorted_plans(sizes, work), align_epochs=align)
    capacity, at = len(sizes) + spare, 0
    for stretch in schedule.stretches(capacity):
        assert stretch.start == at and stretch.steps > 0
        assert stretch.begins_epoch == schedule.new_epoch[at]
        for t in range(at, at + stretch.steps):
            assert stretch.size == rung(int(schedule.active[t]), capacity)
            idle = stretch.size > len(sizes) or bool((schedule.counts[: stretch.size, t] == 0).any())
            assert stretch.guarded == idle
            assert t == at or not schedule.new_epoch[t]
        at += stretch.steps
    assert at == len(schedule)


def test_clients_alike_make_one_stretch_unless_their_epochs_matter():
    plans = sorted_plans([12, 12, 12], LocalWork(batch=4, epochs=5))
    (one,) = make_schedule(plans, align_epochs=False).stretches(3)
    assert (one.steps, one.size, one.guarded) == (15, 3, False)
    assert [s.steps for s in make_schedule(plans, align_epochs=True).stretches(3)] == [3] * 5
