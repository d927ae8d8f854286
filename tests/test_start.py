"""What a command costs before its first round: torch's import, and little else."""

import ast
import importlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fedbraid as fb
from fedbraid.moved import MOVED

HEAVY = [
    "huggingface_hub",
    "matplotlib",
    "pandas",
    "PIL",
    "pyarrow",
    "scipy",
    "sklearn",
    "sympy",
    "torch._dynamo",
    "torch._inductor",
]
"""Packages of which each takes as long to import as all of FedBraid, or longer."""

FIRST_ROUND = """
import os, sys
from fedbraid.cli import app as cli
from fedbraid.training.simulation import Simulation

launch = Simulation.launch

def and_stop(self):
    record = launch(self)()
    assert record["round"] == 1
    print(" ".join(sys.modules), flush=True)
    os._exit(0)

Simulation.launch = and_stop
sys.argv = ["fedbraid", "run", *sys.argv[1:]]
cli.main()
"""


EACH = """
import os, sys
import fedbraid

print(*sys.modules, flush=True)
code, *engines = sys.argv[1:]
for engine in engines:
    if not os.fork():
        sys.argv[1:] = ["--engine", engine, "--device", "cpu", "--out", engine]
        exec(code)
    assert os.wait()[1] == 0
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """The modules that a fresh process has loaded after the import, and after a first round with either engine."""
    command = [sys.executable, "-c", EACH, FIRST_ROUND, "stack", "loop"]
    done = subprocess.run(command, cwd=tmp_path_factory.mktemp("fresh"), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return dict(zip(("import", "stack", "loop"), (set(line.split()) for line in done.stdout.splitlines()), strict=True))


def test_importing_loads_neither_torch_nor_any_room(loaded):
    assert not loaded["import"] & {*HEAVY, "torch", "numpy", "rich", "typer"}
    ours = {name for name in loaded["import"] if name.startswith("fedbraid.")}
    assert ours == {"fedbraid.moved", "fedbraid.version"}


def test_public_names_are_listed_alike_for_editors_and_for_python():
    """`TYPE_CHECKING` has real imports for editors, `_HOMES` the same names for Python."""
    tree = ast.parse(Path(fb.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {(n.module.removeprefix("fedbraid."), a.name) for n in block.body for a in n.names}
    assert seen == {(module, name) for module, names in fb._HOMES.items() for name in names}
    assert {name for _, name in seen} | {"__version__"} == set(fb.__all__)
    for name in fb.__all__:
        assert getattr(fb, name) is not None
    assert set(fb.__all__) <= set(dir(fb))
    with pytest.raises(AttributeError, match="no attribute 'compair'"):
        _ = fb.compair


@pytest.mark.parametrize("old, new", MOVED.items())
def test_old_names_of_modules_warn_and_are_the_same_module(old, new):
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is called {new} now"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(new)
    assert module.__spec__.name == new


@pytest.mark.parametrize("engine", ["stack", "loop"])
def test_a_first_round_of_the_command_loads_nothing_heavy(engine, loaded):
    assert {"torch", "rich", f"fedbraid.engines.{engine}"} <= loaded[engine]
    assert not loaded[engine] & set(HEAVY)


def seconds(code, *arguments):
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, stdout=subprocess.DEVNULL, timeout=120)
    return time.perf_counter() - began


@pytest.mark.slow
def test_starting_takes_little_longer_than_importing_torch(tmp_path):
    """The least of several turns: what other processes take of the machine is not counted."""
    torch, fedbraid, command = [], [], []
    for turn in range(7):
        torch.append(seconds("import torch"))
        fedbraid.append(seconds("import fedbraid"))
        command.append(seconds(FIRST_ROUND, "--device", "cpu", "--out", str(tmp_path / str(turn))))
    assert min(fedbraid) < 1.5 * min(torch)
    assert min(command) < 1.8 * min(torch)


def test_old_public_names_of_objects_warn():
    user_objects = importlib.import_module("fedbraid.training.user_objects")
    with pytest.warns(DeprecationWarning, match="Given is called UserObjects now"):
        assert user_objects.Given is user_objects.UserObjects


LIGHT = """
import sys
from fedbraid.cli.app import app
for words in (["--help"], ["methods"], ["models"], ["data", "list"]):
    app(words, standalone_mode=False)
print(sorted({"torch", "numpy", "matplotlib"} & set(sys.modules)), file=sys.stderr)
"""


def test_help_and_lists_import_no_torch_once_they_were_made(tmp_path):
    """The first call makes the lists, which takes torch; later ones read them."""
    environment = os.environ | {"FEDBRAID_CACHE": str(tmp_path)}
    runs = [
        subprocess.run([sys.executable, "-c", LIGHT], env=environment, capture_output=True, text=True, timeout=300)
        for _ in range(2)
    ]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr
    assert runs[0].stdout == runs[1].stdout
    assert runs[1].stderr.strip().endswith("[]")
