"""Certificates and keys of a federation: a folder for each party, to be handed out.

    OUT/authority/   ca.key, ca.pem             signs the server's certificate; keep it away from the network
    OUT/server/      server.key, server.pem, ca.pem, roster
    OUT/NAME/        node.key, node.pub, ca.pem, roster    one for each client

The roster has one line for each client, in the order of their numbers: its name and its public key as OpenSSH writes
it. A client that made its key itself (`ssh-keygen -t ecdsa -b 384`) only has to send that line. Clients have a copy of
their own, because secure sums must not take the server's word for who the others are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedbraid.deploy.names import check_name, check_names
from fedbraid.errors import UserError

CA, ROSTER, AUTHORITY, SERVER = "ca.pem", "roster", "authority", "server"
ALWAYS = "localhost", "127.0.0.1", "::1"
"""What the server's certificate is good for in any case: its own processes reach it there."""

CA_YEARS, SERVER_YEARS = 10, 2


@dataclass(frozen=True)
class Member:
    """A client of the roster."""

    name: str
    key: bytes  # its public key, PEM


# --- making them


def make_keys(out: Path, hosts: Sequence[str], clients: Sequence[str]) -> list[Path]:
    """Everything of a federation that is not there yet; the folders that were made.

    What is there is never overwritten: more clients can be added to a federation, at the end of its roster.
    """
    check_names(clients)
    names = [_subject(host) for host in dict.fromkeys((*hosts, *ALWAYS))]
    kept = next((name for name in clients if name in (AUTHORITY, SERVER)), None)
    if kept:
        raise UserError(f"a client cannot be called {kept}, which is a folder of its own")
    taken = next((name for name in clients if (out / name).exists()), None)
    if taken:
        raise UserError(f"{out / taken} is there already; keys are never overwritten")
    server = out / SERVER
    if server.exists() and hosts:
        raise UserError(f"{server} is there already; its certificate is never overwritten, so leave out --host")
    made = []
    if not server.exists():
        made = [_make_authority(out / AUTHORITY), _make_server(out, names)]
    return made + [_make_client(out, name) for name in clients]


def _make_authority(folder: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "FedBraid federation")])
    certificate = (
        _certificate(name, name, key.public_key(), CA_YEARS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(folder / "ca.key", _private(key), secret=True)
    _write(folder / CA, certificate.public_bytes(Encoding.PEM))
    return folder


def _make_server(out: Path, names: list[x509.GeneralName]) -> Path:
    folder = out / SERVER
    authority = x509.load_pem_x509_certificate((out / AUTHORITY / CA).read_bytes())
    signs = serialization.load_pem_private_key((out / AUTHORITY / "ca.key").read_bytes(), None)
    assert isinstance(signs, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    common = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "FedBraid server")])
    certificate = (
        _certificate(common, authority.subject, key.public_key(), SERVER_YEARS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signs.public_key()), critical=False)
        .sign(signs, hashes.SHA256())
    )
    _write(folder / "server.key", _private(key), secret=True)
    _write(folder / "server.pem", certificate.public_bytes(Encoding.PEM))
    _write(folder / CA, (out / AUTHORITY / CA).read_bytes())
    _write(folder / ROSTER, b"")
    return folder


def _make_client(out: Path, name: str) -> Path:
    folder = out / name
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write(folder / "node.key", key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), secret=True)
    _write(folder / "node.pub", public + f" {name}\n".encode())
    _write(folder / CA, (out / SERVER / CA).read_bytes())
    _write(folder / ROSTER, (out / SERVER / ROSTER).read_bytes())
    for file in out.glob(f"*/{ROSTER}"):
        with open(file, "ab") as roster:
            roster.write(f"{name} ".encode() + public + b"\n")
    return folder


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, years: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ a little
        .not_valid_after(now + timedelta(days=365 * years))
    )


def _usage(sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(host: str) -> x509.GeneralName:
    address = _address(host)
    if address is not None:
        return x509.IPAddress(address)
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", host):
        raise UserError(f"--host is a name such as fed.example.org or an IP address, not {host!r}")
    return x509.DNSName(host)


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, content: bytes, secret: bool = False) -> None:
    """A new file; a secret one is never readable by others, not even for a moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


# --- reading them


def read_roster(file: Path) -> tuple[Member, ...]:
    """The clients of a roster, in the order of their numbers."""
    members = []
    for number, line in enumerate(_text(file).splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, _, key = line.strip().partition(" ")
        try:
            members.append(Member(check_name(name), _pem(key)))
        except (ValueError, UnsupportedAlgorithm) as error:
            raise UserError(f"line {number} of {file} is no name and ECDSA public key: {error}") from None
    check_names([member.name for member in members])
    if len({member.key for member in members}) < len(members):
        raise UserError(f"two clients of {file} have the same key")
    if not members:
        raise UserError(f"{file} has no clients; `fedbraid keys` adds some with --client")
    return tuple(members)


def read_name(file: Path) -> str:
    """The name at the end of a client's public key."""
    parts = _text(file).split()
    if len(parts) != 3:
        raise UserError(f"{file} does not end with the client's name; give it with --name")
    return check_name(parts[2])


def check_private(file: Path) -> None:
    """Raise a `UserError` if others than its owner can read a file with a private key."""
    mode = file.stat().st_mode & 0o777
    if mode & 0o077:
        raise UserError(f"{file} can be read by others than its owner (mode {mode:o}); chmod 600 {file}")


def public_of(file: Path) -> bytes:
    """Return the public key that belongs to a client's private one, PEM."""
    if file.exists():
        check_private(file)
    try:
        key = serialization.load_ssh_private_key(_text(file).encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UserError(f"{file} is no OpenSSH private key without a password: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{file} is no ECDSA key; `ssh-keygen -t ecdsa -b 384` makes one")
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def certified_hosts(file: Path) -> tuple[str, ...]:
    """The names and addresses that a server's certificate is for."""
    try:
        certificate = x509.load_pem_x509_certificate(_text(file).encode())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise UserError(f"{file} is no certificate with host names: {error}") from None
    return tuple(str(name.value) for name in names)


def _pem(key: str) -> bytes:
    public = serialization.load_ssh_public_key(key.encode())
    if not isinstance(public, ec.EllipticCurvePublicKey):
        raise ValueError("the key is of another kind")
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"there is no file {file}; `fedbraid keys` makes the folders of a federation") from None
    except UnicodeDecodeError:
        raise UserError(f"{file} is not text") from None
