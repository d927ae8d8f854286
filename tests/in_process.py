"""Workers in this process, in the place of a cluster's: a call can be told to be a worker's last one."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedbraid.engines.ray.worker import Worker
from fedbraid.engines.ray.worker_pool import WorkerLost


@dataclass(eq=False)
class Actor:
    worker: Worker | None  # None = lost
    late: bool = False


@dataclass(eq=False)
class Reference:
    """What a call made. Lost with the worker that made it, if there is one."""

    made: Any = None
    error: Exception | None = None
    actor: Actor | None = None
    arrived: bool = False  # on the driver, where it can no longer be lost

    def get(self) -> Any:
        if self.actor is not None and self.actor.worker is None and not self.arrived:
            raise WorkerLost("its worker is no more")
        if self.error is not None:
            raise self.error
        return self.made


Fate = Callable[[int, str], str]
"""What happens at the call of this number to this method: nothing (""), or the worker's end: "before" it has begun,
"after" it has done it, or when it has just "answered"."""


@dataclass(eq=False)
class InProcess:
    """A `Remote`. Values are pickled on their way, as they would be between machines."""

    size: int = 2  # workers that there is room for
    fate: Fate = lambda number, method: ""
    calls: list[str] = field(default_factory=list)
    actors: list[Actor] = field(default_factory=list)

    def room(self) -> int:
        return self.size

    def start(self) -> Actor:
        alive = sum(actor.worker is not None and not actor.late for actor in self.actors)
        self.actors.append(Actor(Worker("cpu", Reference.get), late=alive >= self.size))
        return self.actors[-1]

    def stop(self, worker: Actor) -> None:
        worker.worker = None

    def call(self, worker: Actor, method: str, *args: Any) -> Reference:
        if worker.late:
            return Reference(actor=worker)
        number = len(self.calls)
        self.calls.append(method)
        fate = self.fate(number, method)
        if fate == "before":
            worker.worker = None
        if worker.worker is None:
            return Reference(actor=worker)
        given = [arg.get() if isinstance(arg, Reference) else _copied(arg) for arg in args]
        try:
            reference = Reference(_copied(getattr(worker.worker, method)(*given)), actor=worker)
        except Exception as error:  # as a cluster would, it tells the one who asks for the answer
            reference = Reference(error=error, actor=worker)
        if fate in ("after", "answered"):
            worker.worker, reference.arrived = None, fate == "answered"
        return reference

    def put(self, value: Any, own: Sequence[type] = ()) -> Reference:
        return Reference(value)

    def get(self, reference: Reference) -> Any:
        made = reference.get()
        reference.arrived = True
        return made

    def ready(self, references: Sequence[Reference], seconds: float) -> list[Reference]:
        return [r for r in references if r.actor is None or not r.actor.late or r.actor.worker is None]


def _copied(value: Any) -> Any:
    if isinstance(value, list) and any(isinstance(part, Reference) for part in value):
        return value
    return pickle.loads(pickle.dumps(value))
