"""CompiledTraining code trains the same models as the loop."""

import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from helpers import advanced, apart, federation, held, identical, toy
from made_up_strands import MADE_UP
from networks import NETWORKS, Choosing, Normed, Recurrent
from test_stack_is_loop import CHAINS, OPTIMIZERS, WORK, assert_same

from fedbraid.core.strand import Strand
from fedbraid.engines.codegen import libraries
from fedbraid.engines.codegen.c_code import Unsupported, generate_c
from fedbraid.engines.codegen.c_operations import OPERATIONS
from fedbraid.engines.codegen.libraries import NotCompiled, library
from fedbraid.engines.codegen.machine import CompiledTraining
from fedbraid.engines.codegen.trace import record
from fedbraid.errors import UserError


def compiled_and_loop(method, **settings):
    """What both engines hold after three rounds, and the lines of their logs; nothing fell back to the stack."""
    results = []
    for kind in ("compiled", "loop"):
        simulation = federation(method, own=MADE_UP, engine={"kind": kind, "workers": 2}, **settings)
        lines = [simulation.advance() for _ in range(3)]
        results.append((held(simulation), lines))
        assert kind == "loop" or not simulation.engine.stack.refused
    return results


@pytest.mark.parametrize("method", CHAINS)
def test_every_chain_on_ragged_clients_with_partial_participation(method):
    assert_same(compiled_and_loop(method, sampling={"clients": 4}, optimizer={"momentum": 0.5, "weight_decay": 0.01}))


@pytest.mark.parametrize("work", WORK)
def test_every_kind_of_local_work(work):
    assert_same(compiled_and_loop("scaffold+anchor+teach", local=WORK[work], sampling={"clients": 5}))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer(optimizer):
    assert_same(compiled_and_loop("drift+anchor+sharp", optimizer=OPTIMIZERS[optimizer]))


def test_a_schedule():
    assert_same(compiled_and_loop("scaffold", schedule={"shape": "cosine", "warmup": 1}))


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_changes_no_bit(workers):
    """Also where products go to BLAS."""
    settings = {"data": toy((9, 30, 17), (20,)), "model": {"name": "mlp", "hidden": [40]}, "local": {"batch": 16}}
    one, other = (
        held(
            advanced(federation("scaffold", engine={"kind": "compiled", "workers": n, "dtype": "float32"}, **settings))
        )
        for n in (2, workers)
    )
    assert identical(one, other)


def test_large_products_in_single_precision_agree_with_the_loop():
    settings = {"data": toy((9, 30, 17), (20,)), "model": {"name": "mlp", "hidden": [40]}, "local": {"batch": 16}}
    one, other = (
        held(advanced(federation("prox", engine={"kind": kind, "dtype": "float32"}, **settings)))
        for kind in ("compiled", "loop")
    )
    assert apart(one, other) < 1e-6


def test_images_that_change_and_bytes():
    settings = {"data": toy((3, 1, 4), (1, 6, 6), pixels=True), "augment": {"flip": 0.5}}
    assert_same(compiled_and_loop("prox", **settings))


def test_regression():
    assert_same(compiled_and_loop("scaffold+prox", data=toy(task="regression")))


def test_frozen_parameters():
    module = NETWORKS["Shortcut"]()
    next(module.parameters()).requires_grad_(False)
    assert_same(compiled_and_loop("scaffold", module=module))


@pytest.mark.parametrize("network", ["Shortcut", "Embedded", "Tied"])
def test_networks_with_other_operations(network):
    assert_same(compiled_and_loop("prox", module=NETWORKS[network](), optimizer={"momentum": 0.5}))


# --- what cannot be compiled


@dataclass(frozen=True)
class Sorted(Strand):
    """Asks for an operation that is not written as C."""

    def loss(self, out, batch, c):
        return batch.mean(out.logits.sort(-1).values[:, 0])


def test_an_operation_that_is_not_known_is_named_where_compiling_was_asked_for():
    with pytest.raises(UserError, match=r"cannot be compiled: the operation sort; set engine\.kind=auto"):
        federation(Sorted(), engine={"kind": "compiled"})


def test_batchnorm_and_functional_dropout_are_compiled():
    for module in (Normed(), Recurrent(dropout=0.3)):
        data = toy((4, 8, 12, 6))
        compiled, loop = (federation(module=module, data=data, engine={"kind": k}) for k in ("compiled", "loop"))
        assert apart(held(advanced(compiled)), held(advanced(loop))) <= 1e-9
        assert compiled.engine.stack.refused == ""


def test_a_network_that_cannot_be_batched_is_refused_with_a_sentence():
    with pytest.raises(UserError, match="needs a network that can be batched over clients"):
        federation(module=Choosing(), engine={"kind": "compiled"})


def test_a_run_goes_on_as_a_stack_where_a_later_program_cannot_be_compiled(monkeypatch, caplog):
    """A run that was begun compiled meets clients whose steps need another program, and the compiler is gone."""
    caplog.set_level("INFO", logger="fedbraid")
    compiled = federation("prox", engine={"kind": "compiled"})
    stack = advanced(federation("prox", engine={"kind": "stack"}))

    def gone(text, cap):
        raise NotCompiled("the compiler is gone")

    monkeypatch.setattr("fedbraid.engines.compiled.library", gone)
    assert identical(held(advanced(compiled)), held(stack))
    assert "runs as a stack, it cannot be compiled: the compiler is gone" in caplog.text


# --- libraries on disk

PROGRAM = "void train(void) {}\n"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBRAID_CACHE", str(tmp_path))
    return tmp_path / "compiled"


def test_a_library_is_made_once(cache, monkeypatch):
    first = library(PROGRAM, 60)
    monkeypatch.setattr(libraries, "_compiled", None)  # would fail if it were called
    assert library(PROGRAM, 0) == first
    assert sorted(f.suffix for f in cache.iterdir()) == [".json", ".so"]


@pytest.mark.parametrize("harm", [lambda f: f.write_bytes(f.read_bytes()[:-100]), lambda f: f.unlink()])
def test_a_library_that_is_not_whole_is_made_anew(cache, harm):
    made = library(PROGRAM, 60)
    whole = made.read_bytes()
    harm(made)
    assert library(PROGRAM, 60).read_bytes() == whole


def test_a_record_that_is_not_whole_is_made_anew(cache):
    record_of_it = library(PROGRAM, 60).with_suffix(".json")
    record_of_it.write_text('{"sha')
    assert library(PROGRAM, 60).exists() and "sha256" in record_of_it.read_text()


def test_what_the_compiler_refuses_is_remembered(cache, monkeypatch):
    with pytest.raises(NotCompiled, match="refuses it"):
        library("no C", 60)
    monkeypatch.setattr(libraries, "_compiled", None)
    with pytest.raises(NotCompiled, match=r"refuses it.*\(remembered in"):
        library("no C", 60)


def test_a_compiler_that_takes_too_long_is_stopped_and_not_blamed_for_ever(cache, monkeypatch, tmp_path):
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("CC", str(slow))
    began = time.monotonic()
    with pytest.raises(NotCompiled, match=r"more than 0\.2 s"):
        library(PROGRAM, 0.2)
    assert time.monotonic() - began < 30
    assert not list(cache.iterdir())


def test_no_compiler(cache, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(NotCompiled, match="no C compiler called no-such-compiler"):
        library(PROGRAM, 60)


def test_the_least_used_libraries_are_forgotten(cache, monkeypatch):
    monkeypatch.setattr(libraries, "KEPT", 2)
    made = [library(f"/* {n} */ {PROGRAM}", 60) for n in range(3)]
    assert [m.exists() for m in made] == [False, True, True]


# --- calling them


def machine(cache, function, inputs, workers=1):
    """`function` carries its first input; the second comes from a plan."""
    source = generate_c(record(function, inputs), 1, 1, OPERATIONS)
    return source, CompiledTraining(library(source.text, 60), source.scratch, workers)


def test_python_goes_on_while_a_library_runs():
    def step(state, row):
        return [state.exp().log().sqrt().square() + row]

    rows = 2000
    state, plan = torch.ones(5000, dtype=torch.float64), torch.zeros(rows, 1, dtype=torch.float64)
    source, run = machine(None, step, [state, plan[0]])
    memory = [state, plan, *source.constants]
    pointers = np.array([[t.data_ptr() for t in memory]])
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    began = time.monotonic()
    run(np.array([0]), np.array([rows]), pointers)
    ended = time.monotonic()
    done.set()
    thread.join()
    during = [t for t in ticks if began < t < ended]
    assert len(during) > 5
    torch.testing.assert_close(state, torch.ones_like(state))


def test_a_step_that_writes_into_what_it_was_given_is_unsupported():
    with pytest.raises(Unsupported, match="writes into what it was given"):
        generate_c(record(lambda state, row: [state.add_(row)], [torch.ones(2), torch.ones(2)]), 1, 1, OPERATIONS)


def test_values_that_change_places_are_all_read_before_any_is_written():
    one, other, plan = torch.ones(3), torch.full((3,), 2.0), torch.tensor([[10.0], [20.0]])
    source = generate_c(record(lambda a, b, row: [b + row, a], [one, other, plan[0]]), 2, 1, OPERATIONS)
    run = CompiledTraining(library(source.text, 60), source.scratch, 1)
    run(np.array([0]), np.array([2]), np.array([[t.data_ptr() for t in (one, other, plan)]]))
    assert one.tolist() == [21.0] * 3 and other.tolist() == [12.0] * 3
