"""The audit log: every decision, each time."""

import json
import stat

from fedbraid.deploy.audit import fingerprint, record, recording


def test_a_line_for_each_decision(tmp_path):
    file = tmp_path / "audit.jsonl"
    record("lost", "nobody listens", client="a")
    with recording(file):
        for _ in range(2):
            record("refused", "a key \u2028 that\nis new", client="b", key="PEM")
    record("lost", "nobody listens any more")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(lines) == 2 and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {key: lines[0][key] for key in ("client", "key", "decision", "reason")} == {
        "client": "b",
        "key": fingerprint("PEM"),
        "decision": "refused",
        "reason": "a key \u2028 that\nis new",
    }
    assert lines[0]["time"].endswith("+00:00") and fingerprint("") == ""
