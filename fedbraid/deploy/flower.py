"""Messages over Flower, whose interfaces move: only this module, and `flower_programs` for its programs, know it.

The server's work is a ServerApp: it sends messages as messages over Flower's Grid. A client's work is a ClientApp: it
has a node answer the message of a message. Both are parts of this package; the app that Flower ships is their names
and nothing else, and clients started by `fedbraid join` run their own installation, whatever app they are sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Event, Semaphore, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp

from fedbraid.deploy.audit import FILE, record, recording
from fedbraid.deploy.names import is_name
from fedbraid.deploy.process_settings import NodeSettings, ServerSettings, named
from fedbraid.deploy.processes import end_with_parent
from fedbraid.errors import UserError

if TYPE_CHECKING:
    from fedbraid.config.schema import Config
    from fedbraid.deploy.server_signature import ServerSigner

log = logging.getLogger(__name__)

MESSAGE_TYPE, NAME = "query.letter", "query.name"
POLL, MOST_POLLS = 0.3, 50
"""Seconds between two looks for an answer, and how many looks a second there are at most."""

LOOK, BACK = 3.0, 30.0
"""Seconds between two looks for clients that were started again, and seconds that they have for it."""

AT_ONCE = 4
"""Messages on their way to the SuperLink at a time."""


# --- the server's side

Node = tuple[int, str]
"""Flower's number of a node, and when the node was last started."""


class ClientGone(Exception):
    """A client gives no more signs of life."""


class GridTransport:
    """The clients of a Flower federation by name.

    `names` are the clients by their public keys, which Flower has checked. Without it (no TLS) clients are asked for
    their names and believed.
    """

    def __init__(
        self, grid: Grid, names: Mapping[bytes, str] | None, most: int, signer: ServerSigner | None = None
    ) -> None:
        self.grid, self.names, self.most, self.signer = grid, names, most, signer
        self._keys = {name: key for key, name in (names or {}).items()}
        self._called: dict[int, str] = {}  # what nodes call themselves
        self._asked: dict[str, int] = {}  # the nodes that were asked for their names, by message
        self._sending = Semaphore(AT_ONCE)
        self._here: set[str] = set()  # at the last look

    def present(self) -> list[str]:
        return sorted(self._nodes())

    def exchange(self, messages: Mapping[str, bytes], seconds: float) -> dict[str, bytes]:
        """Each client is asked in a thread of its own, so that one who stops in the middle holds up no other.

        A client that was started again has lost its message and gets it again. One that is gone has a while to come
        back; then the round need not wait for it.
        """
        until = monotonic() + seconds
        asked: dict[str, Node] = {}
        gone: dict[str, float] = {}  # until when they are waited for
        answers: dict[str, bytes] = {}
        arrived: Queue[tuple[str, Node, bytes | ClientGone | None]] = Queue()
        over = Event()

        def ask(name: str, node: Node) -> None:
            answer: bytes | ClientGone | None = None
            try:
                pause = max(POLL, len(asked) / MOST_POLLS)
                answer = self._answer(name, node, messages[name], max(1.0, until - monotonic()), pause, over)
            except ClientGone as error:
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

        ask_anew(messages)
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
            elif asked[name] == node and isinstance(answer, ClientGone):
                log.warning("%s is gone; there are %.0f s for it to come back", name, min(BACK, left))
                gone[name] = monotonic() + BACK
            elif asked[name] == node:
                waiting.discard(name)
        over.set()
        return answers

    def _answer(self, name: str, node: Node, message: bytes, seconds: float, pause: float, over: Event) -> bytes | None:
        with self._sending:
            numbers = list(
                self.grid.push_messages([Message(self._packed(name, message), node[0], MESSAGE_TYPE, ttl=seconds)])
            )
        if not numbers or not numbers[0]:
            log.warning("%s: Flower would not take its message of %s bytes", name, f"{len(message):,}")
            return None
        while not over.is_set():
            for reply in self.grid.pull_messages(numbers):
                return self._opened(name, reply)
            over.wait(pause)
        return None

    def _packed(self, name: str, message: bytes) -> RecordDict:
        """A message with the server's signature for this client, where there are keys to sign with."""
        content = packed(message)
        if self.signer is not None:
            signed = self.signer.sign(message, self._keys[name])
            content["signature"] = ConfigRecord({"signature": signed.signature, "certificate": signed.certificate})
        return content

    def _opened(self, name: str, reply: Message) -> bytes | None:
        """The message in a reply; whatever else it may be is refused with a line."""
        if reply.has_error() and reply.error.code == ErrorCode.NODE_UNAVAILABLE:
            raise ClientGone
        if reply.has_error():
            log.warning("%s: no answer: %s", name, _one_line(reply.error.reason))
            return None
        try:
            message = unpacked(reply.content)
        except (KeyError, TypeError, AttributeError, ValueError):
            log.warning("%s: refused: its answer is no message", name)
            return None
        if len(message) > self.most:
            log.warning(
                "%s: refused: its answer has %s bytes, more than %s", name, f"{len(message):,}", f"{self.most:,}"
            )
            return None
        return message

    def _nodes(self) -> dict[str, Node]:
        """The nodes that are online, by the names of their clients; of two with the same name, the newer."""
        online = sorted(self.grid.get_nodes(), key=lambda node: node.last_activated_at)
        if self.names is None:
            self._learn_names({node.node_id for node in online})
            called = {node.node_id: self._called.get(node.node_id) for node in online}
        else:
            called = {node.node_id: self.names.get(node.public_key) for node in online}
        found = {name: (node.node_id, node.last_activated_at) for node in online if (name := called[node.node_id])}
        self._note_changes(set(found))
        return found

    def _note_changes(self, here: set[str]) -> None:
        """Log who has connected or left since the last look; without keys, whoever says that it is called so."""
        unauthenticated = " (unauthenticated)" if self.names is None else ""
        for name in sorted(here - self._here):
            log.info("%s connected%s", name, unauthenticated)
            record("connected", f"it is online{unauthenticated}", client=name, key=self._keys.get(name, b"").decode())
        for name in sorted(self._here - here):
            log.info("%s left: no more signs of life", name)
            record("left", "no more signs of life", client=name, key=self._keys.get(name, b"").decode())
        self._here = here

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


def packed(message: bytes) -> RecordDict:
    """A message as arrays, which Flower sends in pieces. The tensors are one of their own, after the header with its
    length before it: where all clients get the same ones, Flower keeps their pieces once."""
    head = 8 + int.from_bytes(message[:8], "little")
    parts = [message[:head], message[head:]] if head < len(message) else [message]
    arrays = {str(number): Array("uint8", (len(part),), "bytes", part) for number, part in enumerate(parts)}
    return RecordDict({"letter": ArrayRecord(arrays)})


def unpacked(content: RecordDict) -> bytes:
    arrays = content.array_records["letter"]
    if list(arrays) not in (["0"], ["0", "1"]):
        raise ValueError("a message has a header and tensors")
    return b"".join(array.data for array in arrays.values())


def _one_line(text: object) -> str:
    return " ".join(str(text).split())[:300]


def serve(grid: Grid, context: Context) -> None:
    """Run the federation that the file named in the run's configuration describes."""
    from fedbraid.config.schema import from_dict
    from fedbraid.deploy.server_signature import ServerSigner
    from fedbraid.deploy.update_limits import UpdateLimits
    from fedbraid.storage.files import write_json
    from fedbraid.training.user_code import load_network, load_strands

    end_with_parent()
    settings = ServerSettings.read(str(context.run_config["settings"]))
    error: str | None = "the server's process ended in the middle"
    with _logging_to(settings.log), recording(settings.folder / FILE):
        try:
            names = None if settings.names is None else {key.encode(): name for key, name in settings.names.items()}
            signer = ServerSigner(Path(settings.keys)) if settings.keys else None
            done = named(settings.conduct)(
                from_dict(settings.config),
                GridTransport(grid, names, settings.most, signer),
                settings.roster,
                out=Path(settings.out),
                resume=settings.resume,
                min_clients=settings.min_clients,
                seconds=settings.seconds,
                on_round=_log_round,
                data_dir=Path(settings.data_dir) if settings.data_dir else None,
                own=load_strands(settings.strands),
                network=load_network(settings.network),
                secure=settings.secure,
                verify=_verifier(names) if settings.secure else None,
                limits=UpdateLimits(**settings.limits),
            )
            done.report(Path(settings.out))
            error = None
        except UserError as wrong:
            error = str(wrong)
        except Exception as wrong:
            log.exception("the run failed")
            error = f"{type(wrong).__name__}: {_one_line(wrong)}"
        finally:
            write_json(settings.done, {"error": error})


def _log_round(record: dict[str, Any], config: Config) -> None:
    """Log one round: its number, its scores where the model was evaluated, and the speed."""
    from fedbraid.core.metrics import is_share
    from fedbraid.report.run_groups import metric_of, validated
    from fedbraid.report.words import score

    parts = [f"{config.called} seed {config.seed}: round {record['round']}/{config.rounds}"]
    if metric := metric_of([record]):
        unit = " %" if is_share(metric) else ""
        parts.append(f"{metric} {score(record[metric], metric)}{unit}")
        if held_out := validated([record], metric):
            parts[-1] += f", on validation {score(record[held_out], metric)}{unit}"
    parts.append(f"{record['backward_samples'] / max(record['seconds'], 1e-9):,.0f} samples/s")
    log.info("%s", "  ".join(parts))


def _verifier(names: Mapping[bytes, str] | None) -> Callable[[str, bytes, bytes], bool] | None:
    """Return the check of clients' signatures under secure sums; None without keys."""
    if names is None:
        return None
    from fedbraid.deploy.identity import PublicKeys

    return PublicKeys({name: key for key, name in names.items()}).verify


server = ServerApp()
server.main()(serve)


@contextmanager
def _logging_to(file: Path) -> Iterator[None]:
    """Our own lines into a file, with the time, and nowhere else."""
    ours = logging.getLogger("fedbraid")
    before = ours.handlers[:], ours.level, ours.propagate
    with open(file, "a", encoding="utf-8", buffering=1) as lines:
        handler = logging.StreamHandler(lines)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S"))
        ours.handlers[:], ours.propagate = [handler], False
        ours.setLevel(logging.INFO)
        try:
            yield
        finally:
            ours.handlers[:], _, ours.propagate = before
            ours.setLevel(before[1])


# --- the client's side


def answer(message: Message, context: Context) -> Message:
    """Answer one message of the server's in this process.

    The reason of a failure stays in the client's own log; the server learns only that there was one.
    """
    settings = NodeSettings.read(str(context.node_config["fedbraid"]))
    with _logging_to(settings.log):
        try:
            question, began = unpacked(message.content), monotonic()
            _check_sender(settings, message.content, question)
            reply = named(settings.node)(settings).answer(question)
            log.info("%s", _exchange_line(question, reply, monotonic() - began))
            return Message(packed(reply), reply_to=message)
        except UserError as error:
            log.error("error: %s", error)
        except Exception:
            log.exception("error: the message could not be answered")
    return Message(Error(0, "it failed; its own log says why"), reply_to=message)


def _check_sender(settings: NodeSettings, content: RecordDict, question: bytes) -> None:
    """Raise unless the server has signed this message for this client; without keys nobody can tell."""
    if settings.keys is None:
        return
    from fedbraid.deploy.keys import CA, public_of
    from fedbraid.deploy.server_signature import ServerVerifier, Signed

    keys, record = Path(settings.keys), content.config_records.get("signature", ConfigRecord())
    signature, certificate = record.get("signature"), record.get("certificate")
    if not isinstance(signature, bytes) or not isinstance(certificate, bytes):
        signed = None
    else:
        signed = Signed(signature, certificate)
    ServerVerifier(keys / CA, public_of(keys / "node.key")).check(question, signed)


def _exchange_line(question: bytes, reply: bytes, seconds: float) -> str:
    """Describe one exchange for the client's log: the round, the sizes, and the time that the answer took."""
    from fedbraid.deploy.messages import kind_and_round
    from fedbraid.report.words import in_bytes

    kind, round = kind_and_round(question)
    verb = {"train": "trained", "evaluate": "evaluated", "probe": "probed"}.get(kind, "answered in")
    where = f"round {round + 1}: " if round >= 0 else ""
    return f"{where}received {in_bytes(len(question))}, {verb} {seconds:.1f} s, sent {in_bytes(len(reply))}"


def tell_name(message: Message, context: Context) -> Message:
    """Answer with the client's name, for a federation without keys."""
    settings = NodeSettings.read(str(context.node_config["fedbraid"]))
    return Message(RecordDict({"node": ConfigRecord({"name": settings.name})}), reply_to=message)


client = ClientApp()
client.query("letter")(answer)
client.query("name")(tell_name)


def node_of(settings: NodeSettings) -> Any:
    from fedbraid.training.user_code import load_network, load_strands

    data_dir = Path(settings.data_dir) if settings.data_dir else None
    keys = Path(settings.keys) if settings.keys else None
    return named("fedbraid.deploy.node:Node")(
        Path(settings.home),
        settings.name,
        named("fedbraid.deploy.client_data:NamedData").of(settings.holds, settings.part, data_dir),
        own=load_strands(settings.strands),
        network=load_network(settings.network),
        device=settings.device,
        identity=named("fedbraid.deploy.identity:Identity").of(keys) if keys else None,
        secure=settings.secure,
    )
