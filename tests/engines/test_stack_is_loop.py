"""One definition, two engines: the stack and the loop train the same models."""

import pytest
import torch
from covering import chains, covering
from helpers import SIZES, advanced, apart, federation, held, identical, toy
from made_up_strands import MADE_UP

ROUNDING = 1e-12  # float64, three rounds; the contract is 1e-6
CHAINS = chains("prox(mu=0.3)+scaffold+avgm(nesterov=true)+disco")
WORK = {
    "epochs": {"batch": 4, "epochs": 2},
    "drop_last": {"batch": 4, "epochs": 2, "drop_last": True},
    "stragglers": {"batch": 4, "epochs": 3, "least": 1},
    "steps": {"batch": 4, "steps": 5},
    "straggling steps": {"batch": 4, "steps": 6, "least": 1},
    "full batch": {"batch": 0, "epochs": 2},
}
OPTIMIZERS = {
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True, "decay": 0.9},
    "weight decay": {"weight_decay": 0.1},
    "clip": {"clip": 0.3, "momentum": 0.5},
    "adam": {"name": "adam", "lr": 0.05, "weight_decay": 0.01},
    "adamw": {"name": "adamw", "lr": 0.01, "weight_decay": 0.1},
    "rmsprop": {"name": "rmsprop", "lr": 0.02, "clip": 1.0},
}


def by_engine(method, *, other=None, **settings):
    """What the stack and the loop hold after three rounds, and the lines of their logs."""
    results = []
    for engine in ({"kind": "stack"}, {"kind": "loop"} if other is None else other):
        simulation = federation(method, own=MADE_UP, engine=engine, **settings)
        lines = [simulation.advance() for _ in range(3)]
        results.append((held(simulation), lines))
    return results


def assert_same(results):
    (here, lines), (there, other_lines) = results
    assert apart(here, there) <= ROUNDING
    assert here["w"].isfinite().all()
    for line, other in zip(lines, other_lines, strict=True):
        assert line["train_loss"] == pytest.approx(other["train_loss"], rel=1e-12)
        exact = ("round", "clients", "client_ids", "lr", "accuracy", "bytes_down", "bytes_up", "backward_samples")
        assert {key: line[key] for key in exact} == {key: other[key] for key in exact}


@pytest.mark.parametrize("method", CHAINS)
def test_every_chain_on_ragged_clients_with_partial_participation(method):
    assert_same(by_engine(method, sampling={"clients": 4}, optimizer={"momentum": 0.5, "weight_decay": 0.01}))


@pytest.mark.parametrize(("work", "method"), covering(list(WORK), ["scaffold+anchor+teach", "mix+tracker"]))
def test_every_kind_of_local_work(method, work):
    assert_same(by_engine(method, local=WORK[work], sampling={"clients": 5}))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer(optimizer):
    assert_same(by_engine("drift+anchor+sharp", optimizer=OPTIMIZERS[optimizer]))


SCHEDULES = {
    "warm-up": ({"warmup": 1}, [0.05, 0.1, 0.1]),
    "step": ({"shape": "step", "milestones": [1, 2], "gamma": 0.5}, [0.1, 0.05, 0.025]),
    "cosine": ({"shape": "cosine", "warmup": 1}, [0.05, 0.1, 0.05]),
}


@pytest.mark.parametrize(("schedule", "rates"), SCHEDULES.values(), ids=SCHEDULES)
def test_every_schedule(schedule, rates):
    results = by_engine("scaffold+anchor+sharp", schedule=schedule)
    assert_same(results)
    assert [line["lr"] for line in results[1][1]] == pytest.approx(rates, rel=1e-12)
    assert apart(results[0][0], by_engine("scaffold+anchor+sharp")[0][0]) > 1e-4


@pytest.mark.parametrize(
    ("chunk", "method"), covering([1, 2, 3], ["scaffold+skip(every=2)+teach", "anchor+fair+tracker"])
)
def test_a_stack_in_chunks(method, chunk):
    assert_same(by_engine(method, other={"kind": "stack", "chunk": chunk}, optimizer={"momentum": 0.5}))


def test_cohorts_of_varying_size():
    results = by_engine("scaffold+teach+disco", sampling={"scheme": "bernoulli", "rate": 0.4})
    assert len({line["clients"] for line in results[0][1]}) > 1
    assert_same(results)


def test_many_clients_that_finish_one_after_the_other():
    """Stack sizes go down many rungs, and idle clients come back when an epoch is aligned."""
    data = toy([1 + 3 * k % 23 for k in range(19)])
    assert_same(by_engine("scaffold+anchor", data=data, local={"batch": 3, "epochs": 2, "least": 1}))


def test_convolutions_on_bytes():
    data = toy((3, 1, 4), (1, 28, 28), pixels=True)
    settings = {"data": data, "model": {"name": "lenet"}, "local": {"batch": 2, "epochs": 1}}
    assert_same(by_engine("scaffold+prox", **settings, optimizer={"momentum": 0.9}))


def test_bytes_are_normalised_channel_by_channel():
    (dataset, partition) = toy((3, 1, 4), (2, 3, 3), pixels=True)
    object.__setattr__(dataset, "mean", (100.0, 150.0))
    object.__setattr__(dataset, "std", (50.0, 80.0))
    by_hand, _ = toy((3, 1, 4), (2, 3, 3), pixels=True)
    for split in (by_hand.train, by_hand.test):
        shifted = (split.x - [[[100.0]], [[150.0]]]) / [[[50.0]], [[80.0]]]
        object.__setattr__(split, "x", shifted)
    object.__setattr__(by_hand, "mean", (0.0,))
    object.__setattr__(by_hand, "std", (1.0,))
    results = [held(advanced(federation(data=(d, partition)))) for d in (dataset, by_hand)]
    assert apart(*results) <= ROUNDING


def test_regression():
    assert_same(by_engine("scaffold+prox", data=toy(task="regression"), optimizer={"momentum": 0.5}))


@pytest.mark.parametrize("method", ["scaffold+teach+mix", "anchor+fair"])
def test_the_number_of_workers_changes_no_bit(method):
    loops = [{"kind": "loop", "workers": n, "dtype": "float32"} for n in (1, 2, 5)]
    results = [held(advanced(federation(method, own=MADE_UP, engine=loop))) for loop in loops]
    assert identical(results[0], results[1])
    assert identical(results[0], results[2])


def test_single_precision_agrees_to_its_rounding():
    settings = {"optimizer": {"momentum": 0.5}, "sampling": {"clients": 4}}
    one, other = (
        held(advanced(federation("scaffold+prox", engine={"kind": kind, "dtype": "float32"}, **settings)))
        for kind in ("stack", "loop")
    )
    assert one["w"].dtype == torch.float32
    assert apart(one, other) < 1e-5


def test_the_clients_are_as_ragged_as_they_should_be():
    assert min(SIZES) == 1 and max(SIZES) > 2 * 4
