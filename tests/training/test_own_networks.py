"""A network of one's own on the command line: `--model FILE.py:CLASS`."""

import json
import sys
from pathlib import Path

import pytest
from forks import python
from safetensors.torch import load_file

import fedbraid as fb
from fedbraid.cli.app import main
from fedbraid.training.run_directory import RunDirectory
from fedbraid.training.user_code import load_network

pytestmark = pytest.mark.usefixtures("not_rendered")

NET = """
import torch
from torch import nn

made = nn.Linear(64, 10)


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.hidden, self.last = nn.Linear(64, width), nn.Linear(width, 10)

    def forward(self, x):
        return self.last(torch.relu(self.hidden(x.flatten(1))))


class Sized(Net):
    def __init__(self, width):
        super().__init__(width)


class Sure(Net):
    def forward(self, x):
        return super().forward(x).softmax(-1)


class Dropping(Net):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Sequential(self.hidden, nn.SyncBatchNorm(64))


def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def narrow():
    return nn.Sequential(nn.Flatten(), nn.Linear(60, 10))


def binary():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))


def logistic():
    return linear()


def number():
    return 3


def broken():
    return lost
"""
BY = "--model", "net.py:Net", "--set", "model.width=12"


@pytest.fixture
def net(monkeypatch, capsys, tmp_path):
    """Call the command where there is nothing but net.py: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fedbraid", *words])
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        return left.value.code or 0, captured.out, captured.err

    return call


def trained(run):
    return {name: tensor.tolist() for name, tensor in load_file(Path(run, "model.safetensors")).items()}


def test_a_run_goes_on_in_another_process(net):
    how = "-m", "moon", "--engine", "stack"  # compiling takes longer than these runs
    for rounds, out in ((4, "whole"), (2, "parts")):
        assert net("run", *how, *BY, "--set", f"rounds={rounds}", "--out", out)[0] == 0
    rest = *how, "--model", "net.py:Net", "--set", "rounds=4", "--out", "parts", "--resume"  # without its arguments
    code, said = python(Path.cwd(), "-m", "fedbraid", "run", *rest)
    assert code == 0 and "Traceback" not in said, said
    assert trained("whole") == trained("parts")
    recorded = RunDirectory(Path("parts"))
    assert (recorded.config().model.name, recorded.config().model.options) == ("Net", {"width": 12})
    assert load_file(recorded.initial)["hidden.weight"].shape == (12, 64)


def test_it_is_what_python_is_given_as_an_object(net):
    assert net("run", *BY, "--set", "rounds=2", "--out", "here")[0] == 0
    made = load_network("net.py:Net")
    fb.run(rounds=2, model=lambda: made(12), out="python")
    assert trained("here") == trained("python")


def test_functions_make_networks_and_arguments_can_vary(net):
    words = "--set", "rounds=1", "--seeds", "2", "--out", "c", "--json"
    code, out, err = net("compare", "fedavg", "fednh", "--model", "net.py:Sized", "--vary", "model.width=4,8", *words)
    assert code == 0, err
    assert len(list(Path("c").glob("*/seed-*/model.safetensors"))) == 8
    assert load_file("c/fednh_width=4/seed-1/model.safetensors")["last.weight"].shape == (10, 4)
    assert "fednh width=8" in json.dumps(json.loads(out))
    code, _, err = net("compare", "fedavg", "fedprox", "--model", "net.py:linear", "--set", "rounds=1", "--out", "l")
    assert code == 0, err
    assert load_file("l/fedprox/seed-0/model.safetensors").keys() == {"1.weight", "1.bias"}


def test_a_run_that_has_one_needs_it_again(net):
    assert net("run", *BY, "--set", "rounds=1", "--out", "d")[0] == 0
    for words in (("run", "--out", "d", "--resume"), ("analyze", "d", "--what", "drift")):
        code, out, err = net(*words)
        assert code == 2 and not out
        assert "d has a network of your own, 'Net'" in err and "give it again with --model FILE.py:Net, or " in err
    code, _, err = net("run", "d/config.toml")
    assert code == 2 and "no model is called 'Net'" in err and "give a network of your own with --model" in err
    assert net("run", "d/config.toml", "--model", "net.py:Net", "--out", "again")[0] == 0
    assert trained("d") == trained("again")
    assert net("analyze", "d", "--what", "drift", "--model", "net.py:Net")[0] == 0
    code, _, err = net("run", "--out", "d", "--resume", "--model", "net.py:linear")
    assert code == 2 and "the network is not the one that the run was begun with" in err


@pytest.mark.parametrize(
    ("old", "new", "warned"),
    [
        ("torch.relu", "torch.tanh", True),  # in a method
        ("class Net(nn.Module):", "class Net(nn.Module):  # mine\n    '''A network.'''\n", False),
        ("nn.Flatten(), nn.Linear(64, 10)", "nn.Flatten(), nn.Linear(64, 10), nn.Identity()", False),  # of another one
    ],
)
def test_other_code_of_it_is_warned_about(net, caplog, old, new, warned):
    assert net("run", "--model", "net.py:Net", "--set", "rounds=2", "--out", "d")[0] == 0
    assert NET.count(old) == 1
    Path("net.py").write_text(NET.replace(old, new))
    assert net("run", "--model", "net.py:Net", "--set", "rounds=3", "--out", "d", "--resume")[0] == 0
    assert ("the code of the network has changed since the last checkpoint of d" in caplog.text) == warned


def test_other_layers_of_a_function_are_warned_about(net, caplog):
    for layers, rounds in (("", 2), (", nn.Identity()", 3)):
        Path("net.py").write_text(NET.replace("nn.Linear(64, 10))", f"nn.Linear(64, 10){layers})"))
        words = "--model", "net.py:linear", "--set", f"rounds={rounds}", "--out", "d", "--resume"
        assert net("run", *words)[0] == 0
    assert "the code of the network has changed since the last checkpoint of d" in caplog.text


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        ("net.py", "a network of your own is given as file.py:Class, not 'net.py'"),
        ("nowhere.py:Net", "there is no file nowhere.py"),
        ("net.py:Nett", "no network in net.py is called 'Nett'; did you mean 'Net'?"),
        ("net.py:torch", "no network in net.py is called 'torch'"),
        ("net.py:made", "made in net.py is made already; name its class, or a function that makes the network"),
        ("net.py:Sized", "and Sized cannot be (missing a required argument: 'width'); set its arguments as model."),
        ("net.py:Sure", "leave out what comes after the last layer (a softmax is part of the loss), or return"),
        ("net.py:Dropping", "layer 'hidden.1' (SyncBatchNorm) would mix the statistics"),
        ("net.py:narrow", "the network does not take samples of shape (1, 8, 8)"),
        ("net.py:binary", "logits of shape (2, 2); digits needs (2, 10)"),
        ("net.py:logistic", "the name 'logistic' is that of a network of FedBraid's; give yours another one"),
        ("net.py:number", "number gave int; it must return a torch module"),
        ("net.py:broken", "broken could not be called: NameError: name 'lost' is not defined"),
        ("bad.py:Net", "bad.py could not be loaded: SyntaxError"),
    ],
)
def test_a_mistake_is_one_sentence(net, network, sentence):
    Path("bad.py").write_text("def net(:")
    code, out, err = net("run", "--model", network)
    assert code == 2 and not out and not Path("runs").exists()
    assert sentence in err and len(err.strip().splitlines()) == 1 and "Traceback" not in err


def test_arguments_that_it_does_not_take_are_refused(net):
    code, _, err = net("run", *BY, "--set", "model.depth=3")
    assert code == 2 and "model is called with width, depth, and Net cannot be (got an unexpected" in err


def test_it_may_import_the_files_beside_it(net):
    Path("apart").mkdir()
    for helper, file in (("layers_of_mine", "whole.py"), ("apart/parts_of_mine", "apart/rest.py")):
        Path(f"{helper}.py").write_text("from torch import nn\n\nlast = nn.Linear\n")
        imports = f"from torch import nn\nfrom {Path(helper).name} import last\n"
        Path(file).write_text(f"{imports}\n\ndef made():\n    return nn.Sequential(nn.Flatten(), last(64, 10))\n")
        assert net("run", "--model", f"{file}:made", "--set", "rounds=1")[0] == 0


def test_a_file_that_would_hide_a_module_is_refused(net):
    Path("torch.py").write_text(Path("net.py").read_text())
    code, _, err = net("run", "--model", "torch.py:Net")
    assert code == 2 and "torch.py would hide the module torch, which others use; give it another name" in err


def test_another_network_is_not_asked_for_beside_it(net):
    code, _, err = net("compare", "fedavg", *BY, "--vary", "model.name=mlp,Net")
    assert code == 2 and "but the network was given: Net; leave out one of the two" in err
