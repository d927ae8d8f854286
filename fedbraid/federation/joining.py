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
from fedbraid.federation.address import Address, check_server
from fedbraid.federation.keys import CA
from fedbraid.federation.processes import (
    Child,
    Tail,
    alone_in,
    ended_with_us,
    environment,
    free_port,
    last_lines,
    start,
)
from fedbraid.federation.serving import new_secret
from fedbraid.federation.settings import NodeSettings

PAUSE = 2.0
"""Seconds before a SuperNode that has ended is started again."""

UNKNOWN = 10.0
"""Seconds for which a server that does not know our key may be another that is about to end."""

Say = Callable[[str], None]


def run_node(settings: NodeSettings, address: Address, keys: Path | None, say: Say) -> None:
    """Take part until interrupted. `keys` is the client's folder; None = no TLS."""
    for file in () if keys is None else (keys / CA, keys / "node.key"):
        if not file.is_file():
            raise UserError(f"there is no file {file}; --keys is the folder that `fedbraid keys` made for this client")
    with alone_in(settings.place), ended_with_us() as children:
        _join(settings, address, keys, children, say)


def _join(settings: NodeSettings, address: Address, keys: Path | None, children: list[Child], say: Say) -> None:
    place = settings.place
    ca = None if keys is None else keys / CA
    watched = Connection(address, ca, settings.name, say)
    watched.look()
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
            watched.look()
            children[0] = start_node()
        sleep(0.2)


class Connection:
    """What is known of the server, from its own answer and from what the SuperNode says."""

    def __init__(self, address: Address, ca: Path | None, name: str, say: Say) -> None:
        self.address, self.ca, self.name, self.say = address, ca, name, say
        self.began = monotonic()
        self.joined = 0
        self.here = self.told = self.unknown = False

    def look(self) -> None:
        """Whether the server is there, and the right one. One that was the right one before may be so again."""
        try:
            if not check_server(self.address, self.ca):
                self.away()
        except UserError as error:
            if not self.joined:
                raise
            self.say(str(error))

    def hear(self, line: str) -> None:
        if "SuperNode ID:" in line:
            self.say(f"{self.name} has joined {self.address}" + (" again" if self.joined else ""))
            self.joined += 1
            self.here, self.told, self.unknown = True, False, False
        elif "Connection attempt failed" in line:
            self.away()
        elif "Failed to activate SuperNode" in line:
            self.unknown = True

    def away(self) -> None:
        if not self.told:
            self.say(f"{self.address} does not answer; looking for it until it does")
        self.told = True

    def ended(self, log: Path) -> None:
        """Whether to go on is a question of whether it was ever here."""
        if self.here:
            self.say(f"the connection to {self.address} has ended; joining again")
        elif not self.joined and not self.unknown:
            raise UserError(f"Flower's SuperNode did not start; {log} ends with:\n{last_lines(log)}")
        elif not self.joined and monotonic() - self.began > UNKNOWN:
            raise UserError(f"{self.address} does not know the key of {self.name}: is it in the server's roster?")
        self.here = False
