"""A server that is killed at any instant, its clients with it or not, goes on to the same model."""

import json
import os
import random
import signal
import time

import pytest
import world
from forks import FORKS
from safetensors.torch import load_file
from world import NAMES, apart, conducted, configured, here, nodes, samples

from fedbraid.deploy import assembly, federation_run
from fedbraid.deploy.federation_run import check_federation, conduct
from fedbraid.deploy.transport import InProcess
from fedbraid.errors import UserError

METHOD = "scaffold+rfedavg_plus(lam=0.1)"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return samples(tmp_path_factory.mktemp("data"))


def trained(place):
    return load_file(place / "run" / "model.safetensors")


def expected_uploads(file, method=METHOD, **settings):
    local = here(configured(method, file, **settings))
    while not local.finished:
        local.advance()
    return local.module().state_dict()


def rounds_of(place):
    log = place / "run" / "rounds.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


@pytest.mark.parametrize("seed", [1, *(pytest.param(s, marks=pytest.mark.slow) for s in (2, 3, 4))])
def test_killed_at_random_moments(seed, file, tmp_path):
    """Server and clients in one process, SIGKILLed again and again; the last one ends in peace."""
    rng, kills, settings = random.Random(seed), 0, {"rounds": 12}
    while kills < 6 and not (tmp_path / "run" / "summary.json").exists():
        process = FORKS.Process(target=conducted, args=(tmp_path, METHOD, file), kwargs=settings)
        process.start()
        enough = rounds_of(tmp_path) + rng.randint(1, 2)
        while process.is_alive() and rounds_of(tmp_path) < enough:
            time.sleep(0.001)
        process.join(rng.uniform(0, 0.2))
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            kills += process.exitcode == -signal.SIGKILL
    assert kills >= 4
    conducted(tmp_path, METHOD, file, **settings)
    assert apart(trained(tmp_path), expected_uploads(file, **settings)) < 1e-10
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, 13)) and not any(line["lost"] for line in lines)


class Crash(BaseException):
    """The machine stops here."""


class ClientGone(InProcess):
    """A network that ends with the server as soon as that looks who is there."""

    def present(self):
        raise Crash


def crashing(patch, at):
    """Let all file operations fail from number `at` on; the operations asked for."""
    calls = []
    for name in ("replace", "fsync", "unlink", "truncate"):
        real = getattr(os, name)

        def operation(*args, name=name, real=real, **kwargs):
            calls.append(name)
            if len(calls) > at >= 0:
                raise Crash
            return real(*args, **kwargs)

        patch.setattr(os, name, operation)
    return calls


@pytest.mark.parametrize("part", [0, *(pytest.param(p, marks=pytest.mark.slow) for p in range(1, 12))])
def test_a_crash_at_any_file_operation_of_server_or_client(part, file, tmp_path, monkeypatch):
    settings = {"rounds": 2, "sampling": {"clients": 2}}
    due = expected_uploads(file, **settings)  # first, so that the data are in the cache: who reads them first does more
    with monkeypatch.context() as patch:
        calls = crashing(patch, -1)
        conducted(tmp_path / "whole", METHOD, file, **settings)
    assert apart(trained(tmp_path / "whole"), due) < 1e-10 and {"replace", "fsync", "unlink"} <= set(calls)
    for at in range(part, len(calls), 12):
        place = tmp_path / str(at)
        with monkeypatch.context() as patch, pytest.raises(Crash):
            crashing(patch, at)
            conducted(place, METHOD, file, **settings)
        conducted(place, METHOD, file, **settings)
        assert apart(trained(place), due) < 1e-10, f"after a crash in {calls[at]}, operation {at}"


def test_a_server_that_stops_between_any_two_letters(file, tmp_path):
    """Those who answered before answer the same again; nobody's state is moved on twice."""
    settings = {"rounds": 2, "sampling": {"clients": 2}}
    config, due = configured(METHOD, file, **settings), expected_uploads(file, **settings)
    whole = InProcess(nodes(config, tmp_path / "whole" / "homes"))
    arguments = {"seconds": 1.0, "pause": 0.0}
    conduct(config, whole, NAMES, out=tmp_path / "whole" / "run", **arguments)
    for after in range(len(whole.sent)):
        place, left = tmp_path / str(after), iter(range(after))

        def on_reply(client, message, answer, left=left):
            if next(left, None) is None:
                raise Crash
            return answer

        clients = nodes(config, place / "homes")
        with pytest.raises(Crash):
            conduct(config, InProcess(clients, on_reply=on_reply), NAMES, out=place / "run", **arguments)
        conduct(config, InProcess(clients), NAMES, out=place / "run", resume=True, **arguments)
        assert apart(trained(place), due) < 1e-10


def test_a_federation_that_is_over_goes_on_for_longer(file, tmp_path):
    for rounds in (2, 4):
        config = configured("scaffold", file, rounds=rounds)
        conduct(config, InProcess(nodes(config, tmp_path / "homes")), NAMES, out=tmp_path / "run", resume=True)
    assert apart(trained(tmp_path), expected_uploads(file, "scaffold", rounds=4)) < 1e-10


def test_a_server_is_resumed_with_its_own_clients_and_settings(file, tmp_path):
    config = configured("scaffold", file, rounds=2)
    transport = InProcess(nodes(config, tmp_path / "homes"))

    def stop(line, config):
        raise Crash

    with pytest.raises(Crash):
        conduct(config, transport, NAMES, out=tmp_path / "run", on_round=stop)
    for other, roster, reason in (
        (configured("scaffold", file, rounds=1), NAMES, "begun with rounds = 2, not 1"),
        (configured("scaffold", file, rounds=2, seed=1), NAMES, "begun with seed = 0, not 1"),
        (config, NAMES[::-1], "begun with the clients clinic-a, clinic-b"),
    ):
        with pytest.raises(UserError, match=reason):
            conduct(other, transport, roster, out=tmp_path / "run", resume=True)
    with pytest.raises(UserError, match="begun without secure sums"):
        conduct(config, transport, NAMES, out=tmp_path / "run", resume=True, secure=True)
    saved = json.loads((tmp_path / "run" / "federation.json").read_text())
    conduct(config, transport, NAMES, out=tmp_path / "run", resume=True)
    assert json.loads((tmp_path / "run" / "federation.json").read_text()) == saved
    assert apart(trained(tmp_path), expected_uploads(file, "scaffold", rounds=2)) < 1e-10
    assert tuple(saved["sizes"].values()) == world.SIZES


@pytest.mark.parametrize(
    ("method", "settings", "reason"),
    [
        ("fedavg", {"analysis": {"every": 2}}, "analysis.every=2 is for analyses"),
        ("nova(mu=0.2)", {}, "nova's mu=0.2 is for prox"),
        ("asd+ntd(beta=2.0)", {}, r"ntd\(beta=2.0\) has no effect here"),
    ],
)
def test_what_was_allowed_when_a_federation_was_recorded_is_gone_on_with(
    method, settings, reason, file, tmp_path, monkeypatch
):
    config = configured(method, file, rounds=2, **settings)
    transport, place = InProcess(nodes(config, tmp_path / "homes")), tmp_path / "run"

    def stop(line, config):
        raise Crash

    for ask in (
        lambda: check_federation(config, NAMES, out=place),
        lambda: conducted(tmp_path, method, file, **settings),
    ):
        with pytest.raises(UserError, match=reason):
            ask()
    assert not place.exists()
    with monkeypatch.context() as earlier, pytest.raises(Crash):  # a version that did not refuse it
        earlier.setattr(federation_run, "refuse_inert", lambda runs: None)
        conduct(config, transport, NAMES, out=place, on_round=stop)
    check_federation(config, NAMES, out=place, resume=True)
    with pytest.raises(UserError, match="already holds a run; add --resume"):
        check_federation(config, NAMES, out=place)
    conduct(config, transport, NAMES, out=place, resume=True)
    assert apart(trained(tmp_path), expected_uploads(file, method, rounds=2, **settings)) < 1e-10


def test_a_strand_without_effect_on_the_data_is_gone_on_with_where_it_was_recorded(file, tmp_path, monkeypatch):
    two_classes = {"name": "clients", "shape": [3], "classes": 2}
    config, place = configured("ntd", file, data=two_classes), tmp_path / "run"

    def check():
        check_federation(config, NAMES, out=place, resume=True)

    with pytest.raises(UserError, match="no two are left to tell apart"):
        check()
    with monkeypatch.context() as earlier, pytest.raises(Crash):  # a version that did not refuse it
        earlier.setattr(assembly, "validate_effect", lambda chain, dataset: None)
        conduct(config, ClientGone({}), NAMES, out=place)
    check()
