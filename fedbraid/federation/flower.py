"""Letters over Flower. This is the only module that knows Flower, because Flower's interfaces move.

The server's work is a ServerApp: it sends letters as messages over Flower's Grid. A client's work is a ClientApp: it
has a node answer the letter of a message. Both are parts of this package; the app that Flower ships is their names
and nothing else, and clients started by `fedbraid join` run their own installation, whatever app they are sent.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import sys
from collections.abc import Collection, Mapping
from multiprocessing import forkserver
from pathlib import Path
from queue import Empty, Queue
from threading import Event, Semaphore, Thread
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp

from fedbraid.errors import UserError
from fedbraid.federation.guard import Guard, loud_about_tls, once_a_minute
from fedbraid.federation.names import is_name
from fedbraid.federation.processes import end_with_parent
from fedbraid.federation.settings import GuardSettings, NodeSettings, ServerSettings, named
from fedbraid.version import __version__

log = logging.getLogger(__name__)

LETTER, NAME = "query.letter", "query.name"
POLL, MOST_POLLS = 0.3, 50
"""Seconds between two looks for an answer, and how many looks a second there are at most."""

NODE_POLL = 1.0
"""Seconds between a client's looks for a letter; Flower has 3."""

NODE_RETRY = 5
"""Seconds at most between its looks for a server that does not answer; Flower has 20."""

LOOK, BACK = 3.0, 30.0
"""Seconds between two looks for clients that were started again, and seconds that they have for it."""

NODE_BEAT = 10
"""A client counts as there for twice so many seconds after a sign of life; Flower has 30, and takes no less than 10."""

AT_ONCE = 4
"""Letters on their way to the SuperLink at a time."""


# --- the server's side

Node = tuple[int, str]
"""Flower's number of a node, and when the node was last started."""


class Gone(Exception):
    """A client gives no more signs of life."""


class GridTransport:
    """The clients of a Flower federation by name.

    `names` are the clients by their public keys, which Flower has checked. Without it (no TLS) clients are asked for
    their names and believed.
    """

    def __init__(self, grid: Grid, names: Mapping[bytes, str] | None, most: int) -> None:
        self.grid, self.names, self.most = grid, names, most
        self._called: dict[int, str] = {}  # what nodes call themselves
        self._asked: dict[str, int] = {}  # the nodes that were asked for their names, by message
        self._sending = Semaphore(AT_ONCE)

    def present(self) -> list[str]:
        return sorted(self._nodes())

    def exchange(self, letters: Mapping[str, bytes], seconds: float) -> dict[str, bytes]:
        """Each client is asked in a thread of its own, so that one who stops in the middle holds up no other.

        A client that was started again has lost its letter and gets it again. One that is gone has a while to come
        back; then the round need not wait for it.
        """
        until = monotonic() + seconds
        asked: dict[str, Node] = {}
        gone: dict[str, float] = {}  # until when they are waited for
        answers: dict[str, bytes] = {}
        arrived: Queue[tuple[str, Node, bytes | Gone | None]] = Queue()
        over = Event()

        def ask(name: str, node: Node) -> None:
            answer: bytes | Gone | None = None
            try:
                pause = max(POLL, len(asked) / MOST_POLLS)
                answer = self._answer(name, node, letters[name], max(1.0, until - monotonic()), pause, over)
            except Gone as error:
                answer = error
            except Exception as error:
                log.warning("%s: no answer: %s", name, _one_line(error))
            finally:
                arrived.put((name, node, answer))

        def ask_anew(names: Collection[str]) -> None:
            for name, node in self._nodes().items():
                if name in names and asked.get(name) != node:
                    asked[name] = node
                    gone.pop(name, None)
                    Thread(target=ask, args=(name, node), daemon=True).start()

        ask_anew(letters)
        waiting = set(asked)
        while waiting and (left := until - monotonic()) > 0:
            try:
                name, node, answer = arrived.get(timeout=min(left, LOOK))
            except Empty:
                ask_anew(waiting)
                waiting -= {name for name, end in gone.items() if end < monotonic()}
                continue
            if isinstance(answer, bytes):
                answers[name] = answer
                waiting.discard(name)
            elif asked[name] == node and isinstance(answer, Gone):
                log.warning("%s is gone; there are %.0f s for it to come back", name, min(BACK, left))
                gone[name] = monotonic() + BACK
            elif asked[name] == node:
                waiting.discard(name)
        over.set()
        return answers

    def _answer(self, name: str, node: Node, letter: bytes, seconds: float, pause: float, over: Event) -> bytes | None:
        with self._sending:
            numbers = list(self.grid.push_messages([Message(packed(letter), node[0], LETTER, ttl=seconds)]))
        if not numbers or not numbers[0]:
            log.warning("%s: Flower would not take its letter of %s bytes", name, f"{len(letter):,}")
            return None
        while not over.is_set():
            for reply in self.grid.pull_messages(numbers):
                return self._opened(name, reply)
            over.wait(pause)
        return None

    def _opened(self, name: str, reply: Message) -> bytes | None:
        """The letter in a reply; whatever else it may be is refused with a line."""
        if reply.has_error() and reply.error.code == ErrorCode.NODE_UNAVAILABLE:
            raise Gone
        if reply.has_error():
            log.warning("%s: no answer: %s", name, _one_line(reply.error.reason))
            return None
        try:
            letter = unpacked(reply.content)
        except (KeyError, TypeError, AttributeError, ValueError):
            log.warning("%s: refused: its answer is no letter", name)
            return None
        if len(letter) > self.most:
            log.warning(
                "%s: refused: its answer has %s bytes, more than %s", name, f"{len(letter):,}", f"{self.most:,}"
            )
            return None
        return letter

    def _nodes(self) -> dict[str, Node]:
        """The nodes that are online, by the names of their clients; of two with the same name, the newer."""
        online = sorted(self.grid.get_nodes(), key=lambda node: node.last_activated_at)
        if self.names is None:
            self._learn_names({node.node_id for node in online})
            called = {node.node_id: self._called.get(node.node_id) for node in online}
        else:
            called = {node.node_id: self.names.get(node.public_key) for node in online}
        return {name: (node.node_id, node.last_activated_at) for node in online if (name := called[node.node_id])}

    def _learn_names(self, online: set[int]) -> None:
        """Ask the nodes that are new, and hear those that were asked before."""
        for node in online - set(self._called) - set(self._asked.values()):
            for number in self.grid.push_messages([Message(RecordDict(), node, NAME)]):
                self._asked[number] = node
        if not self._asked:
            return
        for reply in self.grid.pull_messages(list(self._asked)):
            node = self._asked.pop(reply.metadata.reply_to_message_id, 0)
            name = None if reply.has_error() else reply.content.config_records.get("node", ConfigRecord()).get("name")
            if isinstance(name, str) and is_name(name):
                self._called[node] = name
                log.info("%s is here, as it says", name)


def packed(letter: bytes) -> RecordDict:
    """A letter as an array, which Flower sends in pieces."""
    return RecordDict({"letter": ArrayRecord({"letter": Array("uint8", (len(letter),), "bytes", letter)})})


def unpacked(content: RecordDict) -> bytes:
    letter = content.array_records["letter"]["letter"].data
    if not isinstance(letter, bytes):
        raise TypeError("the letter is no bytes")
    return letter


def _one_line(text: object) -> str:
    return " ".join(str(text).split())[:300]


def serve(grid: Grid, context: Context) -> None:
    """Conduct the run that the file named in the run's configuration describes."""
    from rich.console import Console

    from fedbraid import cli_show
    from fedbraid.cli_input import load_strands
    from fedbraid.config import from_dict
    from fedbraid.files import write_json

    end_with_parent()
    settings = ServerSettings.read(str(context.run_config["settings"]))
    end: dict[str, str | None] = {"error": "the server's process ended in the middle"}
    with open(settings.log, "a", encoding="utf-8", buffering=1) as lines:
        _log_to(lines)
        try:
            config = from_dict(settings.config)
            names = None if settings.names is None else {key.encode(): name for key, name in settings.names.items()}
            with cli_show.progress(Console(file=lines, width=200), config.rounds) as on_round:
                done = named(settings.conduct)(
                    config,
                    GridTransport(grid, names, settings.most),
                    settings.roster,
                    out=Path(settings.out),
                    resume=settings.resume,
                    min_clients=settings.min_clients,
                    seconds=settings.seconds,
                    on_round=on_round,
                    data_dir=Path(settings.data_dir) if settings.data_dir else None,
                    own=load_strands(settings.strands),
                    secure=settings.secure,
                )
            done.report(Path(settings.out))
            with open(settings.summary, "w", encoding="utf-8") as text:
                cli_show.summary(Console(file=text, width=100), done, Path(settings.out))
            end = {"error": None}
        except UserError as error:
            end = {"error": str(error)}
        except Exception as error:
            log.exception("the run failed")
            end = {"error": f"{type(error).__name__}: {_one_line(error)}"}
        finally:
            write_json(settings.done, end)


server = ServerApp()
server.main()(serve)


def _log_to(lines: Any) -> None:
    """Our own lines into a file, with the time."""
    handler = logging.StreamHandler(lines)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    ours = logging.getLogger("fedbraid")
    ours.handlers[:] = [handler]
    ours.setLevel(logging.INFO)
    ours.propagate = False


# --- the client's side


def answer(message: Message, context: Context) -> Message:
    """Have the node answer. What goes wrong is told in the node's own log: the server gets no word of its insides."""
    settings = NodeSettings.read(str(context.node_config["fedbraid"]))
    with open(settings.log, "a", encoding="utf-8", buffering=1) as lines:
        _log_to(lines)
        try:
            letter, began = unpacked(message.content), monotonic()
            written = named(settings.node)(settings).answer(letter)
            sizes = f"{len(letter) / 1e6:.2f} MB with {len(written) / 1e6:.2f} MB"
            log.info("answered a letter of %s after %.1f s", sizes, monotonic() - began)
            return Message(packed(written), reply_to=message)
        except UserError as error:
            log.error("error: %s", error)
        except Exception:
            log.exception("error: the letter could not be answered")
    return Message(Error(0, "it failed; its own log says why"), reply_to=message)


def tell_name(message: Message, context: Context) -> Message:
    """What the node calls itself, for a federation without keys."""
    settings = NodeSettings.read(str(context.node_config["fedbraid"]))
    return Message(RecordDict({"node": ConfigRecord({"name": settings.name})}), reply_to=message)


client = ClientApp()
client.query("letter")(answer)
client.query("name")(tell_name)


def node_of(settings: NodeSettings) -> Any:
    from fedbraid.cli_input import load_strands

    data_dir = Path(settings.data_dir) if settings.data_dir else None
    return named("fedbraid.federation.node:Node")(
        Path(settings.home),
        settings.name,
        named("fedbraid.federation.holding:Named").of(settings.holds, settings.part, data_dir),
        own=load_strands(settings.strands),
        device=settings.device,
    )


# --- what `fedbraid serve` asks of the SuperLink


class Control:
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

        self._client.RegisterNode(RegisterNodeRequest(public_key=key, name=name))

    def start_run(self, settings: Path) -> int:
        from flwr.cli.build import build_fab_from_files
        from flwr.common.serde import fab_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        content, _ = build_fab_from_files({"pyproject.toml": app(settings).encode()})
        started = self._client.StartRun(StartRunRequest(fab=fab_to_proto(Fab("", content, {}))))
        if not started.HasField("run_id"):
            raise UserError("Flower would not start the run; superlink.log says why")
        return int(started.run_id)

    def status(self, run: int) -> str:
        """Such as running, or finished:completed."""
        from flwr.proto.control_pb2 import ListRunsRequest

        found = self._client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        return f"{found.status}:{found.sub_status}" if found.sub_status else str(found.status)

    def close(self) -> None:
        self._client.close()


def app(settings: Path) -> str:
    """The app that Flower ships: the names of the two parts above, and where the server's settings are."""
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
            f'serverapp = "{__name__}:server"',
            f'clientapp = "{__name__}:client"',
            "[tool.flwr.app.config]",
            f"settings = {json.dumps(str(settings))}",
        ]
    )


# --- the processes, each of them one of Flower's with what it lacks


def superlink(guard: Path, arguments: list[str]) -> None:
    """Flower's SuperLink behind a guard."""
    import uvicorn
    from flwr.superlink.cli import flower_superlink

    server_of: Any = uvicorn
    settings = GuardSettings.read(guard)
    say = once_a_minute(lambda text: print(text, file=sys.stderr, flush=True))

    def run(*, app: Any, **options: Any) -> None:
        guarded = Guard(app, settings.token, settings.most, settings.names, say)
        ours = {"access_log": False, "proxy_headers": False, "timeout_graceful_shutdown": 1}
        config = uvicorn.Config(guarded, **options | ours)
        config.load()
        if config.ssl is not None:
            loud_about_tls(config.ssl, say)
        uvicorn.Server(config).run()

    server_of.run = run
    _as("flower-superlink", arguments)
    flower_superlink()


def supernode(arguments: list[str]) -> None:
    """Flower's SuperNode, which looks for letters, and for a server that was away, more often.

    It also gives more signs of life. A server takes a node that was killed for there until they stop, and meanwhile
    lets no other in with its key.
    """
    from flwr.supercore import heartbeat
    from flwr.supernode import fleet_http_connection, start_client_internal
    from flwr.supernode.cli import flower_supernode

    loop: Any = start_client_internal
    loop.time = SimpleNamespace(sleep=lambda seconds: sleep(min(seconds, NODE_POLL)))
    for module in (heartbeat, fleet_http_connection):
        beats: Any = module
        beats.HEARTBEAT_DEFAULT_INTERVAL = NODE_BEAT
    _retry_within(NODE_RETRY)
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
    from flwr.supercore.superexec.executor import LaunchResult
    from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor

    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__, "flwr.supernode.runtime.run_clientapp", "fedbraid.experiment"])
    forkserver.ensure_running()

    def launch(_: object, spec: Any) -> Any:
        if spec.task_type != TaskType.CLIENT_APP:
            print(f"refused: the server wants a {spec.task_type} to run here", file=sys.stderr, flush=True)
            return LaunchResult.failed("only a ClientApp runs here")
        processes.Process(target=work, args=(spec.runtime_api_address, spec.token, os.getpid())).start()
        return LaunchResult.accepted()

    executor: Any = SubprocessExecutor
    executor.launch = launch
    _retry_within(1)  # its SuperNode, on the same machine, may be started again
    superexec(arguments)


def work(address: str, token: str, parent: int) -> None:
    """Flower's ClientApp process, with our ClientApp in place of the one that came over the network."""
    from flwr.supernode.runtime import run_clientapp

    ours = {
        "install_from_fab": lambda *_, **__: None,
        "get_load_client_app_fn": lambda *_, **__: lambda *_, **__: client,
    }
    for place, mine in ours.items():
        if not hasattr(run_clientapp, place):
            raise RuntimeError(f"this version of Flower has no {place}; what it would run is not known")
        setattr(run_clientapp, place, mine)
    run_clientapp.run_clientapp(address, token, insecure=True, parent_pid=parent)


def _retry_within(seconds: int) -> None:
    """Flower waits longer and longer before it looks again for who did not answer; so long at most."""
    from flwr.supercore.retry import http_retry

    retry: Any = http_retry
    retry.MAX_RETRY_DELAY = seconds


def _as(program: str, arguments: list[str]) -> None:
    sys.argv[:] = [program, *arguments]
