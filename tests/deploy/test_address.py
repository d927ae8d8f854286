"""Whether a server is there, and the right one."""

import ssl
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from fedbraid.deploy.address import Address, check_server, query_status
from fedbraid.deploy.processes import free_port
from fedbraid.errors import UserError


@contextmanager
def answering(status=200, body=b'{"detail": "fedbraid"}', ahead=0.0):
    """A server whose clock is so many seconds ahead."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, dict(self.headers)))
            self.send_response_only(status)
            self.send_header("date", format_datetime(datetime.now(UTC) + timedelta(seconds=ahead), usegmt=True))
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Address("127.0.0.1", server.server_address[1]), asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "text, host, port",
    [("localhost:8000", "localhost", 8000), ("10.0.0.5:1", "10.0.0.5", 1), ("[::1]:8000", "::1", 8000)],
)
def test_addresses_are_read_as_they_are_written(text, host, port):
    assert Address.parse(text) == Address(host, port)
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["localhost", ":8000", "localhost:", "localhost:http", "localhost:0", "localhost:70000"]
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(UserError, match="HOST:PORT"):
        Address.parse(text)


def test_a_server_that_listens_everywhere_is_near():
    assert str(Address("0.0.0.0", 8000).near) == "127.0.0.1:8000"
    assert str(Address("::", 8000).near) == "[::1]:8000"
    assert str(Address("10.0.0.5", 8000).near) == "10.0.0.5:8000"


def test_a_server_of_ours_is_known_by_its_answer():
    with answering() as (address, asked):
        assert check_server(address, None, b"key")
        assert query_status(address, None, token="secret").status == 200
    (path, first), (_, second) = asked
    assert path == "/fedbraid" and first["flwr-public-key"] == "a2V5"
    assert second["authorization"] == "Bearer secret" and "flwr-public-key" not in second


@pytest.mark.parametrize(
    "answer, why",
    [
        ({"body": b"hello"}, "is no server of FedBraid"),
        ({"status": 401}, "does not know this client's key"),
        ({"ahead": -20}, "clock is (19|20|21) s ahead of"),
        ({"ahead": 400}, "clock is (399|400|401) s behind"),
    ],
)
def test_a_server_that_cannot_be_the_right_one_is_refused_with_a_sentence(answer, why):
    with answering(**answer) as (address, _), pytest.raises(UserError, match=why):
        check_server(address, None)


@pytest.mark.parametrize("ahead", [-3, 200])
def test_clocks_may_differ_a_little(ahead):
    with answering(ahead=ahead) as (address, _):
        assert check_server(address, None)


def test_nobody_there_is_no_mistake():
    assert not check_server(Address("127.0.0.1", free_port()), None)


def test_an_expired_certificate_is_called_so(monkeypatch):
    for code, words in ((10, "has expired"), (9, "is not valid yet")):
        error = ssl.SSLCertVerificationError(1, "certificate verify failed")
        error.verify_code, error.verify_message = code, "x"

        def asked(*_, error=error, **__):
            raise error

        monkeypatch.setattr("fedbraid.deploy.address.query_status", asked)
        with pytest.raises(UserError, match=f"the certificate of 127.0.0.1:1 {words}; its operator makes another"):
            check_server(Address("127.0.0.1", 1), Path("ca.pem"))
