"""A run with secure sums that is started twice, the second time without one client: what the server can compute."""

import json

import pytest
import torch
from safetensors.torch import load_file
from world import NAMES, SIZES, by_message, configured, nodes, rewritten, samples

from fedbraid.deploy.client_home import ClientHome
from fedbraid.deploy.federation_run import conduct
from fedbraid.deploy.masking_steps import _same_weights
from fedbraid.deploy.messages import read
from fedbraid.deploy.secure_policy import SecurePolicy
from fedbraid.deploy.transport import InProcess
from fedbraid.errors import UserError

pytest.importorskip("cryptography")
WHO = NAMES[-1]  # the others keep their numbers without it


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return samples(tmp_path_factory.mktemp("data"))


def summed(config, place, names, out):
    """The model after one round of these clients."""
    transport = InProcess(nodes(config, place / "homes"))
    run = conduct(config, transport, names, out=place / out, secure=True, seconds=1.0, pause=0.0, tries=2)
    return torch.cat([value.flatten() for value in run.model.state_dict().values()])


def differences(config, place):
    """How far the model that the server computes is from the one that the client trained, and from the start."""
    everybody, fewer = summed(config, place, NAMES, "first"), summed(config, place, NAMES[:-1], "second")
    computed = (sum(SIZES) * everybody - sum(SIZES[:-1]) * fewer) / SIZES[-1]
    (kept,) = (place / "homes" / WHO).glob("*/hidden-000000-*.safetensors")
    return float((computed - load_file(kept)["model"]).abs().max())


def config_of(file, batch):
    return configured("fedavg", file, rounds=1, sampling={"clients": 0}, local={"batch": batch, "epochs": 3})


def test_draws_that_the_server_knows_would_give_the_client_away(shared_draws, file, tmp_path, monkeypatch):
    """Without either protection the attack works, so the tests below show something."""
    monkeypatch.setattr(ClientHome, "summed_ever", lambda self, digest: None)
    assert differences(config_of(file, 2), tmp_path) < 1e-9


def test_clients_draw_from_secrets_of_their_own(file, tmp_path):
    assert differences(config_of(file, 2), tmp_path) > 1e-3


def test_where_nothing_is_drawn_the_same_numbers_are_not_summed_with_others(file, tmp_path, caplog):
    with pytest.raises(UserError, match="was tried 2 times"):
        differences(config_of(file, 0), tmp_path)
    assert "were summed with other clients before" in caplog.text


def test_the_same_run_twice_with_the_same_clients(file, tmp_path):
    config = config_of(file, 0)
    assert torch.equal(summed(config, tmp_path, NAMES, "first"), summed(config, tmp_path, NAMES, "second"))


def test_secrets_stay_for_a_client_that_is_killed_and_are_its_owners_alone(file, tmp_path):
    summed(config_of(file, 2), tmp_path, NAMES, "first")
    secrets = [secret for name in NAMES for secret in (tmp_path / "homes" / name).glob("*/secret")]
    assert len({secret.read_bytes() for secret in secrets}) == len(NAMES)
    assert {secret.stat().st_mode & 0o777 for secret in secrets} == {0o600}


# --- one question, one set of weights


def one_round(file, place, **hooks):
    transport = InProcess(nodes(config_of(file, 2), place / "homes"), **hooks)
    return by_message(config_of(file, 2), place, transport, min_clients=3, policy=SecurePolicy()), transport


def test_another_digit_in_the_question_gets_no_second_sum(file, tmp_path):
    federation, transport = one_round(file, tmp_path)
    federation.advance()
    asked = next(m for name, m, _ in transport.sent if name == WHO and read(m, 1 << 30).kind == "train")
    payload = dict(read(asked, 1 << 30).payload)
    for change, reason in (
        ({"mean": payload["mean"] * (1 + 1e-9)}, "were summed for another question before"),
        ({"lr": payload["lr"] * (1 + 1e-9)}, "were summed for another question before"),
    ):
        again = rewritten(asked, payload=payload | change | {"sum": 12345})
        answer = read(transport.clients[WHO]().answer(again), 1 << 30)
        assert answer.kind == "refusal" and reason in answer.payload["reason"]
    answer = read(transport.clients[WHO]().answer(rewritten(asked, payload=payload | {"sum": 12345})), 1 << 30)
    assert answer.payload["with"] == list(NAMES)  # the same again may be summed with the same


def test_other_weights_are_another_sum():
    usual = [["model", [0.2, 0.3, 0.5]]]
    assert _same_weights(usual, [["model", [0.2, 0.3, 0.5 + 1e-9]]]) and _same_weights(None, usual)
    for other in ([["model", [0.3, 0.2, 0.5]]], [["model", [0.2, 0.3]]], [["buffers", [0.2, 0.3, 0.5]]], []):
        assert not _same_weights(usual, other)


# --- garbage


def garbled(by, to):
    """The shares that a client seals for some others are damaged before the server delivers them."""

    def on_reply(client, message, answer):
        if client != by or read(message, 1 << 30).kind != "share":
            return answer
        payload = dict(read(answer, 1 << 30).payload)
        content = json.loads(payload["shares"])
        content["shares"] |= {name: "00" * len(bytes.fromhex(content["shares"][name])) for name in to}
        return rewritten(answer, payload=payload | {"shares": json.dumps(content)})

    return on_reply


def test_garbage_evicts_nobody_who_receives_it(file, tmp_path):
    federation, _ = one_round(file, tmp_path, on_reply=garbled(NAMES[1], [WHO]))
    assert federation.advance()["missing"] == {}


def test_garbage_for_many_evicts_its_sender(file, tmp_path):
    others = [name for name in NAMES if name != NAMES[1]]
    federation, _ = one_round(file, tmp_path, on_reply=garbled(NAMES[1], others))
    assert federation.advance()["missing"] == {
        NAMES[1]: f"the shares that it sent could not be opened by {', '.join(others)}"
    }
