"""Simulation imports and runs where Unix-only modules are missing; what needs them is refused with a sentence."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UNIX_ONLY = {"crypt", "fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"}

ANOTHER_SYSTEM = """
import errno, multiprocessing, os, subprocess, sys, types

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in {unix_only!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

for name in {unix_only!r}:
    sys.modules[name] = None
sys.meta_path.insert(0, Missing())
for name in ("getuid", "sched_getaffinity"):
    vars(os).pop(name, None)

held = {{}}

def locking(descriptor, mode, count):
    "As msvcrt has it: the lock of a file ends with the descriptor that took it."
    inode = os.fstat(descriptor).st_ino
    try:
        taken = held.get(inode, descriptor) != descriptor and os.fstat(held[inode]).st_ino == inode
    except OSError:
        taken = False
    if taken:
        raise PermissionError(errno.EACCES, "locked")
    held[inode] = descriptor

sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
"""

SIMULATION = """
import fedbraid as fb
from fedbraid.training.run_directory import RunDirectory
from pathlib import Path

run = fb.run("fedprox+disco", rounds=2, out="run")
assert fb.run("fedprox+disco", rounds=3, out="run", resume=True).summary["rounds"] == 3
assert fb.load("run").accuracy is not None
rows = "\\n".join(f"{k},{k % 7},{k % 2}" for k in range(80))
Path("table.csv").write_text("a,b,label\\n" + rows + "\\n")
fb.run("fedavg", data={"name": "csv", "path": "table.csv"}, model="logistic", partition={"clients": 2}, rounds=1)

directory = RunDirectory(Path("run"))
with directory.locked():
    try:
        with directory.locked():
            raise AssertionError("locked twice")
    except fb.UserError as refused:
        assert "in use" in str(refused)

from fedbraid.cli.app import main
sys.argv = ["fedbraid", "serve", "--insecure", "--client", "a"]
try:
    main()
except SystemExit as left:
    assert left.code == 2, left.code
"""


def imports(tree):
    """The modules that are imported as soon as a module is, those within `try` and `if` included."""
    for node in tree.body if hasattr(tree, "body") else []:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.If | ast.Try):
            yield from imports(node)


def test_no_module_imports_what_only_unix_has():
    for file in (ROOT / "fedbraid").rglob("*.py"):
        assert not UNIX_ONLY & set(imports(ast.parse(file.read_text()))), file


@pytest.mark.slow
def test_simulation_runs_without_unix_modules(tmp_path):
    code = ANOTHER_SYSTEM.format(unix_only=sorted(UNIX_ONLY)) + SIMULATION
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "runs on Linux and macOS" in done.stderr


def test_a_lock_is_exclusive_and_ends_with_its_descriptor(tmp_path):
    from fedbraid.storage.locks import lock_file

    file = tmp_path / "lock"
    with open(file, "w") as first:
        lock_file(first.fileno(), wait=False)
        with open(file, "w") as second, pytest.raises(BlockingIOError):
            lock_file(second.fileno(), wait=False)
    with open(file, "w") as third:
        lock_file(third.fileno(), wait=True)
