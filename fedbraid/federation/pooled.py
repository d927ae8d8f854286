"""A model tested by the clients, each on its own test samples, where the server has none."""

from __future__ import annotations

import logging
from typing import Any

from torch import Tensor

from fedbraid.federation.letters import Letter, Refused
from fedbraid.federation.mail import Mail

log = logging.getLogger("fedbraid")


def pooled(mail: Mail, w: Tensor, buffers: Tensor, round: int) -> dict[str, Any]:
    """Accuracy and loss over the test samples of all clients together, and who they are."""
    here = mail.here()
    letter = Letter("evaluate", mail.register.run, round, {}, {"model": w, "buffers": buffers}).written()
    letters = {name: letter for name, tests in mail.tests.items() if tests and name in here}
    scores, refused = mail.ask(letters, round, {}, _score)
    for name, (tests, _, _) in list(scores.items()):
        if tests != mail.tests[name]:
            refused[name] = f"it tested on {tests:,} samples, and has {mail.tests[name]:,}"
            del scores[name]
    for name, reason in refused.items():
        log.warning("round %d is tested without %s: %s", round, name, reason)
    samples = sum(tests for tests, _, _ in scores.values())
    hits = [hits for _, _, hits in scores.values() if hits is not None]
    return {
        "accuracy": sum(hits) / samples if hits else None,
        "loss": sum(loss for _, loss, _ in scores.values()) / samples if samples else None,
        "per_class": None,
        "tested_by": list(scores),
        "tests": samples,
    }


def _score(answer: Letter) -> tuple[int, float, int | None]:
    """How many test samples a client has, the sum of their losses, and how many were right (None in a regression)."""
    tests, loss = answer.count("tests", 1), answer.number("loss")
    hits = answer.count("hits") if "hits" in answer.told else None
    if hits is not None and hits > tests:
        raise Refused(f"it says that {hits:,} of its {tests:,} test samples were right")
    return tests, loss, hits
