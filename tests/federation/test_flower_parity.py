"""The commands of docs/federation.md, on real Flower processes over TLS: every method as on one machine.

Clients stay joined while one server after another comes and goes on the same port.
"""

import json

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedbraid[flower]'")

import torch
from parties import Family
from safetensors.torch import load_file
from test_composition import HYPER
from test_composition import NAMES as STRANDS

from fedbraid import api
from fedbraid.config import from_dict
from fedbraid.federation.keys import make_keys
from fedbraid.federation.processes import free_port
from fedbraid.strands import METHODS

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


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """Three hospitals that wait for a server: its folder, its port, and who ends them all."""
    place, port = tmp_path_factory.mktemp("hospitals"), free_port()
    make_keys(place / "keys", ["127.0.0.1"], list(CLIENTS))
    family = Family(place)
    for part, name in enumerate(CLIENTS):
        words = ["join", f"127.0.0.1:{port}", "--keys", place / "keys" / name, "--data", "digits", "--part", part]
        family.start("-m", "fedbraid", *words, "--set", "partition.clients=3", "--home", place / name)
    yield place, port, family
    family.end()


def same(joined, method, tmp_path):
    place, port, family = joined
    words = ["serve", "--keys", place / "keys" / "server", "--port", port, "--method", method]
    server = family.start(
        "-m", "fedbraid", *words, "--out", tmp_path / "run", *(word for setting in SET for word in ("--set", setting))
    )
    assert server.wait(180) == 0, "\n".join(server.lines)
    api.run(method, config=from_dict(SETTINGS), out=tmp_path / "here")
    there, here = (load_file(tmp_path / run / "model.safetensors") for run in ("run", "here"))
    assert there.keys() == here.keys()
    for name, value in here.items():
        torch.testing.assert_close(there[name], value, rtol=0, atol=1e-5)
    lines, ours = (
        [json.loads(line) for line in (tmp_path / run / "rounds.jsonl").read_text().splitlines()]
        for run in ("run", "here")
    )
    assert [line["lost"] for line in lines] == [0, 0, 0]
    for key in ("clients", "bytes_down", "bytes_up"):  # what travels is what the method declares
        assert [line[key] for line in lines] == [line[key] for line in ours]


def test_a_chain_with_state_on_clients_and_a_second_exchange(joined, tmp_path):
    same(joined, "scaffold+rfedavg_plus+disco", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("method", [*(HYPER.get(s, s) for s in STRANDS), *(m for m in METHODS if m not in STRANDS)])
def test_every_method(joined, method, tmp_path):
    same(joined, method, tmp_path)
