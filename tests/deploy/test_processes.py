"""Children end with us, in whatever way we end."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedbraid.deploy.address import Address
from fedbraid.deploy.client_process import Connection
from fedbraid.deploy.processes import Tail, alone_in, environment, free_port, last_lines, wait_for_port
from fedbraid.errors import UserError

ROOT = Path(__file__).parents[2]

LIGHT = f"""
import os, sys, time, types
light = types.ModuleType("fedbraid")
light.__path__ = [{str(ROOT / "fedbraid")!r}]
sys.modules["fedbraid"] = light
from fedbraid.deploy.processes import *
"""
CHILD = f"{LIGHT}\nend_with_the_pipe()\nprint(os.getpid(), flush=True)\ntime.sleep(60)"
STUBBORN = f"""{LIGHT}
import signal
import fedbraid.deploy.processes as processes
processes.PATIENCE = 1
signal.signal(signal.SIGTERM, signal.SIG_IGN)
end_with_the_pipe()
print(os.getpid(), flush=True)
time.sleep(60)
"""
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, start_new_session=True)
time.sleep(60)
"""


def gone(pid, seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("child", [CHILD, STUBBORN], ids=["polite", "stubborn"])
def test_a_child_ends_when_its_parent_is_killed(child):
    with subprocess.Popen([sys.executable, "-c", PARENT, child], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        assert not gone(pid, 0.3)
        parent.kill()
        assert gone(pid, 5)


GRANDPARENT = f"""{LIGHT}
import subprocess
def sleeper(name):
    log = Path(sys.argv[1]) / name
    with open(log, "wb") as lines:
        process = subprocess.Popen(
            [sys.executable, "-c", "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True);"
             "import time; time.sleep(60)"],
            stdin=subprocess.PIPE, stdout=lines, start_new_session=True)
    return Child(name, process, log)
try:
    with ended_with_us() as children:
        children += [sleeper("a"), sleeper("b")]
        print(*[child.process.pid for child in children], flush=True)
        time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_ends_children_and_grandchildren_even_if_it_comes_twice(number, tmp_path):
    with subprocess.Popen([sys.executable, "-c", GRANDPARENT, tmp_path], stdout=subprocess.PIPE, text=True) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        while not all((tmp_path / name).exists() and (tmp_path / name).read_text().strip() for name in "ab"):
            time.sleep(0.05)
        pids += [int((tmp_path / name).read_text()) for name in "ab"]
        parent.send_signal(number)
        time.sleep(0.1)
        if parent.poll() is None:
            parent.send_signal(number)
        assert parent.stdout.read() == "interrupted\n"
        assert parent.wait(5) == 0
        assert all(gone(pid, 1) for pid in pids)


def test_one_process_works_in_a_folder(tmp_path):
    place = tmp_path / "run" / "flower"
    with alone_in(place), pytest.raises(UserError, match="run is in use"), alone_in(place):
        pass
    with alone_in(place):
        assert place.stat().st_mode & 0o777 == 0o700


def test_flower_tells_nobody_and_finds_us(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "example.org")
    env = environment(tmp_path)
    assert env["FLWR_TELEMETRY_ENABLED"] == "0" and env["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert env["FLWR_HOME"] == str(tmp_path)
    assert env["NO_PROXY"] == "127.0.0.1,localhost,::1,example.org"
    assert env["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
    assert str(Path(sys.executable).parent) in env["PATH"].split(os.pathsep)


def test_new_lines_are_told_once_and_whole(tmp_path):
    file = tmp_path / "log"
    tail = Tail(file)
    assert tail.lines() == []
    file.write_bytes(b"one\ntwo")
    assert tail.lines() == ["one"] and tail.lines() == []
    with open(file, "ab") as more:
        more.write(b" more\n\xff\n")
    assert tail.lines() == ["two more", "�"]
    later = Tail(file, from_now=True)
    assert later.lines() == []
    assert last_lines(file, 1) == "�" and last_lines(tmp_path / "none") == ""
    tail.close()
    later.close()


def test_a_port_in_use_is_waited_for_a_little():
    port = free_port()
    assert wait_for_port("127.0.0.1", port, 0)
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        assert not wait_for_port("127.0.0.1", port, 0.1)
    assert not wait_for_port("203.0.113.7", port, 0)  # no address of this machine


def test_a_supernode_that_gives_up_is_to_be_started_again():
    said = []
    connection = Connection(Address("127.0.0.1", 1), None, "a", said.append)
    connection.hear("WARNING : Giving up reconnection after 0.50 seconds and 2 tries.")
    assert connection.gave_up
    connection.ended(Path("supernode.log"))  # no error, though it never joined
