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
from dataclasses import replace
from pathlib import Path
from time import sleep

from fedbraid.deploy.address import Address, check_server
from fedbraid.deploy.keys import CA, public_of
from fedbraid.deploy.process_settings import NodeSettings
from fedbraid.deploy.processes import Child, Tail, alone_in, ended_with_us, environment, free_port, last_lines, start
from fedbraid.deploy.server_process import SECRET, new_secret
from fedbraid.errors import UserError
from fedbraid.storage.private import private_folder

PAUSE = 2.0
"""Seconds before a SuperNode that has ended is started again."""

Say = Callable[[str], None]


def run_node(settings: NodeSettings, address: Address, keys: Path | None, say: Say) -> None:
    """Take part until interrupted. `keys` is the client's folder; None = no TLS."""
    if keys is not None and not (keys / CA).is_file():
        raise UserError(f"there is no file {keys / CA}; --keys is the folder that `fedbraid keys` made for this client")
    if keys is not None:
        settings = replace(settings, keys=str(keys))
    if not Path(settings.home).exists():  # one that is there has the mode that its owner chose
        private_folder(Path(settings.home))
    with alone_in(settings.folder), ended_with_us() as children:
        _join(settings, address, keys, children, say)


def _join(settings: NodeSettings, address: Address, keys: Path | None, children: list[Child], say: Say) -> None:
    folder = settings.folder
    watched = Connection(address, keys, settings.name, say)
    watched.look()
    secret, ours, port = new_secret(folder / SECRET), settings.write(folder / "node.json"), free_port()
    env = environment(folder / "home")
    ways = (
        ["--insecure"]
        if keys is None
        else [f"--root-certificates={keys / CA}", f"--auth-supernode-private-key={keys / 'node.key'}"]
    )
    own_log = Tail(settings.log, from_now=True)
    exec_log = Tail(folder / "clientexec.log", from_now=True)

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
            log=folder / "supernode.log",
            env=env,
        )

    node_log = Tail(folder / "supernode.log", from_now=True)
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
            log=folder / "clientexec.log",
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
        if watched.gave_up and not ended:
            # After one failed TLS handshake Flower's SuperNode stops trying, but its process stays: without a new one
            # the client would wait for ever for a server that has long been well again.
            children[0].end()
            watched.gave_up, ended = False, True
        if children[1].ended:
            raise UserError(f"Flower's SuperExec ended; {children[1].log} ends with:\n{last_lines(children[1].log)}")
        if ended:
            watched.ended(folder / "supernode.log")
            sleep(PAUSE)
            watched.look()
            children[0] = start_node()
        sleep(0.2)


class Connection:
    """State of the connection to the server, from its own answer and the SuperNode's log."""

    def __init__(self, address: Address, keys: Path | None, name: str, say: Say) -> None:
        self.address, self.name, self.say = address, name, say
        self.ca = keys / CA if keys else None
        self.key = public_of(keys / "node.key") if keys else b""
        self.joined = self.here = self.refused = self.gave_up = False
        self.last = ""

    def look(self) -> None:
        """Check the server. One that was right before may be so again, so only the first error is raised."""
        try:
            if not check_server(self.address, self.ca, self.key):
                self._away()
        except UserError as error:
            if not self.joined:
                raise
            self._tell(str(error))

    def hear(self, line: str) -> None:
        if "SuperNode ID:" in line:
            self._tell(f"{self.name} has joined {self.address}" + (" again" if self.joined else ""))
            self.joined = self.here = True
        elif "Giving up reconnection" in line:
            self.gave_up = self.refused = True
        elif "Connection attempt failed" in line:
            self._away()
        elif "Failed to activate SuperNode" in line:
            self.refused = True
            self._tell(f"{self.address} believes that {self.name} is there already; waiting until it does not")

    def ended(self, log: Path) -> None:
        if not self.joined and not self.refused:
            raise UserError(f"Flower's SuperNode did not start; {log} ends with:\n{last_lines(log)}")
        if self.here:
            self._tell(f"the connection to {self.address} has ended; joining again")
        self.here = False

    def _away(self) -> None:
        self._tell(f"{self.address} does not answer; looking for it until it does")

    def _tell(self, text: str) -> None:
        """Nothing is told twice in a row."""
        if text != self.last:
            self.say(text)
        self.last = text
