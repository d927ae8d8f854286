"""Keys and certificates: who gets what, and that OpenSSL and Flower take them."""

import ssl
import stat
import subprocess

import pytest

from fedbraid.deploy.identity import Identity

pytest.importorskip("cryptography", reason="keys need cryptography, which comes with flwr")

from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedbraid.deploy.keys import certified_hosts, make_keys, public_of, read_name, read_roster
from fedbraid.errors import UserError


def test_each_party_gets_its_own_and_no_more(tmp_path):
    make_keys(tmp_path, ["fed.example.org", "10.0.0.5"], ["hospital-a", "hospital-b"])
    files = {folder.name: sorted(file.name for file in folder.iterdir()) for folder in tmp_path.iterdir()}
    assert files == {
        "authority": ["ca.key", "ca.pem"],
        "server": ["ca.pem", "roster", "server.key", "server.pem"],
        "hospital-a": ["ca.pem", "node.key", "node.pub", "roster"],
        "hospital-b": ["ca.pem", "node.key", "node.pub", "roster"],
    }
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.glob("*/*")}
    assert {name for name, mode in modes.items() if mode == 0o600} == {"ca.key", "server.key", "node.key"}


def test_the_roster_has_the_clients_public_keys_in_order(tmp_path):
    make_keys(tmp_path, [], ["b", "a"])
    members = read_roster(tmp_path / "server" / "roster")
    assert [member.name for member in members] == ["b", "a"]
    flower = pytest.importorskip("flwr.supercore.primitives.asymmetric", reason="flwr is not installed")
    for member in members:
        private = load_ssh_private_key((tmp_path / member.name / "node.key").read_bytes(), None)
        assert member.key == flower.public_key_to_bytes(private.public_key())
        assert flower.uses_nist_ec_curve(private.public_key())
        assert read_name(tmp_path / member.name / "node.pub") == member.name


def test_all_have_the_same_roster_also_of_clients_that_came_later(tmp_path):
    make_keys(tmp_path, [], ["a", "b"])
    make_keys(tmp_path, [], ["c"])
    rosters = [read_roster(tmp_path / who / "roster") for who in ("server", "a", "b", "c")]
    assert [member.name for member in rosters[0]] == ["a", "b", "c"]
    assert all(roster == rosters[0] for roster in rosters)


def test_a_client_can_make_its_own_key(tmp_path):
    make_keys(tmp_path, [], ["a"])
    done = subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", "own", "-f", tmp_path / "node.key"],
        check=False,
    )
    assert done.returncode == 0
    kind, key, name = (tmp_path / "node.key.pub").read_text().split()
    with open(tmp_path / "server" / "roster", "a") as roster:
        roster.write(f"\n# by channel\n{name} {kind} {key}\n")
    assert [member.name for member in read_roster(tmp_path / "server" / "roster")] == ["a", "own"]


def test_the_certificate_is_for_the_hosts_and_this_machine(tmp_path):
    make_keys(tmp_path, ["fed.example.org", "10.0.0.5"], [])
    hosts = certified_hosts(tmp_path / "server" / "server.pem")
    assert hosts == ("fed.example.org", "10.0.0.5", "localhost", "127.0.0.1", "::1")


@pytest.mark.parametrize("host, trusted", [("fed.example.org", True), ("10.0.0.5", True), ("other.example.org", False)])
def test_tls_accepts_the_certificate_for_its_hosts_alone(tmp_path, host, trusted):
    make_keys(tmp_path, ["fed.example.org", "10.0.0.5"], [])
    if trusted:
        shake_hands(tmp_path / "server", tmp_path / "server" / "ca.pem", host)
    else:
        with pytest.raises(ssl.SSLCertVerificationError):
            shake_hands(tmp_path / "server", tmp_path / "server" / "ca.pem", host)


def test_tls_refuses_a_certificate_of_another_authority(tmp_path):
    make_keys(tmp_path / "one", [], [])
    make_keys(tmp_path / "other", [], [])
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tmp_path / "one" / "server", tmp_path / "other" / "server" / "ca.pem", "localhost")


def shake_hands(server, ca, host):
    """A TLS handshake between two ends in memory, as strict as Python can be."""
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(server / "server.pem", server / "server.key")
    mine = ssl.create_default_context(cafile=str(ca))
    mine.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [mine.wrap_bio(down, up, server_hostname=host), theirs.wrap_bio(up, down, server_side=True)]
    left = list(ends)
    for _ in range(10):
        for end in list(left):
            try:
                end.do_handshake()
                left.remove(end)
            except ssl.SSLWantReadError:
                pass
        if not left:
            return
    raise AssertionError("no end to it")


def test_nothing_is_overwritten_and_clients_can_be_added(tmp_path):
    make_keys(tmp_path, ["localhost"], ["a"])
    before = {file: file.read_bytes() for file in tmp_path.glob("*/*")}
    for wrong in ["a", "server", "authority"]:
        with pytest.raises(UserError, match="never overwritten" if wrong == "a" else "cannot be called"):
            make_keys(tmp_path, [], [wrong])
    with pytest.raises(UserError, match="leave out --host"):
        make_keys(tmp_path, ["localhost"], ["b"])
    assert [folder.name for folder in make_keys(tmp_path, [], ["b"])] == ["b"]
    for roster in [tmp_path / "server" / "roster", tmp_path / "a" / "roster"]:
        assert [member.name for member in read_roster(roster)] == ["a", "b"]
        assert roster.read_bytes().startswith(before.pop(roster))
    assert {file: file.read_bytes() for file in before} == before


@pytest.mark.parametrize("names", [["a", "a"], ["a b"], ["../a"], [""], ["-a"], ["x" * 65]])
def test_names_are_words_and_different(tmp_path, names):
    with pytest.raises(UserError):
        make_keys(tmp_path, [], names)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("host", ["two words", "https://fed.example.org", "fed.example.org:8000", ""])
def test_hosts_are_names_or_addresses(tmp_path, host):
    with pytest.raises(UserError, match="--host"):
        make_keys(tmp_path, [host], ["a"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "line, why",
    [
        ("a", "line 2"),
        ("a ssh-rsa AAAA", "line 2"),
        ("a ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJFMJm1SGv5CaM9yTVvqYkxPLQ6TrNQ3kAtIIHpZm4Qd", "another kind"),
        ("b {key}", "same key"),
        ("a {key}", "two clients are called a"),
    ],
)
def test_a_wrong_roster_is_refused_with_its_line(tmp_path, line, why):
    make_keys(tmp_path, [], ["a"])
    roster = tmp_path / "server" / "roster"
    key = roster.read_text().split(maxsplit=1)[1].strip()
    with open(roster, "a") as file:
        file.write(line.format(key=key) + "\n")
    with pytest.raises(UserError, match=why):
        read_roster(roster)


def test_a_private_key_that_others_can_read_is_refused(tmp_path):
    make_keys(tmp_path / "keys", [], ["a"])
    key = tmp_path / "keys" / "a" / "node.key"
    public_of(key)
    key.chmod(0o640)
    with pytest.raises(UserError, match=r"can be read by others than its owner \(mode 640\); chmod 600"):
        public_of(key)
    with pytest.raises(UserError, match="can be read by others"):
        Identity.of(key.parent).sign(b"x")
