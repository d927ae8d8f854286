"""A client's machine in a federation: Flower's SuperNode, and a SuperExec that runs our own code and no other.

    HOME/            what the client must not lose: its strands' states, by run
    HOME/flower/     node.log, supernode.log, clientexec.log, and what the processes tell one another

A SuperNode ends when the server does not know it any more, as after the server was started again; then another is
started. It is let go only when the server cannot be the right one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

from fedbraid.errors import UserError
from fedbraid.federation.keys import CA
from fedbraid.federation.processes import (
    Child,
    Tail,
    ended_with_us,
    environment,
    free_port,
    last_lines,
    start,
    terminable,
)
from fedbraid.federation.serving import new_secret
from fedbraid.federation.settings import NodeSettings

PAUSE = 2.0
"""Seconds before a SuperNode that has ended is started again."""

UNKNOWN = 30.0
"""Seconds for which a server that does not know our key may still be about to learn it."""

Say = Callable[[str], None]


def run_node(settings: NodeSettings, address: str, keys: Path | None, say: Say) -> None:
    """Take part until interrupted. `keys` is the client's folder; None = no TLS."""
    settings.place.mkdir(parents=True, exist_ok=True)
    settings.place.chmod(0o700)
    for file in () if keys is None else (keys / CA, keys / "node.key"):
        if not file.is_file():
            raise UserError(f"there is no file {file}; --keys is the folder that `fedbraid keys` made for this client")
    children: list[Child] = []
    with terminable(), ended_with_us(children):
        _join(settings, address, keys, children, say)


def _join(settings: NodeSettings, address: str, keys: Path | None, children: list[Child], say: Say) -> None:
    place = settings.place
    secret, ours, port = new_secret(place / "superexec.secret"), settings.write(place / "node.json"), free_port()
    env = environment(place / "home")
    ways = (
        ["--insecure"]
        if keys is None
        else [f"--root-certificates={keys / CA}", f"--auth-supernode-private-key={keys / 'node.key'}"]
    )
    own_log = Tail(settings.log, from_now=True)
    exec_log = Tail(place / "clientexec.log", from_now=True)

    def start_node() -> Child:
        return start(
            "supernode",
            [
                *ways,
                f"--superlink={address}",
                f"--port={port}",
                "--isolation=process",
                f"--superexec-auth-secret-file={secret}",
                f"--node-config=fedbraid={json.dumps(str(ours))}",
            ],
            log=place / "supernode.log",
            env=env,
        )

    node_log = Tail(place / "supernode.log", from_now=True)
    node = start_node()
    children.append(node)
    children.append(
        start(
            "clientexec",
            [
                "--insecure",
                f"--runtime-api-address=127.0.0.1:{port}",
                f"--superexec-auth-secret-file={secret}",
                f"--parent-pid={os.getpid()}",
            ],
            log=place / "clientexec.log",
            env=env,
        )
    )
    watched = Connection(address, settings.name, say)
    while True:
        for line in own_log.lines():
            say(line)
        for line in exec_log.lines():
            if line.startswith("refused: "):
                say(line)
        ended = children[0].ended
        for line in node_log.lines():
            watched.hear(line)
        if children[1].ended:
            raise UserError(f"Flower's SuperExec ended; {children[1].log} ends with:\n{last_lines(children[1].log)}")
        if ended:
            watched.ended(place / "supernode.log")
            sleep(PAUSE)
            children[0] = start_node()
        sleep(0.2)


class Connection:
    """What a SuperNode's lines say about the server."""

    def __init__(self, address: str, name: str, say: Say) -> None:
        self.address, self.name, self.say = address, name, say
        self.began = monotonic()
        self.was_there = self.is_there = False
        self.waiting = False
        self.why = ""

    def hear(self, line: str) -> None:
        if "SuperNode ID:" in line:
            self.say(f"{self.name} has joined {self.address}" + (" again" if self.was_there else ""))
            self.was_there = self.is_there = True
            self.waiting, self.why = False, ""
        elif "Connection attempt failed" in line and not self.waiting:
            self.waiting = True
            self.say(f"{self.address} does not answer; trying again until it does")
        else:
            self.why = next((why for sign, why in SIGNS.items() if sign in line), self.why)

    def ended(self, log: Path) -> None:
        """Go on, or give up with a sentence."""
        if self.why and not self.was_there and (self.why != UNKNOWN_KEY or monotonic() - self.began > UNKNOWN):
            raise UserError(f"{self.address}: {self.why}")
        if self.is_there:
            self.say(f"the connection to {self.address} has ended; joining again")
        elif not self.why and not self.was_there:
            raise UserError(f"Flower's SuperNode did not start; {log} ends with:\n{last_lines(log)}")
        self.is_there = False


UNKNOWN_KEY = "the server does not know this client's key; is its line in the server's roster?"
SIGNS = {
    "certificate verify failed": "the server's certificate is not from this federation's authority, or not for this "
    "name; do ca.pem and the address belong to the server?",
    "WRONG_VERSION_NUMBER": "the server does not speak TLS; is it the right port, and was it started with --insecure?",
    "wrong version number": "the server does not speak TLS; is it the right port, and was it started with --insecure?",
    "Server disconnected without sending a response": "the server does not speak plain HTTP; it wants TLS and --keys",
    "could not be activated": UNKNOWN_KEY,
    "Failed to activate": UNKNOWN_KEY,
}
"""What Flower's lines mean."""
