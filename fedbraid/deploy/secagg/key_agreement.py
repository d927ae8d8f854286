"""Keys: agreed on (X25519), derived (HKDF-SHA256), sealed with (ChaCha20-Poly1305), signed by (Ed25519)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedbraid.deploy.secagg.protocol import ProtocolError, framed

Sign = Callable[[bytes], bytes]
"""The signature of a message by one's long-term key."""

Verify = Callable[[str, bytes, bytes], bool]
"""(name, message, signature): whether the signature is by that client's long-term key."""

ONCE = bytes(12)
"""The nonce: every key below seals a single message."""


def derived(secret: bytes, *purpose: str | bytes) -> bytes:
    """32 bytes from a secret, for one purpose; they tell nothing of those for another."""
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=framed("fedbraid secure sum", *purpose)).derive(secret)


def public(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, other: bytes, *purpose: str | bytes) -> bytes:
    """A key that two have in common, from one's private and the other's public key."""
    try:
        secret = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise ProtocolError("a public key is one with which no secret can be agreed on") from None
    return derived(secret, *purpose)


def sealed(key: bytes, message: bytes, about: bytes) -> bytes:
    """`message`, readable and unaltered for who has the key; `about` is not in it but must be the same again."""
    return ChaCha20Poly1305(key).encrypt(ONCE, message, about)


def opened(key: bytes, message: bytes, about: bytes) -> bytes:
    try:
        return ChaCha20Poly1305(key).decrypt(ONCE, message, about)
    except (InvalidTag, ValueError):
        raise ProtocolError("a sealed message was altered, or is somebody else's") from None


def signer(private: bytes) -> Sign:
    """Signs by a long-term Ed25519 key (32 raw bytes)."""
    return Ed25519PrivateKey.from_private_bytes(private).sign


def verifier(publics: Mapping[str, bytes]) -> Verify:
    """Knows clients by their public Ed25519 keys (32 raw bytes each)."""
    keys = {name: Ed25519PublicKey.from_public_bytes(raw) for name, raw in publics.items()}

    def verify(name: str, message: bytes, signature: bytes) -> bool:
        if name not in keys:
            return False
        try:
            keys[name].verify(signature, message)
        except InvalidSignature:
            return False
        return True

    return verify
