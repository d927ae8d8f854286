"""Addresses of servers, and the check that the right one answers there."""

from __future__ import annotations

import http.client
import ssl
from base64 import b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

from fedbraid.deploy.guard import KEY, STATUS_PATH
from fedbraid.errors import UserError

ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where a server that listens everywhere is reached from its own machine."""


EARLIEST, LATEST = -300.0, 5.0
"""Seconds that a client's clock may be ahead of the server's, as Flower has it."""


EXPIRED = {9: "is not valid yet", 10: "has expired"}
"""OpenSSL's codes for certificates that are right but for their dates."""


@dataclass(frozen=True)
class Address:
    """HOST:PORT; an IPv6 address is in brackets."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        host, _, port = text.rpartition(":")
        host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not host or not port.isdigit() or not 0 < int(port) < 2**16:
            raise UserError(f"a server is given as HOST:PORT such as fed.example.org:8000, not {text!r}")
        return cls(host, int(port))

    @property
    def near(self) -> Address:
        """As the server's own processes reach it."""
        return Address(ANYWHERE.get(self.host, self.host), self.port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class ServerStatus:
    """A server's answer."""

    status: int  # 200 = well, 401 = it does not know the key, 0 = it is no server of ours
    ahead: float  # seconds that our clock is ahead of its


def query_status(address: Address, ca: Path | None, *, token: str = "", key: bytes = b"") -> ServerStatus:
    """Ask a server's guard; given its token it begins to let clients in."""
    tls = None if ca is None else ssl.create_default_context(cafile=str(ca))
    connection = (
        http.client.HTTPConnection(address.host, address.port, timeout=5)
        if tls is None
        else http.client.HTTPSConnection(address.host, address.port, timeout=5, context=tls)
    )
    given = {"authorization": f"Bearer {token}"} | ({KEY.decode(): b64encode(key).decode()} if key else {})
    try:
        connection.request("GET", STATUS_PATH, headers=given)
        reply = connection.getresponse()
        ours = b"fedbraid" in reply.read(1000)
        date = reply.headers.get("date")
        ahead = (datetime.now(UTC) - parsedate_to_datetime(date)).total_seconds() if date else 0.0
        return ServerStatus(reply.status if ours else 0, ahead)
    finally:
        connection.close()


def check_server(address: Address, ca: Path | None, key: bytes = b"") -> bool:
    """Return whether the server answers; raise a `UserError` if it cannot be the right one."""
    try:
        found = query_status(address, ca, key=key)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in EXPIRED:
            raise UserError(
                f"the certificate of {address} {EXPIRED[error.verify_code]}; its operator makes another, or the clock "
                "of this machine is wrong"
            ) from None
        raise UserError(
            f"{address} is not the server of these keys, or not under this name: {error.verify_message}; "
            "do ca.pem and the address belong together?"
        ) from None
    except ssl.SSLError:
        raise UserError(f"{address} does not speak TLS: is it the right port, or a server with --insecure?") from None
    except (http.client.HTTPException, ConnectionResetError):
        if ca is not None:
            return False
        raise UserError(f"{address} does not speak plain HTTP: it wants TLS, so join it with --keys") from None
    except OSError:
        return False  # nobody there, or only through a proxy
    if not found.status:
        raise UserError(f"{address} is no server of FedBraid")
    if found.status != 200:
        raise UserError(f"{address} does not know this client's key: is its line in the server's roster?")
    if not EARLIEST < found.ahead < LATEST:
        how = f"{abs(found.ahead):.0f} s {'ahead of' if found.ahead > 0 else 'behind'}"
        raise UserError(f"this machine's clock is {how} that of {address}, which takes no requests so dated; set it")
    return True
