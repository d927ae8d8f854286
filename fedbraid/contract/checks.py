"""The contract that every strand keeps, as a public test suite.

    fedbraid.check_strand(MyStrand())          in Python
    fedbraid check mine.py:MyStrand            on the command line

Each law trains a tiny federation of ragged clients (one of them has a single sample) in float64.
"""

from __future__ import annotations

import pickle
import tempfile
import tomllib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedbraid.config.schema import Config, from_dict, to_toml
from fedbraid.core.chain import Chain
from fedbraid.core.random import stream
from fedbraid.core.round import Job, Server, one_round
from fedbraid.core.strand import Replies, Strand
from fedbraid.core.tree import PerClient, leaves
from fedbraid.data.dataset import Dataset, Partition, Split
from fedbraid.engines.local_engine import CohortSlice
from fedbraid.errors import UserError
from fedbraid.strands import parser as methods
from fedbraid.strands.weights import Uniform
from fedbraid.training.failures import in_hook
from fedbraid.training.run_directory import RunDirectory
from fedbraid.training.run_spec import RunSpec
from fedbraid.training.simulation import Simulation, build_simulation
from fedbraid.training.user_objects import UserObjects

TOLERANCE = 1e-6
SIZES = (1, 3, 7, 12, 20, 33)


@dataclass(frozen=True)
class Result:
    """Outcome of one law."""

    law: str
    verdict: Literal["passed", "failed", "not applicable"]
    detail: str = ""


class Broken(AssertionError):
    """A law does not hold."""


class NotApplicable(Exception):
    """A law says nothing about this strand."""


def check_strand(subject: Strand | Chain | type[Strand], *, raises: bool = True) -> list[Result]:
    """Test a strand (or a chain) against every law; raises on the first broken one, unless `raises` is False."""
    strand = subject() if isinstance(subject, type) else subject
    chain = strand if isinstance(strand, Chain) else Chain((strand,))
    results = []
    for law, test in LAWS.items():
        result = _result(law, test, chain)
        if raises and result.verdict == "failed":
            raise Broken(f"{chain}: {law}: {result.detail}")
        results.append(result)
    return results


def _result(law: str, test: Callable[[Chain], None], chain: Chain) -> Result:
    try:
        test(chain)
    except NotApplicable as reason:
        return Result(law, "not applicable", str(reason))
    except Broken as reason:
        return Result(law, "failed", str(reason))
    except Exception as error:  # a strand that raises has broken the law, whatever it raised
        return Result(law, "failed", _complaint(error))
    return Result(law, "passed")


def _complaint(error: Exception) -> str:
    return in_hook(error) or (str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}")


# --- the laws


def shares_sum_to_one(chain: Chain) -> None:
    if not chain.using("weigh"):
        raise NotApplicable("it leaves what each client counts as it is")
    trained(chain, "stack")  # a round refuses others


def vectorised_is_loop(chain: Chain) -> None:
    _close(trained(chain, "stack"), trained(chain, "loop"), "the stack and the loop end in different models")


def padding_changes_nothing(chain: Chain) -> None:
    plain = trained(chain, "stack")
    wider = federation(chain, "stack")
    wider.local.width += 3
    _close(plain, finished(wider), "padded samples count")
    longer = federation(chain, "stack")
    longer.local.stack.align = True
    _close(plain, finished(longer), "padded steps count")
    _close(plain, trained(chain, "stack", chunk=1), "clients in the same stack count")


def order_of_clients_changes_nothing(chain: Chain) -> None:
    order = np.array([2, 0, 3, 1])
    job, simulation = a_job(chain)
    here = simulation.local.run(job)
    job, simulation = a_job(chain)  # anew: running a job moves clients' states on
    there = simulation.local.run(_permuted(job, order))
    for key, value in here.uploads.items():
        _close(value[torch.as_tensor(order)], there.uploads[key], f"upload {key!r} depends on the order of clients")


def a_clients_data_stay_its_own(chain: Chain) -> None:
    job, simulation = a_job(chain)
    before = simulation.local.run(job)
    other_job, other = a_job(chain, disturbed=int(job.cohort.ids[1]))
    after = other.local.run(replace(job, cohort=other_job.cohort))
    others = torch.tensor([0, 2, 3])
    for key, value in before.uploads.items():
        _close(value[others], after.uploads[key][others], f"upload {key!r} of one client depends on another's data")


def resumed_is_uninterrupted(chain: Chain) -> None:
    whole = trained(chain, "stack", rounds=4)
    with tempfile.TemporaryDirectory() as place:
        run = RunDirectory(Path(place))
        run.begin(Config())  # a checkpoint is sealed with the configuration beside it
        half = federation(chain, "stack", rounds=4, directory=run)
        for _ in range(2):
            half.advance()
        run.save(half)
        rest = federation(chain, "stack", rounds=4, directory=run)
        run.load(rest)
        if not torch.equal(whole, finished(rest)):
            raise Broken("a run that was saved and restored ends in another model")


def longer_is_long_from_the_start(chain: Chain) -> None:
    if any(strand.constraints.concludes(2) for strand in chain):
        raise NotApplicable("it ends a run of two rounds unlike one that goes on")
    short = federation(chain, "stack", rounds=2)
    for _ in range(2):
        short.advance()
    long = federation(chain, "stack", rounds=4)
    for _ in range(2):
        long.advance()
    if not torch.equal(short.server.w, long.server.w):
        raise Broken("two rounds of two end in another model than two rounds of four; say so with `concludes`")


def it_travels(chain: Chain) -> None:
    if pickle.loads(pickle.dumps(chain)) != chain:
        raise Broken("pickled and unpickled it is another chain; a strand is a frozen dataclass of plain values")
    config = Config(method=str(chain))
    again = methods.parse(from_dict(tomllib.loads(to_toml(config))).method, own=[type(s) for s in chain])
    if again != chain:
        raise Broken(f"written to TOML and read back {chain} becomes {again}")


def neutral_is_fedavg(chain: Chain) -> None:
    (strand,) = _single(chain)
    if strand.neutral is None:
        raise NotApplicable("it has no neutral hyper-parameters")
    neutral = Chain((replace(strand, **strand.neutral),))  # type: ignore[type-var]
    if not torch.equal(trained(neutral, "stack"), fedavg_for(neutral)):
        raise Broken(f"with {dict(strand.neutral)} it is not FedAvg to the bit")


def default_is_not_fedavg(chain: Chain) -> None:
    if not chain.strands or all(s.neutral == {} for s in chain):
        raise NotApplicable("it is FedAvg by definition")
    ours, theirs = trained(chain, "stack"), fedavg_for(chain)
    if ours.shape == theirs.shape and (ours - theirs).abs().max() < 1e-9:
        raise Broken("it trains exactly as FedAvg does: its idea never reaches the model")


def hooks_change_nothing_in_place(chain: Chain) -> None:
    job, simulation = a_job(chain, "loop")
    engine, ids = simulation.local, [int(i) for i in job.cohort.ids]
    plans = engine.plans(job.seed, job.round, ids)
    given = engine.given(job, engine.store.read(ids), CohortSlice(np.arange(len(ids)), ids, plans))
    before = [t.clone() for t in leaves(given.tensors)]
    engine.loop.train(given, ids, plans, [{}] * len(ids), [0] * len(ids))
    if not all(torch.equal(old, new) for old, new in zip(before, leaves(given.tensors), strict=True)):
        raise Broken("a hook wrote into a tensor it was given; return a new one")


def sums_are_enough(chain: Chain) -> None:
    hidden = chain.sum_only
    if not hidden:
        raise NotApplicable("it declares no uploads of which sums are enough")
    simulation = federation(chain, "stack")
    came: set[str] = set()
    for _ in range(simulation.config.rounds):
        flow = next_round(simulation)
        job = next(flow)
        try:
            while True:
                replies = simulation.local.run(job)
                came |= replies.uploads.keys()
                job = flow.send(OnlySums(replies, hidden))
        except StopIteration as done:
            simulation.server = done.value
    if hidden - came:
        raise Broken(f"sums of {', '.join(sorted(hidden - came))} are said to be enough, and no client uploads that")


@dataclass(frozen=True, eq=False)
class OnlySums:
    """Replies of which some are to be had only as sums in which every client counts the same."""

    replies: Replies
    hidden: frozenset[str]

    @property
    def came(self) -> np.ndarray | None:
        return self.replies.came

    def each(self, key: str) -> Tensor:
        if key in self.hidden:
            raise Broken(f"the server asks for each client's {key!r}, which is said to be used as a sum only")
        return self.replies.each(key)

    def sum(self, key: str, weights: Tensor) -> Tensor:
        if key in self.hidden and (weights != weights[0]).any():
            raise Broken(f"the server sums {key!r}, which is said to be used as a plain sum, with different weights")
        return self.replies.sum(key, weights)


LAWS: dict[str, Callable[[Chain], None]] = {
    "what clients count in the mean sums to 1": shares_sum_to_one,
    "vectorised = loop": vectorised_is_loop,
    "padding changes nothing": padding_changes_nothing,
    "the order of clients changes nothing": order_of_clients_changes_nothing,
    "a client's data change only its own upload": a_clients_data_stay_its_own,
    "hooks change nothing in place": hooks_change_nothing_in_place,
    "what is used as a sum is used as nothing else": sums_are_enough,
    "saved and restored = uninterrupted": resumed_is_uninterrupted,
    "made longer = long from the start": longer_is_long_from_the_start,
    "it survives pickle and TOML": it_travels,
    "neutral hyper-parameters = FedAvg": neutral_is_fedavg,
    "default hyper-parameters are not FedAvg": default_is_not_fedavg,
}


# --- a tiny federation


def federation(
    chain: Chain,
    kind: str,
    *,
    rounds: int = 3,
    chunk: int = 0,
    disturbed: int | None = None,
    directory: RunDirectory | None = None,
    seed: int = 0,
    hidden: Sequence[int] = (4,),
) -> Simulation:
    """Six ragged clients, four of them in a round; `disturbed` is a client whose inputs are changed."""
    rng = stream(seed, "check")
    total = sum(SIZES)
    centres = rng.normal(size=(3, 5))
    y = rng.integers(0, 3, total + 30)
    x = centres[y] + rng.normal(size=(total + 30, 5))
    ends = np.cumsum(SIZES)
    if disturbed is not None:
        x[ends[disturbed] - SIZES[disturbed] : ends[disturbed]] += 1
    dataset = Dataset("tiny", Split(x[:total], y[:total]), Split(x[total:], y[total:]), classes=3)
    partition = Partition(tuple(np.arange(end - n, end) for n, end in zip(SIZES, ends, strict=True)))
    config = from_dict(
        {
            "method": str(chain),
            "rounds": rounds,
            "seed": seed,
            "sampling": {"clients": 4},
            "local": {"batch": 5, "epochs": 2},
            "model": {"name": "mlp", "hidden": [*hidden]},
            "optimizer": {"lr": 0.1, "momentum": 0.5},
            "engine": {"kind": kind, "device": "cpu", "dtype": "float64", "chunk": chunk},
        }
    )
    objects = UserObjects(data=dataset, partition=partition, chain=chain)
    return build_simulation(RunSpec.of(config, objects, directory))


def finished(simulation: Simulation) -> Tensor:
    """The model after the last round."""
    while not simulation.finished:
        simulation.advance()
    return simulation.deployed()[0]


def trained(chain: Chain, kind: str, **options: Any) -> Tensor:
    return finished(federation(chain, kind, **options))


def fedavg_for(chain: Chain) -> Tensor:
    """FedAvg's model with the averaging that this chain's paper uses, so that the averaging alone is no difference."""
    return _fedavg(uniform=chain.averages == "uniform" and not chain.sets_weights)


@cache
def _fedavg(uniform: bool) -> Tensor:
    return trained(Chain((Uniform(),)) if uniform else Chain(), "stack")


def a_job(chain: Chain, kind: str = "stack", *, disturbed: int | None = None) -> tuple[Job, Simulation]:
    """The training job of the third round, when strands have state, and the federation it belongs to."""
    simulation = federation(chain, kind, rounds=4)
    for _ in range(2):
        simulation.advance()
    if disturbed is not None:  # the same state, other data
        other = federation(chain, kind, rounds=4, disturbed=disturbed)
        other.server = simulation.server
        ids = range(len(SIZES))
        if other.store.blank:
            other.store.write(ids, simulation.store.read(ids))
        simulation = other
    flow = next_round(simulation)
    job = next(flow)
    if job.kind == "probe":
        job = flow.send(simulation.local.run(job))
    return job, simulation


def next_round(simulation: Simulation) -> Generator[Job, Replies | None, Server]:
    e = simulation
    return one_round(e.chain, e.lr, e.setup, e.server, e.cohort(), e.config.seed)


def _permuted(job: Job, order: Sequence[int] | np.ndarray) -> Job:
    at = torch.as_tensor(np.asarray(order))
    cohort = job.cohort.only(np.asarray(order))
    own = job.model.dim() == 2
    sent = {
        name: PerClient({k: v[at] for k, v in tree.items()}) if isinstance(tree, PerClient) else tree
        for name, tree in job.sent.items()
    }
    model, buffers = (job.model[at], job.buffers[at]) if own else (job.model, job.buffers)
    return replace(job, cohort=cohort, model=model, buffers=buffers, sent=sent)


def _single(chain: Chain) -> tuple[Strand]:
    if len(chain.strands) != 1:
        raise NotApplicable("it is a chain of several strands" if chain.strands else "it is FedAvg itself")
    return (chain.strands[0],)


def _close(a: Tensor, b: Tensor, complaint: str) -> None:
    difference = (a - b).abs().max().item() if a.numel() else 0.0
    if not difference <= TOLERANCE:
        raise Broken(f"{complaint} (by {difference:.2g})")
