"""The operations and subscriptions over one connection: JSON-RPC 2.0 in the text messages of a WebSocket (contract C9).

`endpoint` accepts the handshake, `connection` is what one client asks for and is told, `rpc` the form of the messages,
`presence` what becomes of offers whose connection ends.
"""
