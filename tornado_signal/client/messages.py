"""The messages of an application: text, bytes and JSON values over one data channel."""

import contextlib
import json
import re
from collections.abc import Iterable
from typing import Any

from aiortc import RTCPeerConnection

from .parsing import parse_json

MARK = "\x1e"  # precedes JSON, as in RFC 7464. Text that begins with it is also sent as JSON
SMALL = 16_384  # bytes that every implementation takes
DEFAULT_LIMIT = 65_536  # bytes, where the other side does not announce a limit


def encode(data: Any, connections: Iterable[RTCPeerConnection]) -> str | bytes:
    """Return a message as it is sent over these connections.

    Raises:
        ValueError: the message is too large for one of the connections, or contains NaN or an infinite number.
        TypeError: the data is neither text, nor bytes, nor a JSON value.
    """
    message = _serialize(data)
    size = len(message.encode() if isinstance(message, str) else message)
    if size <= SMALL:  # aiortc composes the description for each read
        return message
    for connection in connections:
        limit = _limit(connection)
        if size > limit > 0:
            raise ValueError(f"the message has {size} bytes, and the connection takes {limit} at most: use send_file")
    return message


def _serialize(data: Any) -> str | bytes:
    if isinstance(data, bytes) or (isinstance(data, str) and not data.startswith(MARK)):
        return data
    return MARK + json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _limit(connection: RTCPeerConnection) -> int:
    """Return how many bytes a message may have. 0 stands for no limit."""
    announced = re.search(r"^a=max-message-size:(\d{1,18})", connection.remoteDescription.sdp, re.MULTILINE)
    return int(announced[1]) if announced else DEFAULT_LIMIT


def decode(message: str | bytes) -> Any:
    """Return a received message: text, bytes or a JSON value."""
    if isinstance(message, str) and message.startswith(MARK):
        with contextlib.suppress(ValueError):  # otherwise it is of a program that does not use the mark
            return parse_json(message[1:])
    return message
