"""A federation's server: Flower's SuperLink behind its guard, the run on it, and their end.

    OUT/             the run directory, as of any run
    OUT/flower/      server.log, superlink.log, superexec.log, and what the processes tell one another

A SuperLink that ends takes its run with it. The run directory remains: `--resume` begins another SuperLink and goes on.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

from fedbraid.deploy.address import Address, query_status
from fedbraid.deploy.keys import CA, certified_hosts, check_private, read_roster
from fedbraid.deploy.process_settings import GuardSettings, ServerSettings
from fedbraid.deploy.processes import (
    Child,
    Tail,
    alone_in,
    ended_with_us,
    environment,
    last_lines,
    start,
    wait_for_port,
)
from fedbraid.errors import UserError
from fedbraid.storage.private import private_folder

STARTING = 60.0
"""Seconds the SuperLink has to answer for the first time."""

GUARD, SECRET = "guard.json", "superexec.secret"
"""What the server's processes know one another by; a new one is made for each start."""

Say = Callable[[str], None]


def run_server(settings: ServerSettings, address: Address, keys: Path | None, say: Say) -> None:
    """Serve until the run is finished. `keys` is the server's folder; None = no TLS, and names are believed."""
    if keys is not None:
        check_private(keys / "server.key")
        check_certificate(keys, address)
        roster = read_roster(keys / "roster")
        names = {member.key.decode(): member.name for member in roster}
        settings = replace(settings, names=names, keys=str(keys))
    private_folder(Path(settings.out))  # what is recorded of clients, models and scores by name, is its owner's alone
    with alone_in(settings.folder), ended_with_us() as children:
        if not wait_for_port(address.host, address.port, 10):
            raise UserError(f"{address} is in use or is no address of this machine; choose another --port or --host")
        try:
            _serve(settings, address, keys, children, say)
        finally:
            for file in (GUARD, SECRET):
                (settings.folder / file).unlink(missing_ok=True)


def check_certificate(keys: Path, address: Address) -> None:
    """The server's own processes check its certificate, too."""
    host, hosts = address.near.host, certified_hosts(keys / "server.pem")
    if host not in hosts:
        raise UserError(
            f"the certificate in {keys} is for {', '.join(hosts)}, not for {host}; "
            f"make another with `fedbraid keys … --host {host}`, or serve on all addresses with --host 0.0.0.0"
        )


def _serve(settings: ServerSettings, address: Address, keys: Path | None, children: list[Child], say: Say) -> None:
    from fedbraid.deploy.flower_programs import FlowerControl  # Flower itself, which takes a second

    folder = settings.folder
    token, ca = secrets.token_hex(32), keys / CA if keys else None
    guard = GuardSettings(token, settings.most, settings.names or {}).write(folder / GUARD)
    secret = new_secret(folder / SECRET)
    settings.done.unlink(missing_ok=True)
    ours = settings.write(folder / "server.json")
    env = environment(folder / "home")
    ways = (
        ["--insecure"]
        if keys is None
        else [
            f"--ssl-ca-certfile={keys / CA}",
            f"--ssl-certfile={keys / 'server.pem'}",
            f"--ssl-keyfile={keys / 'server.key'}",
            "--enable-supernode-auth",
        ]
    )
    link_log = Tail(folder / "superlink.log", from_now=True)
    link = start(
        "superlink",
        [
            str(guard),
            *ways,
            f"--host={address.host}",
            f"--port={address.port}",
            "--isolation=process",
            f"--superexec-auth-secret-file={secret}",
            "--disable-runtime-dependency-installation",
        ],
        log=folder / "superlink.log",
        env=env,
    )
    children.append(link)
    _wait_until_guarded(link, address, ca)
    children.append(
        start(
            "superexec",
            [
                f"--runtime-api-address={address.near}",
                *(["--insecure"] if ca is None else [f"--root-certificates={ca}"]),
                f"--superexec-auth-secret-file={secret}",
                f"--parent-pid={os.getpid()}",
            ],
            log=folder / "superexec.log",
            env=env,
        )
    )
    control = FlowerControl(str(address.near), ca, token)
    for key, name in (settings.names or {}).items():
        control.register(name, key.encode())
    query_status(address.near, ca, token=token)
    our_log = Tail(settings.log, from_now=True)
    run = control.start_run(ours)
    say(f"serving on {address}; clients: {', '.join(settings.roster)}")
    follow(settings.done, lambda: control.status(run), [our_log, link_log], children, say)


def new_secret(file: Path) -> Path:
    """A file with a fresh secret in it, for its owner alone."""
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as text:
        text.write(secrets.token_hex(32))
    return file


def _wait_until_guarded(link: Child, address: Address, ca: Path | None) -> None:
    """Wait for the SuperLink, and see that the guard stands before it."""
    until = monotonic() + STARTING
    while monotonic() < until and not link.ended:
        with suppress(OSError, http.client.HTTPException):
            if query_status(address.near, ca).status == 200:
                return
        sleep(0.2)
    raise UserError(f"Flower's SuperLink did not start; {link.log} ends with:\n{last_lines(link.log)}")


def follow(done: Path, status: Callable[[], str], logs: list[Tail], children: list[Child], say: Say) -> None:
    """Tell what the run says until it is done."""
    ours, link = logs
    asked = monotonic()
    while True:
        finished = done.exists()
        for line in ours.lines():
            say(line)
        for line in link.lines():
            if line.startswith("refused: "):
                say(line)
        if finished:
            break
        dead = next((child for child in children if child.ended), None)
        if dead:
            raise UserError(
                f"Flower's {dead.name} ended in the middle of the run; --resume goes on. "
                f"{dead.log} ends with:\n{last_lines(dead.log)}"
            )
        if monotonic() - asked > 5:
            asked = monotonic()
            if _is_over(status) and not done.exists():
                raise UserError(
                    f"the server's process ended before it could say why; --resume goes on. "
                    f"{children[-1].log} ends with:\n{last_lines(children[-1].log)}"
                )
        sleep(0.2)
    error = json.loads(done.read_text())["error"]
    if error:
        raise UserError(error)


def _is_over(status: Callable[[], str]) -> bool:
    try:
        return status().startswith("finished")
    except UserError:
        return False  # a SuperLink that cannot say is about to be found dead
