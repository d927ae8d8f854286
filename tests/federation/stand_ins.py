"""A node and a conductor that do next to nothing, for tests of what carries their letters."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace

log = logging.getLogger("fedbraid.stand_ins")


class EchoNode:
    """Answers with its name and the letter; counts its letters on disk; does as the letter says."""

    def __init__(self, home, name, data, *, data_dir, own):
        self.home, self.name = Path(home), name

    def answer(self, letter):
        self.home.mkdir(parents=True, exist_ok=True)
        count = self.home / "count"
        count.write_text(str(int(count.read_text()) + 1 if count.exists() else 1))
        if letter.startswith(b"big "):
            return bytes(int(letter[4:]))
        if letter.startswith(b"fail"):
            raise RuntimeError("a secret of this machine")
        if letter.startswith(b"die"):
            os._exit(9)
        log.info("letter %s of %s bytes", count.read_text(), len(letter))
        return self.name.encode() + b" " + count.read_text().encode() + b" " + letter


class Done(SimpleNamespace):
    """What is shown of a finished run."""

    config = SimpleNamespace(method="fedavg")
    rounds: tuple[dict, ...] = ()
    summary = {"metric": "accuracy", "target": 0, "seconds": 1.0, "rounds": 1, "bytes_up": 1, "bytes_down": 1} | dict.fromkeys(
        ["last", "best", "best_round", "mean_last5", "mean_last10"], 0.5
    )

    def report(self, out):
        (out / "report.html").write_text("done")


def conduct(config, transport, roster, *, out, resume, min_clients, seconds, on_round, data_dir, own):
    """Rounds in which everybody present gets `round N`; the answers are kept, and a resumed run goes on."""
    out.mkdir(parents=True, exist_ok=True)
    kept = out / "answers.jsonl"
    before = len(kept.read_text().splitlines()) if resume and kept.exists() else 0
    need = min_clients or len(roster)
    said = json.loads(os.environ.get("STAND_IN_LETTERS", "{}"))
    while len(transport.present()) < need:
        sleep(0.2)
    for number in range(before + 1, config.rounds + 1):
        began = monotonic()
        letters = {name: said.get(name, f"round {number}").encode() for name in roster}
        answers = transport.exchange(letters, seconds)
        while len(answers) < need:
            log.info("round %s has only %s", number, sorted(answers))
            sleep(0.5)
            answers = transport.exchange(letters, seconds)
        with open(kept, "a") as lines:
            text = {name: answers[name][:100].decode(errors="replace") for name in sorted(answers)}
            lines.write(json.dumps({"round": number, "answers": text, "seconds": monotonic() - began}) + "\n")
        log.info("round %s: %s", number, ", ".join(sorted(answers)))
    return Done()
