"""Workers as Ray actors: the only module that imports Ray, at its first use."""

from __future__ import annotations

import copyreg
import os
import sys
import sysconfig
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbraid.engines.cpu import usable_cores
from fedbraid.engines.ray.worker import Worker
from fedbraid.engines.ray.worker_pool import WorkerLost
from fedbraid.errors import UserError


class RayRemote:
    """A Ray cluster: started on this machine if there is no address, else joined. Connects at its first use."""

    def __init__(self, address: str = "", gpus: float = 0.0, may_use_gpus: bool = True, least: int = 0) -> None:
        if find_spec("ray") is None:
            raise UserError("engine.kind=ray needs Ray; install fedbraid[ray]")
        self.address, self.given, self.may_use_gpus, self.least = address, gpus, may_use_gpus, least

    @cached_property
    def ray(self) -> Any:
        """The Ray module, connected. Raises UserError if the cluster cannot be joined."""
        import ray

        if not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody unless the user says so
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what will change in Ray one day
                try:
                    ray.init(**self._settings)
                except (ConnectionError, ValueError, RuntimeError) as error:
                    said = str(error).splitlines()[0] if str(error) else type(error).__name__
                    where = f" at {self.address}" if self.address else ""
                    raise UserError(f"there is no Ray cluster{where} that this process can join: {said}") from error
        return ray

    @property
    def _settings(self) -> dict[str, Any]:
        quiet = {"log_to_driver": False, "logging_level": "error"}
        if self.address:
            return quiet | {"address": self.address}
        cores = max(usable_cores(), self.least)
        return quiet | {"address": "local", "num_cpus": cores, "include_dashboard": False}

    @cached_property
    def gpus(self) -> float:
        """GPUs of each worker: the configured number, else 1 if the cluster has any."""
        return self.given or float(self.may_use_gpus and self._resource("GPU") >= 1)

    def _resource(self, name: str) -> float:
        return float(self.ray.cluster_resources().get(name, 0.0))

    def room(self) -> int:
        room = int(self._resource("GPU") / self.gpus + 1e-6) if self.gpus else int(self._resource("CPU"))
        if not room:
            raise UserError(
                f"the Ray cluster has no free {'GPU' if self.gpus else 'CPU'} now; set engine.workers to the number of "
                "workers that it is to make room for"
            )
        return room

    def start(self) -> Any:
        return self._actor.remote("cuda" if self.gpus else "cpu", fetch_array)

    @cached_property
    def _actor(self) -> Any:
        """The actor class. Ray's own restarts are off: a restarted actor has lost its shares, which only the driver can
        restore in the right order.
        """
        settings = {"num_cpus": 1, "num_gpus": self.gpus, "max_restarts": 0, "max_task_retries": 0}
        return self.ray.remote(Worker).options(scheduling_strategy="SPREAD", **settings)

    def stop(self, worker: Any) -> None:
        if self.ray.is_initialized():
            self.ray.kill(worker, no_restart=True)

    def call(self, worker: Any, method: str, *args: Any) -> Any:
        return getattr(worker, method).remote(*args)

    def put(self, value: Any, own: Sequence[type] = ()) -> Any:
        for odd in (torch.classes, torch.ops):  # a hook that says `setup.classes` makes pickle think of torch's
            copyreg.pickle(type(odd), _pickled_by_name)
        modules = {sys.modules[kind.__module__] for kind in own if _is_user_code(kind)}
        for module in modules:
            self.ray.cloudpickle.register_pickle_by_value(module)
        try:
            return self.ray.put(value)
        finally:
            for module in modules:
                self.ray.cloudpickle.unregister_pickle_by_value(module)

    def get(self, reference: Any) -> Any:
        wrong = self.ray.exceptions
        gone = (wrong.RayActorError, wrong.ObjectLostError, wrong.WorkerCrashedError, wrong.OutOfMemoryError)
        try:
            return self.ray.get(reference)
        except wrong.RayTaskError as error:
            cause = error
            while isinstance(cause, wrong.RayTaskError):
                cause = cause.cause
            if isinstance(cause, UserError):
                raise UserError(str(cause)) from None
            if isinstance(cause, gone):
                raise WorkerLost(_last_line(cause)) from None
            raise
        except gone as error:
            raise WorkerLost(_last_line(error)) from None

    def ready(self, references: Sequence[Any], seconds: float) -> list[Any]:
        done, waiting = self.ray.wait(list(references), num_returns=1, timeout=seconds)
        more, _ = self.ray.wait(waiting, num_returns=len(waiting), timeout=0) if waiting else ([], [])
        return [*done, *more]


def fetch_array(reference: Any) -> np.ndarray:
    """Retrieve the result of another worker's call."""
    import ray

    made: np.ndarray = ray.get(reference)
    return made


def _pickled_by_name(module: Any) -> tuple[Callable[[str], Any], tuple[str]]:
    return import_module, (module.__name__,)


def _is_user_code(kind: type) -> bool:
    """Return whether a class is user code, which workers may not have installed."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if kind.__module__.split(".")[0] in ("fedbraid", "__main__") or file is None:  # Ray itself takes care of __main__
        return False
    paths = sysconfig.get_paths()
    installed = [Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return not any(Path(file).is_relative_to(place) for place in installed)


def _last_line(error: Exception) -> str:
    """Return the last line of Ray's message about a loss."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
