"""Servers and clients as processes of their own, whose messages are written by stand-ins; none is left behind.

python parties.py server SETTINGS.json HOST:PORT [KEYS]
python parties.py client SETTINGS.json HOST:PORT [KEYS]
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

HERE = Path(__file__).parent
MARK = "FEDBRAID_TEST_FAMILY"
"""What all descendants of a test have in their environment."""


class Party:
    """A process, and the lines it has said."""

    def __init__(self, *words, env=None):
        self.lines = []
        self.process = subprocess.Popen(
            [sys.executable, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | {"COLUMNS": "200"} | (env or {}),
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        with self.process.stdout as lines:
            for line in lines:
                self.lines.append(line.rstrip("\n"))

    def said(self, text):
        return [line for line in self.lines if text in line]

    def wait_for(self, text, seconds=120, times=1):
        return wait(lambda: len(self.said(text)) >= times and self.said(text), seconds, f"{text!r} in", self.lines)

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, seconds=30):
        return self.process.wait(seconds)


def wait(look, seconds, what="", details=()):
    """Until `look` finds something; it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = look()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds} s for {what}\n" + "\n".join(details))


class Family:
    """All processes of a test, down to the last grandchild."""

    def __init__(self, folder):
        self.folder, self.digest, self.parties = folder, uuid.uuid4().hex, []
        self.env = {MARK: self.digest, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])])}

    def start(self, *words):
        party = Party(*words, env=self.env)
        self.parties.append(party)
        return party

    def server(self, roster, address, keys=None, **settings):
        out = self.folder / "out"
        given = {"config": {"rounds": 1}, "roster": list(roster), "out": str(out), "conduct": "stand_ins:conduct"}
        return self._party("server", given | settings, address, keys), Talk(out)

    def client(self, name, address, keys=None, **settings):
        given = {"name": name, "home": str(self.folder / name), "node": "stand_ins:EchoNode"}
        return self._party("client", given | settings, address, keys)

    def _party(self, role, settings, address, keys):
        file = self.folder / f"{uuid.uuid4().hex}.json"
        file.write_text(json.dumps(settings))
        return self.start(HERE / "parties.py", role, file, address, *([keys] if keys else []))

    def alive(self):
        """The descendants that have not ended, as (pid, command)."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                ours = f"{MARK}={self.digest}".encode() in (place / "environ").read_bytes().split(b"\0")
                state = (place / "stat").read_text().rpartition(")")[2].split()[0]
                if ours and state != "Z":
                    words = (place / "cmdline").read_bytes().split(b"\0")
                    found.append((int(place.name), b" ".join(words).decode(errors="replace")))
            except OSError:
                pass
        return found

    def end(self):
        for party in reversed(self.parties):
            if party.process.poll() is None:
                party.signal(signal.SIGTERM)
        for party in self.parties:
            try:
                party.wait(20)
            except subprocess.TimeoutExpired:
                party.process.kill()
        try:
            self.ended(10)
        finally:
            for pid, _ in self.alive():
                os.kill(pid, signal.SIGKILL)

    def ended(self, seconds):
        """Wait until nobody is left."""
        wait(lambda: not self.alive(), seconds, "the end of", [str(one) for one in self.alive()])


class Talk:
    """What a conducting stand-in is asked, and says."""

    def __init__(self, out):
        self.out, self.number = out, 0

    def present(self):
        file = self.out / "present.json"
        return json.loads(file.read_text()) if file.exists() else []

    def wait_for(self, *names, seconds=180):
        wait(lambda: set(names) <= set(self.present()), seconds, f"{names} among", [str(self.present())])

    def ask(self, messages, within=120):
        self.number += 1
        beside = self.out / "ask.tmp"
        beside.write_text(json.dumps([messages, within]))
        beside.rename(self.out / f"ask-{self.number}.json")

    def got(self, seconds=150):
        file = self.out / f"got-{self.number}.json"
        wait(file.exists, seconds, f"{file.name}; the log:", [(self.out / "flower" / "server.log").read_text()])
        return json.loads(file.read_text())

    def exchange(self, messages, within=120):
        self.ask(messages, within)
        return self.got(within + 10)

    def finish(self):
        self.ask(None)


class Federation:
    """A server with clients that have joined it, with keys or without."""

    def __init__(self, folder, names, *, secure=True, **settings):
        from fedbraid.deploy.address import Address
        from fedbraid.deploy.keys import make_keys
        from fedbraid.deploy.processes import free_port

        self.family, self.names, self.address = Family(folder), names, Address("127.0.0.1", free_port())
        self.keys = folder / "keys" if secure else None
        if secure:
            make_keys(self.keys, [], names)
        try:
            self.serve(**settings)
            self.clients = {name: self.join(name) for name in names}
            self.talk.wait_for(*names)
        except BaseException:
            self.family.end()
            raise

    def serve(self, **settings):
        keys = self.keys / "server" if self.keys else None
        self.server, self.talk = self.family.server(self.names, self.address, keys, **settings)

    def join(self, name):
        return self.family.client(name, self.address, self.keys / name if self.keys else None)

    def log(self):
        return (self.talk.out / "flower" / "server.log").read_text()

    def processes(self, *words):
        """The numbers of those whose commands have all the words."""
        return [pid for pid, command in self.family.alive() if all(word in command for word in words)]


def main():
    from fedbraid.deploy.address import Address
    from fedbraid.deploy.client_process import run_node
    from fedbraid.deploy.process_settings import NodeSettings, ServerSettings
    from fedbraid.deploy.server_process import run_server
    from fedbraid.errors import UserError

    _, role, file, address, *keys = sys.argv
    kind, run = {"server": (ServerSettings, run_server), "client": (NodeSettings, run_node)}[role]

    def say(line):
        print(line, flush=True)

    try:
        run(kind.read(file), Address.parse(address), Path(keys[0]) if keys else None, say)
        say("finished")
    except UserError as error:
        say(f"error: {error}")
    except KeyboardInterrupt:
        say("interrupted")


if __name__ == "__main__":
    main()
