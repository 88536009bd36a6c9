"""Recognizes the messages of other protocols than that of an endpoint."""

from typing import Any, Final

PATHS: Final = {
    "Godot": "/godot",
    "JSON-RPC": "/ws",
    "matchbox": "/matchbox/{room}",
    "Nostr": "/nostr",
    "PeerJS": "/peerjs",
    "RxDB": "/rxdb",
    "WebTorrent": "/tracker",
    "y-webrtc": "/y-webrtc",
}
"""The path of each protocol."""

NOSTR: Final = ("EVENT", "REQ", "CLOSE", "AUTH", "COUNT")
PEERJS: Final = ("OFFER", "ANSWER", "CANDIDATE", "LEAVE", "EXPIRE", "HEARTBEAT")
RXDB: Final = ("join", "signal")
WEBTORRENT: Final = ("announce", "scrape")
Y_WEBRTC: Final = ("subscribe", "unsubscribe", "publish")


def find_protocol(message: Any) -> str:
    """Return the protocol of decoded JSON, a key of `PATHS`. An empty text stands for none of them."""
    if type(message) is list:
        return "Nostr" if message and message[0] in NOSTR else ""
    if type(message) is not dict:
        return "matchbox" if message == "KeepAlive" else ""
    if "jsonrpc" in message:
        return "JSON-RPC"
    if message.get("action") in WEBTORRENT:
        return "WebTorrent"
    if "Signal" in message:
        return "matchbox"
    kind = message.get("type")
    if type(kind) is int and {"id", "data"} <= message.keys():
        return "Godot"
    return "y-webrtc" if kind in Y_WEBRTC else "PeerJS" if kind in PEERJS else "RxDB" if kind in RXDB else ""


def describe(path: str, found: str) -> str:
    """Return the reason why an endpoint closes the connection of a client of another protocol."""
    expected = next(protocol for protocol, own in PATHS.items() if path == own)
    return f"{path} is for {expected}; for {found} use {PATHS[found]}"
