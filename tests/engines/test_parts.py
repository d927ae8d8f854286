"""A cohort in parts: uploads that are too large wait in a file, and nothing else changes."""

import gc
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from helpers import advanced, federation
from made_up_strands import MADE_UP

from fedbraid.core.client_step import Work
from fedbraid.engines.replies import Stacked, UploadCollector

METHODS = [
    "fedavg",
    "scaffold+avgm",
    "skip(every=2)+scaffold",
    "disco",
    "qfair",
    "fedacd",
    "nova",
    "rfedavg_plus",
    "tracker+teach+fair",
]


def came(most, parts=((4, 1), (0, 3), (2,)), dtype=torch.float64):
    """Five clients' uploads, which come in parts."""
    generator = torch.Generator().manual_seed(0)
    whole = {
        "model": torch.rand(5, 7, generator=generator).to(dtype),
        "s.matrix": torch.rand(5, 2, 3, generator=generator).to(dtype),
        "s.number": torch.rand(5, generator=generator),
        "log: loss": torch.rand(5, 50, generator=generator),
    }
    inbox = UploadCollector(5, most)
    for part in parts:
        inbox.add(np.array(part), {key: value[list(part)] for key, value in whole.items()})
    return whole, inbox.replies(Work(3, 2), frozen=2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("most", [0, 50, 10**9])
def test_what_came_in_parts_is_what_was_sent(most, dtype):
    whole, replies = came(most, dtype=dtype)
    plain = Stacked(whole, Work(3, 2), 2)
    assert set(replies.filed) == {0: set(whole), 50: {"model", "s.matrix", "log: loss"}, 10**9: set()}[most]
    weights = torch.tensor([0.5, -1, 2, 0, 0.25], dtype=torch.float64)
    for key in whole:
        assert torch.equal(replies.each(key), whole[key])
        exact = 1e-12 if whole[key].dtype == torch.float64 else 1e-6 if whole[key].dtype == torch.float32 else 0.05
        torch.testing.assert_close(replies.sum(key, weights), plain.sum(key, weights), rtol=exact, atol=exact)
    size = whole["model"].element_size()
    assert plain.bytes_up == 5 * (7 - 2 + 6) * size + 5 * 4
    assert replies.bytes_up == plain.bytes_up


def test_a_cohort_in_one_part_stays_in_memory():
    _, replies = came(0, parts=[(4, 1, 0, 3, 2)])
    assert not replies.filed


def held(simulation):
    kept = {f"server.{s}.{k}": v for s, tree in simulation.server.kept.items() for k, v in tree.items()}
    state = simulation.store.read(range(len(simulation.clients)))
    kept |= {f"client.{s}.{k}": v for s, tree in state.items() for k, v in tree.items()}
    return {"w": simulation.server.w, **kept}


@pytest.mark.parametrize("kind", ["stack", "loop"])
@pytest.mark.parametrize("method", METHODS)
def test_a_federation_does_not_depend_on_its_parts(method, kind, monkeypatch):
    filed = []
    add = UploadCollector.add
    monkeypatch.setattr(UploadCollector, "add", lambda self, *args: (add(self, *args), filed.append(set(self._filed))))
    settings = {"own": MADE_UP, "sampling": {"dropout": 0.0 if "skip" in method else 0.2}}
    whole = advanced(federation(method, engine={"kind": kind}, **settings))
    assert not any(filed)
    monkeypatch.setattr("fedbraid.engines.local_engine.FEW", 0)
    parts = advanced(federation(method, engine={"kind": kind, "chunk": 2}, **settings))
    assert any("model" in keys for keys in filed)
    ours, theirs = held(parts), held(whole)
    assert ours.keys() == theirs.keys()
    for key in ours:
        torch.testing.assert_close(ours[key], theirs[key], rtol=0, atol=1e-10)


def test_what_is_counted_does_not_depend_on_parts(monkeypatch):
    whole = federation("scaffold").advance()
    monkeypatch.setattr("fedbraid.engines.local_engine.FEW", 100)
    parts = federation("scaffold", engine={"chunk": 4}).advance()
    assert {key: parts[key] for key in parts if key not in ("seconds", "loss", "train_loss")} == {
        key: whole[key] for key in whole if key not in ("seconds", "loss", "train_loss")
    }


def test_the_file_goes_with_the_replies():
    def nameless():
        """Open files that no directory lists."""
        places = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
        return sum(os.readlink(place).endswith("(deleted)") for place in places if os.path.islink(place))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = nameless()
        _, replies = came(0)
        assert nameless() == before + 1, "one file for all uploads"
        del replies
        gc.collect()
        assert nameless() == before


PEAK = """
import sys
import numpy as np
import fedbraid as fb

clients, chunk = map(int, sys.argv[1:])
rng = np.random.default_rng(0)
train, test = (fb.Split(rng.normal(size=(n, 20)).astype("f4"), rng.integers(0, 2, n)) for n in (clients, 50))
parts = fb.Partition(tuple(np.arange(clients)[:, None]))
fb.run("fedavg", data=fb.Dataset("noise", train, test, classes=2), partition=parts, rounds=2,
       model={"name": "mlp", "hidden": [10_000]}, engine={"device": "cpu", "kind": "stack", "chunk": chunk})
print(next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
def test_memory_is_bounded_by_the_chunk_where_no_model_is_asked_for():
    """Models of 0.9 MB, of 40 clients and of 240."""

    def peak(*arguments):
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", PEAK, *map(str, arguments)], check=True, capture_output=True, text=True, env=env
        )
        return float(done.stdout)

    few, many, at_once = peak(40, 8), peak(240, 8), peak(240, 240)
    assert many - few < 120 < 200 * 0.92
    assert at_once > many + 500
