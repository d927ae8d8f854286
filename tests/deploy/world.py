"""A small federation twice: all of it on one machine, and with clients that are reached by messages only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from helpers import build
from torch import Tensor

from fedbraid.config.schema import Config, from_dict
from fedbraid.core.round import Job, nothing
from fedbraid.core.tree import Tree
from fedbraid.deploy.assembly import assemble
from fedbraid.deploy.client_data import NamedData
from fedbraid.deploy.client_home import ClientHome
from fedbraid.deploy.federation_run import conduct
from fedbraid.deploy.membership import Membership
from fedbraid.deploy.messages import Message, read
from fedbraid.deploy.node import Node
from fedbraid.deploy.remote_federation import RemoteFederation, WaitPolicy
from fedbraid.deploy.secure_policy import SecurePolicy
from fedbraid.deploy.transport import InProcess
from fedbraid.deploy.update_limits import UpdateLimits
from fedbraid.engines.replies import Stacked
from fedbraid.storage.files import write_bytes
from fedbraid.training.simulation import Simulation
from fedbraid.training.user_objects import UserObjects

SIZES = (5, 3, 9, 1, 6)
"""Clients' training samples; one has a single one."""
TESTS = (6, 2, 4, 3, 5)
"""Their test samples."""
NAMES = tuple(f"clinic-{message}" for message in "abcde")
CLASSES = 3
SETTINGS: dict[str, Any] = {
    "rounds": 3,
    "model": {"name": "mlp", "hidden": [4]},
    "sampling": {"clients": 3},
    "local": {"batch": 3, "epochs": 2},
    "optimizer": {"lr": 0.2, "momentum": 0.3},
    "engine": {"device": "cpu", "dtype": "float64", "kind": "loop", "workers": 1},
    "partition": {"name": "natural"},
}


def samples(place: Path, task: str = "classification") -> Path:
    """An archive of what all clients hold, each sample with its owner, and of test samples; made once."""
    file = place / f"{task}.npz"
    if not file.exists():
        place.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(1)
        centres = rng.normal(size=(CLASSES, 3))
        users, tests = (np.repeat(np.arange(len(each)), each) for each in (SIZES, TESTS))
        labels = [np.arange(len(owners)) % CLASSES for owners in (users, tests)]
        x, x_test = (centres[y] + rng.normal(size=(len(y), 3)) for y in labels)
        y, y_test = labels if task == "classification" else (x[:, 0] + 1, x_test[:, 0] + 1)
        np.savez(file, x_train=x, y_train=y, users_train=users, x_test=x_test, y_test=y_test, users_test=tests)
    return file


def pictures(place: Path) -> Path:
    """The same with images of bytes."""
    file, rng = place / "pictures.npz", np.random.default_rng(2)
    users, tests = (np.repeat(np.arange(len(each)), each) for each in (SIZES, TESTS))
    x, x_test = (rng.integers(0, 256, (len(owners), 8, 8), dtype=np.uint8) for owners in (users, tests))
    y, y_test = (np.arange(len(owners)) % CLASSES for owners in (users, tests))
    np.savez(file, x_train=x, y_train=y, users_train=users, x_test=x_test, y_test=y_test, users_test=tests)
    return file


def configured(method: str, file: Path, **settings: Any) -> Config:
    data = {"name": "npz", "path": str(file)}
    if file.stem == "regression":
        data["task"] = "regression"
    return from_dict(SETTINGS | {"method": method, "data": data} | settings)


def here(config: Config) -> Simulation:
    """The federation on one machine."""
    return build(config, UserObjects())


def nodes(config: Config, homes: Path, **settings: Any) -> dict[str, Callable[[], Node]]:
    """The clients, each made anew for every message."""
    return {
        name: partial(Node, homes / name, name, NamedData(config, part), device="cpu", **settings)
        for part, name in enumerate(NAMES)
    }


def by_message(
    config: Config,
    place: Path,
    transport: InProcess | None = None,
    min_clients: int = 0,
    tries: int = 3,
    policy: SecurePolicy | None = None,
    limits: UpdateLimits | None = None,
) -> RemoteFederation:
    """The federation by messages, once its clients are there."""
    transport = transport or InProcess(nodes(config, place / "homes"))
    waiting = WaitPolicy(min_clients, seconds=1.0, tries=tries, pause=0.0)
    membership = Membership(place / "run" / "federation.json", NAMES, policy is not None, limits or UpdateLimits())
    federation = assemble(config, transport, membership, waiting, place / "run" / "checkpoint", UserObjects(), policy)
    membership.open()
    federation.gather()
    return federation


def held_here(simulation: Simulation) -> dict[str, Tensor]:
    """Everything that the next round depends on: model, buffers, the server's and every client's state."""
    return _server(simulation) | {
        f"client {k}/{s}/{name}": value[0]
        for k in range(len(NAMES))
        for s, tree in simulation.store.read([k]).items()
        for name, value in tree.items()
    }


def held_apart(federation: RemoteFederation, homes: Path) -> dict[str, Tensor]:
    """The same, clients' states from their own disks: those after the message that the server says counted last."""
    held = _server(federation)
    blank = {s.name: s.init_client(federation.setup) for s in federation.chain}
    for number, name in enumerate(NAMES):
        counted = federation.engine._counted(np.int64(number))
        state: Tree | None = {f"{s}/{key}": value for s, tree in blank.items() for key, value in tree.items()}
        if counted is not None and state:
            state = ClientHome(homes / name, federation.membership.run).state(counted)
            assert state is not None, f"{name} has lost its state after {counted}"
        held |= {f"client {number}/{key}": value for key, value in (state or {}).items()}
    return held


def _server(federation: Any) -> dict[str, Tensor]:
    server = federation.server
    tensors = {"w": server.w, "buffers": server.buffers, "deployed": federation.deployed()[0]}
    return tensors | {f"server/{s}/{key}": value for s, tree in server.kept.items() for key, value in tree.items()}


def apart(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest difference between tensors of the same names and shapes."""
    assert one.keys() == other.keys()
    assert all(one[key].shape == other[key].shape for key in one)
    return max(float((one[key] - other[key]).abs().max()) if one[key].numel() else 0.0 for key in one)


def finite(held: Mapping[str, Tensor]) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in held.values())


# --- what may happen on the way


def lacking(simulation: Simulation, lost: Mapping[tuple[int, str], set[int]]) -> Simulation:
    """The federation on one machine, where the clients of these numbers do not reply in that round to that kind."""
    real = simulation.engine.run

    def run(job: Job, meanwhile: Callable[[], None] = nothing) -> Stacked:
        gone = lost.get((job.round, job.kind), set())
        stay = np.flatnonzero([int(number) not in gone for number in job.cohort.ids])
        return real(job, meanwhile) if len(stay) == len(job.cohort) else real(job.only(stay)).of_those_at(stay)

    simulation.engine.run = run  # type: ignore[method-assign]
    return simulation


Happening = Callable[[Message, bytes], bytes | None]
"""(the question, the answer to it) -> the answer that arrives."""


def happening(config: Config, homes: Path, when: Mapping[tuple[str, int, str], Happening]) -> InProcess:
    """Messages in this process; `when` says what happens to the answer of which client in which round to which kind."""

    def on_reply(client: str, message: bytes, answer: bytes) -> bytes | None:
        question = read(message, 1 << 30)
        happens = when.get((client, question.round, question.kind))
        return happens(question, answer) if happens else answer

    return InProcess(nodes(config, homes), on_reply=on_reply)


def rewritten(answer: bytes, **changes: Any) -> bytes:
    """The same answer with some of its parts changed."""
    return replace(read(answer, 1 << 30), **changes).to_bytes()


def conducted(place: Path, method: str, file: Path, **settings: Any) -> None:
    """The whole federation in this process, resumed where it was left."""
    config = configured(method, file, **settings)
    transport = InProcess(nodes(config, place / "homes"))
    conduct(config, transport, NAMES, out=place / "run", resume=True, seconds=1.0, pause=0.0, min_clients=1)


def answered(home: Path, config: Config, part: int, message: Path) -> None:
    """A process of a client's that answers one message, and leaves its answer beside it."""
    answer = nodes(config, home)[NAMES[part]]().answer(message.read_bytes())
    write_bytes(message.with_suffix(".answer"), answer)
