"""Flower's programs, each with what it lacks, and what is asked of them.

They are started by `processes`, and are Flower's own but for what `_replace` changes: a guard before the SuperLink,
clients that run no code but ours, and shorter waits.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from time import sleep
from types import SimpleNamespace
from typing import Any

from fedbraid.deploy import flower
from fedbraid.deploy.audit import FILE, recording
from fedbraid.deploy.guard import Guard, loud_about_tls, once_a_minute
from fedbraid.deploy.process_settings import GuardSettings
from fedbraid.errors import UserError
from fedbraid.version import __version__

NODE_POLL = 1.0
"""Seconds between a client's looks for a message; Flower has 3."""

NODE_RETRY = 5
"""Seconds at most between its looks for a server that does not answer; Flower has 20."""

NODE_BEAT = 10
"""A client counts as there for twice so many seconds after a sign of life; Flower has 30, and takes no less than 10."""


class FlowerControl:
    """The SuperLink's Control interface, through the guard."""

    def __init__(self, address: str, ca: Path | None, token: str) -> None:
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        def with_token(context: Any, call_next: Any) -> Any:
            context.request.headers["authorization"] = f"Bearer {token}"
            return call_next(context)

        token_bearer: Any = SimpleNamespace(intercept=with_token)
        self._client = ControlHttpClient.from_server_address(
            address,
            insecure=ca is None,
            root_certificates=ca.read_bytes() if ca else None,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="fedbraid"), token_bearer],
        )

    def register(self, name: str, key: bytes) -> None:
        """Let in whoever has this key."""
        from flwr.proto.control_pb2 import RegisterNodeRequest

        self._asked(self._client.RegisterNode, RegisterNodeRequest(public_key=key, name=name))

    def start_run(self, settings: Path) -> int:
        from flwr.cli.build import build_fab_from_files
        from flwr.common.serde import fab_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        content, _ = build_fab_from_files({"pyproject.toml": app(settings).encode()})
        started = self._asked(self._client.StartRun, StartRunRequest(fab=fab_to_proto(Fab("", content, {}))))
        if not started.HasField("run_id"):
            raise UserError("Flower would not start the run; superlink.log says why")
        return int(started.run_id)

    def status(self, run: int) -> str:
        """Such as running, or finished:completed."""
        from flwr.proto.control_pb2 import ListRunsRequest

        found = self._asked(self._client.ListRuns, ListRunsRequest(run_id=run)).run_dict[run].status
        return f"{found.status}:{found.sub_status}" if found.sub_status else str(found.status)

    def close(self) -> None:
        self._client.close()

    @staticmethod
    def _asked(ask: Callable[[Any], Any], request: Any) -> Any:
        from httpx import HTTPError

        try:
            return ask(request)
        except HTTPError as error:
            raise UserError(f"Flower's SuperLink did not do as it was asked: {error}") from None


def app(settings: Path) -> str:
    """The app that Flower ships: the names of its two parts, and where the server's settings are."""
    return "\n".join(
        [
            "[project]",
            'name = "fedbraid"',
            f'version = "{__version__}"',
            'description = "A federation of FedBraid"',
            'license = "LicenseRef-none"',
            "dependencies = []",
            "[tool.flwr.app]",
            'publisher = "fedbraid"',
            "[tool.flwr.app.components]",
            f'serverapp = "{flower.__name__}:server"',
            f'clientapp = "{flower.__name__}:client"',
            "[tool.flwr.app.config]",
            f"settings = {json.dumps(str(settings))}",
        ]
    )


# --- the programs


def superlink(guard: Path, arguments: list[str]) -> None:
    """Flower's SuperLink behind a guard."""
    import uvicorn
    from flwr.superlink.cli import flower_superlink

    from fedbraid.deploy.flower_fleet import FleetRules

    settings = GuardSettings.read(guard)
    say = once_a_minute(lambda text: print(text, file=sys.stderr, flush=True))

    def run(*, app: Any, **options: Any) -> None:
        guarded = Guard(app, settings.token, settings.most, settings.names, say, FleetRules())
        ours = {"access_log": False, "proxy_headers": False, "timeout_graceful_shutdown": 1}
        config = uvicorn.Config(guarded, **options | ours)
        config.load()
        if config.ssl is not None:
            loud_about_tls(config.ssl, say)
        uvicorn.Server(config).run()

    _replace(uvicorn, run=run)
    _as("flower-superlink", arguments)
    with recording(guard.with_name(FILE)):
        flower_superlink()


def supernode(arguments: list[str]) -> None:
    """Flower's SuperNode, which looks for messages, and for a server that was away, more often.

    It also gives more signs of life. A server takes a node that was killed for there until they stop, and meanwhile
    lets no other in with its key.
    """
    from flwr.supercore import heartbeat
    from flwr.supercore.retry import http_retry
    from flwr.supernode import fleet_http_connection, start_client_internal
    from flwr.supernode.cli import flower_supernode

    _replace(start_client_internal, time=SimpleNamespace(sleep=lambda seconds: sleep(min(seconds, NODE_POLL))))
    _replace(heartbeat, HEARTBEAT_DEFAULT_INTERVAL=NODE_BEAT)
    _replace(fleet_http_connection, HEARTBEAT_DEFAULT_INTERVAL=NODE_BEAT)
    _replace(http_retry, MAX_RETRY_DELAY=NODE_RETRY)
    _as("flower-supernode", arguments)
    flower_supernode()


def superexec(arguments: list[str]) -> None:
    """Flower's SuperExec, which starts the ServerApp of a run."""
    from flwr.supercore.cli import flower_superexec

    _as("flower-superexec", arguments)
    flower_superexec()


def clientexec(arguments: list[str]) -> None:
    """A SuperExec for clients: it starts our ClientApp and nothing else, in processes that need not load torch."""
    from flwr.supercore.constant import TaskType
    from flwr.supercore.retry import http_retry
    from flwr.supercore.superexec.executor import LaunchResult
    from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor

    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__, "flwr.supernode.runtime.run_clientapp", "fedbraid.deploy.node"])
    forkserver.ensure_running()

    def launch(_: object, spec: Any) -> Any:
        if spec.task_type != TaskType.CLIENT_APP:
            print(f"refused: the server wants a {spec.task_type} to run here", file=sys.stderr, flush=True)
            return LaunchResult.failed("only a ClientApp runs here")
        processes.Process(target=work, args=(spec.runtime_api_address, spec.token, os.getpid())).start()
        return LaunchResult.accepted()

    _replace(SubprocessExecutor, launch=launch)
    _replace(http_retry, MAX_RETRY_DELAY=1)  # its SuperNode, on the same machine, may be started again
    superexec(arguments)


def work(address: str, token: str, parent: int) -> None:
    """Flower's ClientApp process, with our ClientApp in place of the one that came over the network."""
    from flwr.supernode.runtime import run_clientapp

    _replace(
        run_clientapp,
        install_from_fab=lambda *_, **__: None,
        get_load_client_app_fn=lambda *_, **__: lambda *_, **__: flower.client,
    )
    run_clientapp.run_clientapp(address, token, insecure=True, parent_pid=parent)


def _replace(module: Any, **ours: Any) -> None:
    """Put something of ours in the place of Flower's. Where there is no such folder, nobody knows what would be run."""
    for name, mine in ours.items():
        if not hasattr(module, name):
            raise RuntimeError(f"this version of Flower has no {name} in {module.__name__}")
        setattr(module, name, mine)


def _as(program: str, arguments: list[str]) -> None:
    sys.argv[:] = [program, *arguments]
