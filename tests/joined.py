"""Runs built side by side, trained together and one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from helpers import apart, build, held, toy
from made_up_strands import MADE_UP

from fedbraid.config.schema import from_dict
from fedbraid.data.dataset import Dataset, Partition
from fedbraid.engines.stack import Stack
from fedbraid.training.shared_stack import SharedStack
from fedbraid.training.simulation import Simulation
from fedbraid.training.user_objects import UserObjects

DATA = toy((30, 20, 37))[0]
SEEDS = (0, 1)


def ragged(dataset: Dataset, seed: int, clients: int = 6) -> Partition:
    """Who holds what differs from seed to seed; one client has a single sample."""
    rng = np.random.default_rng(100 + seed)
    sizes = [1, *rng.integers(2, 15, clients - 1)]
    owned = rng.permutation(len(dataset.train))[: sum(sizes)]
    return Partition(tuple(np.split(owned, np.cumsum(sizes)[:-1])))


def side_by_side(
    methods: str | Sequence[str] = "fedavg",
    seeds: Sequence[int] = SEEDS,
    *,
    data: Dataset = DATA,
    each: Sequence[dict[str, Any]] = ({},),
    directory: Any = None,
    **settings: Any,
) -> list[Simulation]:
    """A run of each method, seed and settings of `each`, all on the same data."""
    engine = {"device": "cpu", "dtype": "float64", "kind": "stack", **settings.pop("engine", {})}
    common = {"rounds": 3, "model": {"name": "mlp", "hidden": [5]}, "local": {"batch": 4, "epochs": 2}, **settings}
    made: list[Simulation] = []
    for method in [methods] if isinstance(methods, str) else methods:
        for own in each:
            for seed in seeds:
                config = from_dict({**common, "engine": engine, "method": method, "seed": seed, **own})
                objects = UserObjects(data, ragged(data, seed), strands=tuple(MADE_UP))
                place = directory / str(len(made)) if directory else None
                made.append(build(config, objects, place, made[0] if made else None))
    return made


def together(simulations: Sequence[Simulation]) -> list[list[dict[str, Any]]]:
    """Train to the end, together; the lines of each run."""
    lines: list[list[dict[str, Any]]] = [[] for _ in simulations]
    group = SharedStack(simulations)
    while group.going:
        for place, line in group.advance().items():
            lines[place].append(line)
    return lines


def one_by_one(simulations: Sequence[Simulation]) -> list[list[dict[str, Any]]]:
    lines: list[list[dict[str, Any]]] = [[] for _ in simulations]
    for simulation, mine in zip(simulations, lines, strict=True):
        while not simulation.finished:
            mine.append(simulation.advance())
    return lines


ROUNDED = ("train_loss", "loss")


def assert_same(
    joint: Sequence[Simulation], alone: Sequence[Simulation], lines: Any, others: Any, rounding: float
) -> None:
    """The same states to rounding, the same lines: bytes, samples and clients to the unit."""
    for one, other in zip(joint, alone, strict=True):
        assert held(one)["w"].isfinite().all()
        assert apart(held(one), held(other)) <= rounding
    for mine, theirs in zip(lines, others, strict=True):
        assert len(mine) == len(theirs)
        for line, other in zip(mine, theirs, strict=True):
            assert line["seconds"] > 0
            exact = line.keys() - {*ROUNDED, "seconds"}
            assert {key: line[key] for key in exact} == {key: other[key] for key in exact}
            for key in ROUNDED:
                assert line[key] == (None if other[key] is None else pytest.approx(other[key], rel=1e-6))


@contextmanager
def stacks() -> Iterator[list[int]]:
    """How many clients were in each stack that was trained."""
    sizes: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        train = Stack.train

        def counted(self: Stack, objects: Any, ids: Any, *more: Any) -> Any:
            sizes.append(len(ids))
            return train(self, objects, ids, *more)

        patch.setattr(Stack, "train", counted)
        yield sizes
