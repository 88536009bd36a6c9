"""Operations and subscriptions over a WebSocket, as JSON-RPC 2.0 in text messages (docs/websocket-api.md).

`routes` accepts the handshake, `connection` serves one client, `rpc` is the format of the messages, and `presence`
manages held offers.
"""
