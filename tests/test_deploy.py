"""The container, the trial federation and the services: linted, parsed, and the federation run without Docker."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer
import yaml

from fedbraid.cli.app import app

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def tool(name):
    """The path of a program of this environment or of the system."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    return found or pytest.skip(f"needs {name}")


def passes(*command):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr.strip(), done.stderr


def parses(words):
    """The command line takes these words."""
    name, *arguments = words
    typer.main.get_command(app).commands[name].make_context(name, arguments)


def exec_start(unit):
    (line,) = re.findall(r"^ExecStart=/opt/fedbraid/bin/fedbraid (.*)$", unit.read_text(), re.M)
    return shlex.split(line)


def test_hadolint_finds_nothing_in_the_dockerfile():
    passes(tool("hadolint"), DEPLOY / "Dockerfile")


def test_the_image_copies_what_the_build_may_see():
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", (DEPLOY / "Dockerfile").read_text(), re.M)
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert {word for line in copied for word in line.replace("./", "").split()} == allowed
    assert all((ROOT / name).exists() for name in allowed)


@pytest.mark.parametrize(
    ("schema", "file"), [("compose-spec", "deploy/compose.yaml"), ("github-workflows", ".github/workflows/checks.yml")]
)
def test_files_follow_their_schema(schema, file):
    if not find_spec("check_jsonschema"):
        pytest.skip("needs check-jsonschema")
    passes(tool("check-jsonschema"), "--quiet", "--builtin-schema", f"vendor.{schema}", ROOT / file)


def test_the_trial_federation_is_consistent():
    services, volumes = COMPOSE["services"], set(COMPOSE["volumes"])
    used = set()
    for name, service in services.items():
        for volume in service["volumes"]:
            used.add(volume["source"] if isinstance(volume, dict) else volume.partition(":")[0])
        if name not in ("keys", "server"):
            (keys,) = [v for v in service["volumes"] if isinstance(v, dict)]
            assert keys["volume"]["subpath"] == name
            assert keys["read_only"]
    assert used == volumes
    made = re.findall(r"--client (\w+)", services["keys"]["command"][0])
    assert made == [name for name in services if name not in ("keys", "server")]


@pytest.mark.parametrize("name", [name for name in COMPOSE["services"] if name != "keys"])
def test_the_command_line_takes_what_containers_run(name):
    parses(COMPOSE["services"][name]["command"])


@pytest.mark.parametrize("unit", UNITS, ids=[unit.stem for unit in UNITS])
def test_services_are_well_formed(unit, tmp_path):
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/fedbraid/bin/fedbraid", shutil.which("true")))
    passes(tool("systemd-analyze"), "verify", "--man=no", copy)


@pytest.mark.parametrize("unit", UNITS, ids=[unit.stem for unit in UNITS])
def test_the_command_line_takes_what_services_run(unit):
    values = {"$FEDBRAID_SERVER": ["server:8000"], "$FEDBRAID_OWN": ["own.csv"], "$FEDBRAID_SETTINGS": []}
    parses([word for given in exec_start(unit) for word in values.get(given, [given])])


@pytest.mark.slow
def test_the_trial_federation_runs_without_docker(tmp_path):
    """The commands of the containers, as processes with their own folders, over TLS on this machine."""
    fedbraid = [sys.executable, "-m", "fedbraid"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "FEDBRAID_CACHE": str(tmp_path / "cache")}

    def command(name):
        words = COMPOSE["services"][name]["command"]
        here = {"/keys": tmp_path / "keys" / name, "/state": tmp_path / name, "/runs": tmp_path / "runs"}
        words = [word.replace("server:8000", f"localhost:{port}").replace("0.0.0.0", "127.0.0.1") for word in words]
        for place, folder in here.items():
            words = [word.replace(f"={place}", f"={folder}") for word in words]
        return [*fedbraid, *words, *([f"--port={port}"] if name == "server" else [])]

    make = shlex.split(COMPOSE["services"]["keys"]["command"][0].partition("|| fedbraid ")[2])
    make = [str(tmp_path / "keys") if word == "/keys" else "localhost" if word == "server" else word for word in make]
    subprocess.run([*fedbraid, *make], env=environment, check=True, timeout=120)
    clients = []
    try:
        for name in ("north", "south", "east"):
            with open(tmp_path / f"{name}.log", "w") as log:
                clients.append(subprocess.Popen(command(name), env=environment, stdout=log, stderr=log))
        done = subprocess.run(command("server"), env=environment, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr
    finally:
        for client in clients:
            client.terminate()
        for client in clients:
            client.wait(timeout=60)
    assert (tmp_path / "runs" / "trial" / "model.safetensors").exists()
    assert len((tmp_path / "runs" / "trial" / "rounds.jsonl").read_text().splitlines()) == 5
