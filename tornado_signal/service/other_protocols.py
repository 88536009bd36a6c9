"""Recognizes the messages of other protocols than that of an endpoint."""

from typing import Any, Final

PATHS: Final = {
    "JSON-RPC": "/ws",
    "Nostr": "/nostr",
    "PeerJS": "/peerjs",
    "WebTorrent": "/tracker",
    "y-webrtc": "/y-webrtc",
}
"""The path of each protocol."""

NOSTR: Final = ("EVENT", "REQ", "CLOSE", "AUTH", "COUNT")
PEERJS: Final = ("OFFER", "ANSWER", "CANDIDATE", "LEAVE", "EXPIRE", "HEARTBEAT")
WEBTORRENT: Final = ("announce", "scrape")
Y_WEBRTC: Final = ("subscribe", "unsubscribe", "publish")


def find_protocol(message: Any) -> str:
    """Return the protocol of decoded JSON, a key of `PATHS`. An empty text stands for none of them."""
    if type(message) is list:
        return "Nostr" if message and message[0] in NOSTR else ""
    if type(message) is not dict:
        return ""
    if "jsonrpc" in message:
        return "JSON-RPC"
    if message.get("action") in WEBTORRENT:
        return "WebTorrent"
    kind = message.get("type")
    return "y-webrtc" if kind in Y_WEBRTC else "PeerJS" if kind in PEERJS else ""


def describe(path: str, found: str) -> str:
    """Return the reason why an endpoint closes the connection of a client of another protocol."""
    expected = next(protocol for protocol, own in PATHS.items() if path == own)
    return f"{path} is for {expected}; for {found} use {PATHS[found]}"
