"""Messages of the server's: who may have signed them, and for whom."""

from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("cryptography")

from fedbraid.deploy.keys import make_keys, public_of
from fedbraid.deploy.server_signature import ServerSigner, ServerVerifier, Signed
from fedbraid.errors import UserError


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    place = tmp_path_factory.mktemp("keys")
    for federation in ("ours", "theirs"):
        make_keys(place / federation, [], ["a", "b"])
    return place


def verifier(keys, client="a", federation="ours"):
    folder = keys / federation / client
    return ServerVerifier(folder / "ca.pem", public_of(folder / "node.key"))


def signed(keys, content=b"train", client="a", federation="ours"):
    return ServerSigner(keys / federation / "server").sign(content, public_of(keys / "ours" / client / "node.key"))


def test_the_servers_message_is_taken(keys):
    verifier(keys).check(b"train", signed(keys))


def test_others_are_refused(keys):
    check = verifier(keys).check
    for content, signature, reason in (
        (b"train", None, "not signed by the server"),
        (b"forget", signed(keys), "did not sign for this client"),
        (b"train", signed(keys, client="b"), "did not sign for this client"),
        (b"train", signed(keys, federation="theirs"), "not by the authority"),
        (b"train", Signed(signed(keys).signature, b"x"), "not by the authority"),
        (b"train", Signed(b"x", signed(keys).certificate), "did not sign for this client"),
        (b"train", Signed(signed(keys).signature, (keys / "ours" / "a" / "ca.pem").read_bytes()), "not by the author"),
    ):
        with pytest.raises(UserError, match=reason):
            check(content, signature)


def test_an_expired_certificate_is_called_so(keys):
    with pytest.raises(UserError, match="the server's certificate expired on"):
        verifier(keys).check(b"train", signed(keys), now=datetime.now(UTC) + timedelta(days=1000))
