"""A network of one's own in a federation: the server and every client bring it."""

import logging

import pytest
import torch
from helpers import build
from torch import nn
from world import NAMES, configured, nodes, samples

from fedbraid.deploy.assembly import assemble
from fedbraid.deploy.federation_run import conduct
from fedbraid.deploy.membership import Membership
from fedbraid.deploy.remote_federation import WaitPolicy
from fedbraid.deploy.transport import InProcess
from fedbraid.training.run_directory import RunDirectory
from fedbraid.training.user_code import load_network
from fedbraid.training.user_objects import UserObjects

MODEL = {"model": {"name": "Net", "width": 5}}


class Net(nn.Module):
    """It is made of the server's options, and returns logits alone."""

    def __init__(self, width):
        super().__init__()
        self.body, self.out = nn.Linear(3, width), nn.Linear(width, 3)

    def forward(self, x):
        return self.out(torch.relu(self.body(x)))


class Wider(nn.Module):
    """As many parameters in other places."""

    def __init__(self, width):
        super().__init__()
        self.out, self.body = nn.Linear(3, width), nn.Linear(width, 3)

    def forward(self, x):
        return self.body(torch.relu(self.out(x)))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return samples(tmp_path_factory.mktemp("samples"))


def conducted(config, place, network, **rest):
    transport = InProcess(nodes(config, place / "homes", network=Net))
    return conduct(config, transport, NAMES, out=place / "run", network=network, pause=0.0, **rest)


@pytest.mark.parametrize("method", ["moon+scaffold", "creff", "fednh"])
def test_it_trains_as_on_one_machine(method, file, tmp_path):
    config = configured(method, file, **MODEL)
    here = build(config, UserObjects(model=Net))
    for _ in range(config.rounds):
        here.advance()
    done = conducted(config, tmp_path, Net)
    trained = done.model.state_dict()
    for name, value in here.module().state_dict().items():
        torch.testing.assert_close(trained[name], value, rtol=0, atol=1e-10)
    recorded = RunDirectory(tmp_path / "run")
    assert (recorded.config().model.name, recorded.config().model.options) == ("Net", {"width": 5})
    assert recorded.initial.exists()


def test_a_server_that_is_killed_goes_on_with_the_weights_it_began_with(file, tmp_path):
    """Also where what makes the network does not make the same weights again."""

    class Crash(Exception):
        pass

    def crash(line, config):
        raise Crash

    config = configured("scaffold", file, **MODEL)
    whole = conducted(config, tmp_path / "whole", Net)
    with pytest.raises(Crash):
        conducted(config, tmp_path, Net, on_round=crash)

    class Zeroed(Net):
        def __init__(self, width):
            super().__init__(width)
            nn.init.zeros_(self.body.weight)

    Zeroed.__name__ = "Net"
    again = conducted(config, tmp_path, Zeroed, resume=True)
    for one, two in zip(whole.model.state_dict().values(), again.model.state_dict().values(), strict=True):
        assert torch.equal(one, two)


def refusal(config, place, network):
    """Why a client does not take part where the server has `Net`."""
    membership = Membership(place / "run" / "federation.json", NAMES)
    transport = InProcess(nodes(config, place / "homes", network=network))
    federation = assemble(
        config, transport, membership, WaitPolicy(pause=0.0), place / "states", UserObjects(model=Net)
    )
    membership.open()
    federation.engine.channel.handshake_new_clients()
    return federation.engine.channel.rejected[NAMES[0]][0]


def test_clients_that_lack_it_are_told_how_to_bring_it(file, tmp_path):
    config = configured("fedavg", file, **MODEL)
    assert "no model is called 'Net'" in refusal(config, tmp_path / "none", None)
    assert "--model FILE.py:CLASS" in refusal(config, tmp_path / "another", Wider)


def test_clients_with_other_parameters_do_not_take_part(file, tmp_path):
    """Even where there are as many of them."""
    config = configured("fedavg", file, **MODEL)
    swapped = type("Net", (Wider,), {})
    assert sum(p.numel() for p in swapped(5).parameters()) == sum(p.numel() for p in Net(5).parameters())
    assert "the parameters of its network 'Net' have other names or shapes" in refusal(config, tmp_path, swapped)


CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body, self.out = nn.Linear(3, width), nn.Linear(width, 3)

    def forward(self, x):
        return self.out(torch.{activation}(self.body(x)))
"""


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_client_with_other_code_says_so_in_its_log(activation, file, tmp_path, caplog):
    made = {}
    for name in ("relu", activation):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / f"net_{name}.py").write_text(CODE.format(activation=name))
        made[name] = load_network(f"{tmp_path / name / f'net_{name}.py'}:Net")
    config = configured("fedavg", file, **MODEL)
    transport = InProcess(nodes(config, tmp_path / "homes", network=made[activation]))
    with caplog.at_level(logging.WARNING, "fedbraid"):
        conduct(config, transport, NAMES, out=tmp_path / "run", network=made["relu"], pause=0.0)
    told = [record for record in caplog.records if "the code of the network here is not the server's" in record.message]
    assert len(told) == (0 if activation == "relu" else len(NAMES))
