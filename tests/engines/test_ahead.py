"""What is done for the next round while clients train, and who does it."""

import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from helpers import advanced, federation, held, identical, toy
from made_up_strands import MADE_UP

from fedbraid.core.memo import Memo
from fedbraid.core.strand import Strand
from fedbraid.engines import local_engine as local
from fedbraid.engines.codegen.c_code import generate_c
from fedbraid.engines.codegen.c_operations import OPERATIONS
from fedbraid.engines.codegen.libraries import library
from fedbraid.engines.codegen.machine import CompiledTraining
from fedbraid.engines.codegen.trace import record
from fedbraid.training.simulation import Simulation

ENGINES = [{"kind": "compiled", "workers": 2}, {"kind": "loop", "workers": 2}, {"kind": "stack"}]
LOSSES = {"clients": 5, "dropout": 0.3}


@pytest.mark.parametrize("engine", ENGINES, ids=[e["kind"] for e in ENGINES])
@pytest.mark.parametrize("method", ["fedavg", "scaffold+anchor+teach", "mix+tracker"])
def test_planning_ahead_changes_no_bit(method, engine, monkeypatch):
    settings = {"own": MADE_UP, "sampling": LOSSES, "engine": engine}
    ahead = held(advanced(federation(method, **settings)))
    monkeypatch.setattr(Simulation, "plan_ahead", lambda self: None)
    assert identical(ahead, held(advanced(federation(method, **settings))))


@pytest.mark.parametrize("engine", ENGINES, ids=[e["kind"] for e in ENGINES])
def test_every_round_is_planned_once_and_none_after_the_last(engine, monkeypatch):
    simulation = federation("scaffold", sampling=LOSSES, rounds=4, engine=engine)
    made, make = Counter(), local.make_plan

    def counted(*args, round, client, **more):
        made[round, client] += 1
        return make(*args, round=round, client=client, **more)

    monkeypatch.setattr(local, "make_plan", counted)
    advanced(simulation)
    assert {round for round, _ in made} == {0, 1, 2, 3}
    assert set(made.values()) == {1}


@pytest.mark.parametrize("engine", ENGINES[:2], ids=["compiled", "loop"])
def test_the_next_round_is_planned_before_this_one_ends(engine, monkeypatch):
    simulation = federation("fedavg", engine=engine)
    simulation.advance()
    monkeypatch.setattr(local, "make_plan", None)  # as it is not needed any more
    simulation.plan_ahead = lambda: None
    simulation.advance()


@pytest.mark.parametrize("engine", ENGINES[:2], ids=["compiled", "loop"])
def test_a_cohort_in_parts_is_planned_ahead_once(engine):
    simulation = federation("fedavg", engine=engine | {"chunk": 2})
    calls = []
    simulation.plan_ahead = lambda: calls.append(simulation.server.round)
    advanced(simulation)
    assert calls == [0, 1, 2]


def test_what_was_asked_for_last_is_not_made_again():
    latest, made = Memo(), []

    def make(value):
        return lambda: made.append(value) or value

    assert [latest.of(key, make(key)) for key in (1, 1, 2, 1)] == [1, 1, 2, 1]
    assert made == [1, 2, 1]
    with pytest.raises(ZeroDivisionError):
        latest.of(3, lambda: 1 / 0)
    assert latest.of(3, make(3)) == 3


# --- a library and the thread that calls it


def long_steps(clients: int, steps: int) -> tuple[torch.Tensor, np.ndarray, CompiledTraining]:
    """Clients that add up ones, slowly; where their memory lies; and a library with two workers."""
    state, row = torch.zeros(clients, 2000, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)

    def step(state, row):
        return [state + row.exp().log()]

    source = generate_c(record(step, [state[0], row[0]]), 1, 1, OPERATIONS)
    rows = row.expand(steps, 1).contiguous()
    constants = [t.data_ptr() for t in source.constants]
    pointers = np.array([[one.data_ptr(), rows.data_ptr(), *constants] for one in state])
    machine = CompiledTraining(library(source.text, 60), source.scratch, 2)
    machine.held = rows, source.constants
    machine(np.zeros(clients), np.zeros(clients), pointers)  # starts its thread
    return state, pointers, machine


def test_clients_train_while_python_is_busy():
    """The helper's thread takes one client after the other without the lock of the interpreter."""
    state, pointers, machine = long_steps(6, 500)
    numbers, seen = state.numpy(), []

    def busy() -> None:
        limit = time.monotonic() + 20
        while numbers[-1, -1] < 500 and time.monotonic() < limit:
            pass
        seen.append(numbers[-1, -1])

    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # whoever has the lock keeps it
    try:
        machine(np.zeros(6), np.full(6, 500), pointers, busy)
    finally:
        sys.setswitchinterval(before)
    assert seen == [500]


def test_a_mistake_meanwhile_waits_for_those_who_train():
    state, pointers, machine = long_steps(4, 20_000)

    def mistake() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        machine(np.zeros(4), np.full(4, 20_000), pointers, mistake)
    assert (state == 20_000).all()  # by the helper alone


# --- the loop


@dataclass(frozen=True)
class Fails(Strand):
    """Fails on the client with most samples, which trains first."""

    def begin(self, w, c):
        BEGUN.append(int(c.size))
        if int(c.size) == 30:
            raise ArithmeticError("no")
        time.sleep(0.05)
        return {}


BEGUN: list[int] = []


def test_clients_that_have_not_begun_do_not_once_one_has_failed():
    BEGUN.clear()
    sizes = (3, 30, 4, 5, 6, 7, 8, 9)
    with pytest.raises(ArithmeticError):
        federation(Fails(), data=toy(sizes), engine={"kind": "loop", "workers": 2}).advance()
    assert 30 in BEGUN[:2], "two begin at once, and either may be the first to say so"
    assert len(BEGUN) <= 4


def test_the_loop_keeps_its_threads():
    simulation = federation("fedavg", engine={"kind": "loop", "workers": 2})
    simulation.advance()
    mine = {t.ident for t in threading.enumerate()}
    advanced(simulation, 1)
    assert {t.ident for t in threading.enumerate()} <= mine, "none is new"
