"""Signatures of the server's messages, so that a client acts on nobody else's.

TLS tells a client that it talks to the right machine, but what it fetches there are stored messages. Each one is signed
with the key of the server's certificate, for one client: the signature covers that client's public key, so a message to
one client is worthless to another. The certificate travels with it, and the client accepts it if its own `ca.pem` has
signed it for a server and it is valid now. Without this a client could be made to delete or train whatever somebody
says who gets a message into the server's store.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedbraid.errors import UserError

ALGORITHM = ec.ECDSA(hashes.SHA256())


@dataclass(frozen=True)
class Signed:
    """A signature with the certificate of the key that made it."""

    signature: bytes
    certificate: bytes  # PEM


class ServerSigner:
    """Signs with the server's TLS key: `server.key` and `server.pem` of its folder of keys."""

    def __init__(self, keys: Path) -> None:
        key = serialization.load_pem_private_key((keys / "server.key").read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise UserError(f"{keys / 'server.key'} is no ECDSA key; `fedbraid keys` makes one")
        self._key, self._certificate = key, (keys / "server.pem").read_bytes()

    def sign(self, content: bytes, client: bytes) -> Signed:
        """Sign a message to the client with this public key (PEM)."""
        return Signed(self._key.sign(_signed_bytes(content, client), ALGORITHM), self._certificate)


@dataclass(frozen=True)
class ServerVerifier:
    """Checks messages to the client with this public key (PEM) against the authority that it trusts."""

    ca: Path
    client: bytes

    def check(self, content: bytes, signed: Signed | None, now: datetime | None = None) -> None:
        """Raise a `UserError` that says why this is no message of the server's to this client."""
        if signed is None:
            raise UserError("refused a message that is not signed by the server; does it run an older FedBraid?")
        certificate = self._certificate(signed.certificate, now or datetime.now(UTC))
        public = certificate.public_key()
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise UserError("refused a message whose certificate has a key of another kind than ECDSA")
        try:
            public.verify(signed.signature, _signed_bytes(content, self.client), ALGORITHM)
        except InvalidSignature:
            raise UserError("refused a message that the server did not sign for this client") from None

    def _certificate(self, pem: bytes, now: datetime) -> x509.Certificate:
        """Return the certificate if the authority has made it for a server and it is valid now.

        A certificate of the authority's for something else must not do: who has a client's could pass for the server.
        """
        authority = x509.load_pem_x509_certificate(self.ca.read_bytes())
        try:
            certificate = x509.load_pem_x509_certificate(pem)
            certificate.verify_directly_issued_by(authority)
            usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
            raise UserError(f"refused a message whose certificate is not by the authority in {self.ca}") from None
        if ExtendedKeyUsageOID.SERVER_AUTH not in usage:
            raise UserError("refused a message whose certificate is not a server's")
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise UserError(f"refused a message: the server's certificate expired on {_day(certificate)}")
        return certificate


def _day(certificate: x509.Certificate) -> str:
    return certificate.not_valid_after_utc.strftime("%d %B %Y")


def _signed_bytes(content: bytes, client: bytes) -> bytes:
    """Return the bytes that are signed; all parts have fixed lengths, so no two messages give the same."""
    return b"fedbraid server message" + hashlib.sha256(client).digest() + hashlib.sha256(content).digest()
