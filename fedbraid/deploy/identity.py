"""A client's long-term key, and those of the others as it knows them, for the keys of secure sums to be signed by.

The roster must be the client's own copy, had from somebody it trusts: from the server it would prove nothing, since
it is the server that could otherwise put itself between two clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedbraid.deploy.keys import ROSTER, check_private, read_roster
from fedbraid.errors import UserError

HOW = ec.ECDSA(hashes.SHA384())


@dataclass(frozen=True)
class Identity:
    """Files that `fedbraid keys` makes: the client's `node.key`, and a copy of the `roster`."""

    key: Path
    roster: Path

    @classmethod
    def of(cls, folder: Path) -> Identity:
        """That of the client whose folder it is."""
        return cls(folder / "node.key", folder / ROSTER)

    def sign(self, message: bytes) -> bytes:
        return self._private.sign(message, HOW)

    def verify(self, name: str, message: bytes, signature: bytes) -> bool:
        return self._others.verify(name, message, signature)

    @cached_property
    def _private(self) -> ec.EllipticCurvePrivateKey:
        if self.key.exists():
            check_private(self.key)
        try:
            key = serialization.load_ssh_private_key(self.key.read_bytes(), None)
        except (OSError, ValueError) as error:
            raise UserError(f"{self.key} is no private key of a client: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise UserError(f"{self.key} is a key of another kind than ECDSA")
        return key

    @cached_property
    def _others(self) -> PublicKeys:
        return PublicKeys({member.name: member.key for member in read_roster(self.roster)})


@dataclass(frozen=True)
class PublicKeys:
    """Clients by their public keys, PEM."""

    keys: Mapping[str, bytes]

    def verify(self, name: str, message: bytes, signature: bytes) -> bool:
        """Return whether the signature of the message is by that client's key."""
        if name not in self.keys:
            return False
        public = serialization.load_pem_public_key(self.keys[name])
        assert isinstance(public, ec.EllipticCurvePublicKey)
        try:
            public.verify(signature, message, HOW)
        except InvalidSignature:
            return False
        return True
