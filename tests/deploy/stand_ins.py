"""A node and a conductor that do next to nothing, for tests of what carries their messages."""

from __future__ import annotations

import json
import logging
import os
from hashlib import sha256
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace

log = logging.getLogger("fedbraid.stand_ins")


class EchoNode:
    """Answers with its name and the message; counts its messages on disk; does as the message says."""

    def __init__(self, settings):
        self.home, self.name = Path(settings.home), settings.name

    def answer(self, message):
        self.home.mkdir(parents=True, exist_ok=True)
        count = self.home / "count"
        count.write_text(str(int(count.read_text()) + 1 if count.exists() else 1))
        if message.startswith(b"big "):
            return bytes(int(message[4:]))
        if message.startswith(b"fail"):
            raise RuntimeError("a secret of this machine")
        if message.startswith(b"die"):
            os._exit(9)
        if message.startswith(b"slow "):
            (self.home / "slow").touch()
            sleep(float(message[5:]))
        log.info("message %s of %s bytes", count.read_text(), len(message))
        told = message if len(message) < 100 else f"{len(message)} {sha256(message).hexdigest()}".encode()
        return b" ".join([self.name.encode(), count.read_text().encode(), told])


class Done(SimpleNamespace):
    """What is shown of a finished run."""

    config = SimpleNamespace(method="fedavg")
    rounds: tuple[dict, ...] = ()
    client_scores: dict = {}
    summary = dict.fromkeys(["last", "best", "best_round", "mean_last5", "mean_last10", "seconds"], 0.5) | {
        "metric": "accuracy",
        "diverged": None,
        "target": 0,
        "rounds": 1,
        "bytes_up": 1,
        "bytes_down": 1,
    }

    def report(self, out):
        (out / "report.html").write_text("done")


def conduct(
    config,
    transport,
    roster,
    *,
    out,
    resume,
    min_clients,
    seconds,
    on_round,
    data_dir,
    own,
    network,
    secure,
    verify,
    limits,
):
    """Does what files tell it: `ask-1.json` has messages to exchange, `got-1.json` then has the answers, and so on.

    A resumed run goes on after the last answers.
    """
    while len(transport.present()) < len(roster):
        sleep(0.1)
    number = 1 + (len(list(out.glob("got-*.json"))) if resume else 0)
    log.info("conducting from %s on", number)
    while True:
        (out / "present.tmp").write_text(json.dumps(transport.present()))
        os.replace(out / "present.tmp", out / "present.json")
        ask = out / f"ask-{number}.json"
        if not ask.exists():
            sleep(0.1)
            continue
        messages, within = json.loads(ask.read_text())
        if messages is None:
            return Done()
        began = monotonic()
        answers = transport.exchange({name: text.encode() for name, text in messages.items()}, within)
        got = {name: answer[:200].decode(errors="replace") for name, answer in answers.items()}
        log.info("exchange %s took %.2f s: %s", number, monotonic() - began, ", ".join(sorted(got)))
        (out / "got.tmp").write_text(json.dumps(got))
        os.replace(out / "got.tmp", out / f"got-{number}.json")
        number += 1
