"""The commands keys, serve and join: what they want, and what they say when they do not get it."""

import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedbraid[flower]'")

from fedbraid.cli import federation_commands as cli_federation
from fedbraid.cli import run_views
from fedbraid.cli.app import main
from fedbraid.config.schema import from_dict
from fedbraid.deploy import client_process, server_process


@pytest.fixture
def fedbraid(monkeypatch, capsys, tmp_path):
    """Call the command in an empty directory: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fedbraid", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        return left.value.code or 0, captured.out, captured.err

    return call


@pytest.fixture
def begun(monkeypatch):
    """What would be started."""
    calls = []

    def run_server(settings, address, keys, say):
        calls.append((settings, address, keys))

    monkeypatch.setattr(server_process, "run_server", run_server)
    monkeypatch.setattr(
        client_process, "run_node", lambda settings, address, keys, say: calls.append((settings, address, keys))
    )
    monkeypatch.setattr("fedbraid.load", lambda where, **_: where)
    monkeypatch.setattr(run_views, "summary", lambda console, run, where: console.print(f"the summary of {run.name}"))
    return calls


@pytest.fixture
def keys(fedbraid):
    code, out, err = fedbraid("keys", "keys", "--host", "fed.example.org", "--client", "a", "--client", "b")
    assert code == 0, err
    assert out.splitlines() == [
        "keys/authority: ca.key, ca.pem",
        "keys/server: ca.pem, roster, server.key, server.pem",
        "keys/a: ca.pem, node.key, node.pub, roster",
        "keys/b: ca.pem, node.key, node.pub, roster",
    ]
    return Path("keys")


JOIN = "join", "localhost:8000", "--home", "home", "--data", "digits"


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["keys", "k"], "name the clients with --client, and the server with --host"),
        (["keys", "k", "--client", "a b"], "a client's name has messages"),
        (["serve"], "--keys, or --insecure"),
        (["serve", "--insecure"], "say who the clients are"),
        (["serve", "--insecure", "--clients", "2", "--client", "a"], "say who the clients are"),
        (["serve", "--insecure", "--keys", "k", "--clients", "2"], "exclude each other"),
        (["serve", "--keys", "k"], "there is no file k/roster"),
        (["serve", "--insecure", "--clients", "2", "--set", "roundz=3"], "did you mean 'rounds'"),
        (["serve", "--insecure", "--clients", "2", "--strand", "none.py:X"], "there is no file none.py"),
        (["serve", "--insecure", "--clients", "2", "--model", "none.py:X"], "there is no file none.py"),
        (["serve", "--insecure", "--clients", "2", "--set", "model.name=Net"], "with --model FILE.py:CLASS"),
        (["serve", "--insecure", "--clients", "2", "--set", "data.name=clients"], "needs data.shape"),
        (["serve", "--insecure", "--clients", "2", "--min-clients", "3"], "min_clients is 3, but a round has 2"),
        (["serve", "--insecure", "--clients", "2", "--secure"], "over at least 3 clients, and a round has 2"),
        (["serve", "--insecure", "--clients", "2", "--set", "sampling.dropout=0.1"], "a federation has real ones"),
        ([*JOIN], "--keys, or --insecure"),
        ([*JOIN, "--insecure"], "say who you are: --name hospital-a"),
        ([*JOIN, "--insecure", "--name", "../a"], "a client's name has messages"),
        ([*JOIN, "--keys", "k"], "there is no file k/node.pub"),
        ([*JOIN, "--keys", "k", "--secure"], "there is no file k/roster"),
        ([*JOIN, "--insecure", "--name", "a", "--secure"], "--secure needs --keys"),
        ([*JOIN, "--insecure", "--name", "a", "--set", "rounds=3"], "the server says how to train"),
        ([*JOIN, "--insecure", "--name", "a", "--model", "none.py:X"], "there is no file none.py"),
        ([*JOIN, "--insecure", "--name", "a", "--set", "data.pixelz=3"], "pixelz"),
        (["join", "localhost", *JOIN[2:], "--insecure", "--name", "a"], "HOST:PORT"),
        ([*JOIN[:-1], "none.npz", "--insecure", "--name", "a"], "there is no file none.npz"),
        ([*JOIN[:-1], "digitz", "--insecure", "--name", "a"], "did you mean 'digits'"),
    ],
    ids=lambda value: "-".join(value)[:60] if isinstance(value, list) else "",
)
def test_a_mistake_is_one_sentence(words, sentence, fedbraid, begun):
    code, out, err = fedbraid(*words)
    assert code == 2 and out == "" and not begun
    (line,) = [line for line in err.splitlines() if line.startswith("error:")]
    assert sentence in line


@pytest.mark.parametrize("words", [["keys", "k", "--client", "a"], ["serve", "--insecure", "--clients", "2"], [*JOIN]])
def test_without_flower_it_says_how_to_get_it(words, fedbraid, monkeypatch):
    def version(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(cli_federation, "version", version)
    assert fedbraid(*words) == (2, "", "error: a federation needs Flower: pip install 'fedbraid[flower]'\n")
    monkeypatch.setattr(cli_federation, "version", lambda name: "1.20.0")
    code, _, err = fedbraid(*words)
    assert code == 2 and "needs Flower 1.41.x, not 1.20.0" in err


def test_a_server_is_told_what_to_do(fedbraid, keys, begun):
    Path("mine.py").write_text("import fedbraid as fb\nclass Mine(fb.Strand):\n    'Nothing.'\n")
    words = [
        "--method",
        "fedprox",
        "--set",
        "rounds=3",
        "--out",
        "run",
        "--resume",
        "--min-clients",
        1,
        "--seconds",
        30,
    ]
    code, out, err = fedbraid(
        "serve", "--keys", keys / "server", *words, "--port", 9000, "--max-answer", 5, "--strand", "mine.py:Mine"
    )
    assert code == 0, err
    assert out == "the summary of run\n" and "INSECURE" not in err
    ((settings, address, folder),) = begun
    config = from_dict(settings.config)
    assert (config.method, config.rounds) == ("fedprox", 3)
    assert settings.roster == ["a", "b"] and settings.out == str(Path("run").resolve())
    assert (settings.resume, settings.min_clients, settings.seconds, settings.most) == (True, 1, 30.0, 5_000_000)
    assert settings.strands == [f"{Path('mine.py').resolve()}:Mine"]
    assert str(address) == "127.0.0.1:9000" and folder == (keys / "server").resolve()


def test_both_sides_are_told_of_a_network_of_their_own(fedbraid, begun):
    Path("net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, in_features):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(in_features, 10))\n"
    )
    server = fedbraid("serve", "--insecure", "--clients", 2, "--model", "net.py:Net", "--set", "model.in_features=64")
    client = fedbraid(*JOIN, "--insecure", "--name", "a", "--model", "net.py:Net")
    assert server[0] == client[0] == 0, server[2] + client[2]
    (serving, *_), (joining, *_) = begun
    assert serving.network == joining.network == f"{Path('net.py').resolve()}:Net"
    assert serving.config["model"] == {"name": "Net", "in_features": 64}


def test_a_server_without_keys_says_so_loudly(fedbraid, begun):
    code, _, err = fedbraid("serve", "--insecure", "--clients", 2)
    assert code == 0 and err.startswith("INSECURE without TLS")
    ((settings, _, folder),) = begun
    assert settings.roster == ["client-0", "client-1"] and folder is None
    assert settings.out == str(Path("runs/fedavg-digits-1").resolve())


def test_the_clients_are_those_of_the_roster(fedbraid, keys, begun):
    code, _, err = fedbraid("serve", "--keys", keys / "server", "--client", "c")
    assert code == 2 and "the clients are those of the roster" in err


def test_a_client_is_told_what_it_has(fedbraid, keys, begun):
    np.savez("mine.npz", x=np.zeros((8, 3)), y=np.arange(8) % 2)
    code, _, err = fedbraid("join", "h:1", "--keys", keys / "b", "--data", "mine.npz", "--home", "h", "--device", "cpu")
    assert code == 0, err
    ((settings, address, folder),) = begun
    assert settings.name == "b" and settings.home == str(Path("h").resolve()) and settings.device == "cpu"
    assert settings.holds["data"] == {"name": "npz", "path": str(Path("mine.npz").resolve())}
    assert settings.part is None and str(address) == "h:1" and folder == (keys / "b").resolve()
    assert not settings.secure
    assert err == f"b has 6 samples to train on and 2 to test on: {Path('mine.npz').resolve()}\n"


TRIAL = "join", "h:1", "--insecure", "--name", "a", "--home", "h", "--data"


def test_a_table_is_given_like_any_file(fedbraid, begun):
    """Its label is named, and what is in it is read before the server is looked for."""
    rows = [f"{k},{k * k},{('well', 'sick')[k % 2]}" for k in range(20)]
    Path("own.csv").write_text("\n".join(["age,dose,state", *rows]) + "\n")
    code, _, err = fedbraid(*TRIAL, "own.csv")
    assert code == 2 and not begun
    assert "has no column 'label'; say by data.label which one is to be predicted: age, dose, state" in err
    code, _, err = fedbraid(*TRIAL, "own.csv", "--set", "data.label=state", "--set", "data.test=own.csv")
    assert code == 0 and "; columns age, dose; classes sick, well" in err
    ((settings, *_),) = begun
    path = str(Path("own.csv").resolve())
    assert settings.holds["data"] == {"name": "csv", "label": "state", "path": path, "test": path}
    code, out, _ = fedbraid("data", "inspect", "own.csv", "--set", "data.label=state", "--json")
    assert code == 0 and '"name": "csv"' in out
    code, _, err = fedbraid("run", "--set", "data.name=none.csv")
    assert code == 2 and "there is no file none.csv" in err
    Path("own.csv").write_text(Path("own.csv").read_text().replace("1,1,sick", "old,1,sick"))
    code, _, err = fedbraid(*TRIAL, "own.csv", "--set", "data.label=state")
    assert code == 2 and "own.csv, line 3, column age is 'old'" in err and len(begun) == 1


def test_a_client_may_insist_on_secure_sums(fedbraid, keys, begun):
    code, _, err = fedbraid(*JOIN, "--keys", keys / "b", "--secure")
    assert code == 0, err
    ((settings, _, _),) = begun
    assert settings.secure


def test_a_client_for_trials_has_a_part_of_a_known_set(fedbraid, begun):
    code, _, err = fedbraid(
        *JOIN, "--insecure", "--name", "a", "--part", 3, "--set", "partition.beta=0.1", "--set", "seed=7"
    )
    assert code == 0 and err.startswith("INSECURE without TLS")
    ((settings, _, folder),) = begun
    assert settings.part == 3 and folder is None
    assert settings.holds["partition"]["beta"] == 0.1 and settings.holds["seed"] == 7
    assert set(settings.holds) == {"data", "partition", "seed"}


def test_a_certificate_for_another_host_is_told_before_anything_starts(fedbraid, keys):
    code, _, err = fedbraid("serve", "--keys", keys / "server", "--host", "10.1.2.3")
    assert code == 2 and "is for fed.example.org, localhost, 127.0.0.1, ::1, not for 10.1.2.3" in err
