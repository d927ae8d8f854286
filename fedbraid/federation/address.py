"""Where a server is, and whether it is there."""

from __future__ import annotations

import http.client
import ssl
from dataclasses import dataclass
from pathlib import Path

from fedbraid.errors import UserError
from fedbraid.federation.guard import PULSE

ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where a server that listens everywhere is reached from its own machine."""


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


def pulse(address: Address, ca: Path | None, token: str = "") -> bool:
    """Whether a server's guard answers; given its token it begins to let clients in."""
    tls = None if ca is None else ssl.create_default_context(cafile=str(ca))
    connection = (
        http.client.HTTPConnection(address.host, address.port, timeout=5)
        if tls is None
        else http.client.HTTPSConnection(address.host, address.port, timeout=5, context=tls)
    )
    try:
        connection.request("GET", PULSE, headers={"authorization": f"Bearer {token}"})
        return b"fedbraid" in connection.getresponse().read(1000)
    finally:
        connection.close()


def check_server(address: Address, ca: Path | None) -> bool:
    """Whether the server answers. One that cannot be the right one is refused with a sentence."""
    try:
        if pulse(address, ca):
            return True
    except ssl.SSLCertVerificationError as error:
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
    raise UserError(f"{address} is no server of FedBraid")
