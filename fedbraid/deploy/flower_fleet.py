"""Flower's Fleet interface as the guard reads it: signatures of requests, questions to clients, and their replies.

Flower checks that a request is signed by a registered key and names the node of that key. It does not check whom the
*messages* in the request claim to be from and for. So a client could send another one a message that looks as if it
came from the server, or store replies that answer nothing until the server's memory is full. The guard therefore reads
`pull-messages` and `push-messages`, and lets a reply through only if it is from the node that sends it, to the server,
and to a question that this node has pulled and not answered too often.
"""

from __future__ import annotations

from base64 import b64decode
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import (
    SUPERLINK_NODE_ID,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
)
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

REPLIES = 3
"""Replies to one question that are let through: a client whose connection breaks sends its reply again."""

QUESTIONS = 256
"""Questions to one node that are remembered; a client is asked one at a time."""


class FleetRules:
    """Decides from a request's headers and body whether Flower is to see it."""

    def __init__(self) -> None:
        # node -> message -> replies that may still come; bounded in both directions by forgetting the oldest
        self._questions: dict[int, OrderedDict[str, int]] = {}

    def is_signed(self, headers: Mapping[bytes, bytes], now: datetime | None = None) -> bool:
        """Return whether the headers carry a timely signature by the key that they name.

        The same check as Flower's, but before the body is read: who cannot sign costs no memory.
        """
        try:
            key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER.encode()], validate=True)
            signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER.encode()], validate=True)
            timestamp = headers[TIMESTAMP_HEADER.encode()]
            age = ((now or datetime.now(UTC)) - datetime.fromisoformat(timestamp.decode())).total_seconds()
            if not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
                return False
            public = serialization.load_pem_public_key(key)
            if not isinstance(public, ec.EllipticCurvePublicKey):
                return False
            public.verify(signature, timestamp, ec.ECDSA(hashes.SHA256()))
        except (KeyError, ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            return False
        return True

    def note_questions(self, body: bytes) -> None:
        """Remember the messages that a `pull-messages` response hands to a node."""
        try:
            response = PullMessagesResponse.FromString(body)
        except DecodeError:
            return
        for message in response.messages_list:
            node = self._questions.setdefault(message.metadata.dst_node_id, OrderedDict())
            node[message.metadata.message_id] = REPLIES
            while len(node) > QUESTIONS:
                node.popitem(last=False)

    def refusal(self, body: bytes) -> str:
        """Return why a `push-messages` request is refused, or nothing; count its replies."""
        try:
            request = PushMessagesRequest.FromString(body)
        except DecodeError:
            return "sent a reply that cannot be read"
        sender = request.node.node_id
        questions = self._questions.get(sender, OrderedDict())
        for message in request.messages_list:
            about = message.metadata
            if about.src_node_id != sender:
                return "sent a message in another client's name"
            if about.dst_node_id != SUPERLINK_NODE_ID:
                return "sent a message to another client"
            if questions.get(about.reply_to_message_id, 0) < 1:
                return "sent a message that nobody asked for"
        for message in request.messages_list:
            questions[message.metadata.reply_to_message_id] -= 1
        return ""
