"""The commands of docs/federation.md, on real Flower processes over TLS: every method as on one machine.

Clients stay joined while one server after another comes and goes on the same port.
"""

import json
import random
import signal
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedbraid[flower]'")

import torch
from cheap_strands import HYPER
from cheap_strands import NAMES as STRANDS
from parties import Family
from safetensors.torch import load_file

from fedbraid import api
from fedbraid.config.schema import from_dict
from fedbraid.deploy.keys import make_keys
from fedbraid.deploy.processes import free_port
from fedbraid.strands import METHODS
from fedbraid.training.user_code import load_network

CLIENTS = "hospital-a", "hospital-b", "hospital-c"
SETTINGS = {
    "rounds": 3,
    "partition": {"clients": 3},
    "sampling": {"clients": 2},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"batch": 64},
    "engine": {"device": "cpu", "kind": "loop"},
}
SET = [
    "rounds=3",
    "partition.clients=3",
    "sampling.clients=2",
    "model.hidden=[8]",
    "local.batch=64",
    "engine.device=cpu",
]


NET = """
from torch import nn

def net(hidden):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden[0]), nn.ReLU(), nn.Linear(hidden[0], 10))
"""


@dataclass
class Hospitals:
    """Clients that wait for a server."""

    place: Path
    port: int
    family: Family
    clients: dict = field(default_factory=dict)

    def join(self, name, *more):
        words = ["join", f"127.0.0.1:{self.port}", "--keys", self.place / "keys" / name, "--home", self.place / name]
        data = ["--data", "digits", "--part", CLIENTS.index(name), "--set", "partition.clients=3"]
        self.clients[name] = self.family.start("-m", "fedbraid", *words, *data, *more)

    def serve(self, method, out, *more):
        words = ["serve", "--keys", self.place / "keys" / "server", "--port", self.port, "--method", method]
        settings = (word for setting in SET for word in ("--set", setting))
        return self.family.start("-m", "fedbraid", *words, "--out", out, *settings, *more)


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    place = tmp_path_factory.mktemp("hospitals")
    make_keys(place / "keys", ["127.0.0.1"], list(CLIENTS))
    hospitals = Hospitals(place, free_port(), Family(place))
    (place / "net.py").write_text(NET)
    for name in CLIENTS:
        hospitals.join(name, "--model", place / "net.py:net")  # where it is not asked for, it does not matter
    yield hospitals
    hospitals.family.end()


def same(joined, method, tmp_path, network=None):
    server = joined.serve(method, tmp_path / "run", *(("--model", network) if network else ()))
    assert server.wait(180) == 0, "\n".join(server.lines)
    named = SETTINGS | ({"model": {"name": "net", "hidden": [8]}} if network else {})
    supplied = {"model": load_network(network)} if network else {}
    api.run(method, config=from_dict(named), out=tmp_path / "here", **supplied)
    alike(tmp_path)
    lines, ours = (
        [json.loads(line) for line in (tmp_path / run / "rounds.jsonl").read_text().splitlines()]
        for run in ("run", "here")
    )
    assert [line["lost"] for line in lines] == [0, 0, 0]
    for key in ("clients", "bytes_down", "bytes_up"):  # what travels is what the method declares
        assert [line[key] for line in lines] == [line[key] for line in ours]


def alike(tmp_path):
    there, here = (load_file(tmp_path / run / "model.safetensors") for run in ("run", "here"))
    assert there.keys() == here.keys()
    for name, value in here.items():
        torch.testing.assert_close(there[name], value, rtol=0, atol=1e-5)


def test_a_chain_with_state_on_clients_and_a_second_exchange_on_a_network_of_ones_own(joined, tmp_path):
    """The network returns logits alone, and its argument comes from the server."""
    same(joined, "scaffold+rfedavg_plus+disco", tmp_path, f"{joined.place}/net.py:net")


@pytest.mark.slow
@pytest.mark.parametrize("method", [*(HYPER.get(s, s) for s in STRANDS), *(m for m in METHODS if m not in STRANDS)])
def test_every_method(joined, method, tmp_path):
    same(joined, method, tmp_path)


# --- secure sums, among clients that insist on them


SECURE = SETTINGS | {"sampling": {"clients": 0}, "local": SETTINGS.get("local", {}) | {"batch": 0}}
"""Full batches: where nothing is drawn, clients with draws of their own train as a simulation does."""


@pytest.fixture
def insisting(tmp_path):
    make_keys(tmp_path / "keys", ["127.0.0.1"], list(CLIENTS))
    hospitals = Hospitals(tmp_path, free_port(), Family(tmp_path))
    for name in CLIENTS:
        hospitals.join(name, "--secure")
    yield hospitals
    hospitals.family.end()


@pytest.mark.slow
@pytest.mark.parametrize("kills", [0, 4])
@pytest.mark.parametrize("method", ["scaffold", "disco(target=cohort)", "prox+dp(noise=0.0, clip=0.3)"])
def test_secure_sums_whoever_is_killed(insisting, method, kills, tmp_path):
    """Clients come back with what they had on disk, and no round counts without them."""
    server = insisting.serve(
        method, tmp_path / "run", "--secure", "--set", "sampling.clients=0", "--set", "local.batch=0"
    )
    server.wait_for("secure sums: the server learns", 60)
    chance = random.Random(method)
    for _ in range(kills):
        sleep(chance.uniform(1, 12))
        if server.process.poll() is not None:
            break
        name = chance.choice(CLIENTS)
        insisting.clients[name].signal(signal.SIGKILL)
        insisting.join(name, "--secure")
    assert server.wait(400) == 0, "\n".join(server.lines)
    api.run(method, config=from_dict(SECURE), out=tmp_path / "here")
    alike(tmp_path)


@pytest.mark.slow
def test_clients_that_insist_on_secure_sums_say_why_they_wait(insisting, tmp_path):
    server = insisting.serve("fedavg", tmp_path / "run")
    server.wait_for("it takes part only where the server learns models as sums", 60)
