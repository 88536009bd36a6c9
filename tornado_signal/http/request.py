"""Requests as Tornado's handlers read them, made at the least cost."""

from typing import Any

from tornado import escape, httputil


class Request(httputil.HTTPServerRequest):
    """A request whose Host the transport has checked. Everything that few handlers read is parsed when it is read.

    Args:
        connection: the connection of Tornado's interfaces.
        start_line: method, target and version.
        headers: the headers.
    """

    def __init__(
        self, connection: httputil.HTTPConnection, start_line: httputil.RequestStartLine, headers: httputil.HTTPHeaders
    ) -> None:
        # Not the constructor of Tornado, which checks the Host, parses the query and copies the result.
        self.method, self.uri, self.version = start_line
        self.path, _, self.query = start_line.path.partition("?")
        self.headers = headers
        self.body = b""
        self.connection = connection
        context: Any = connection.context  # type: ignore[attr-defined]
        self.remote_ip = context.remote_ip
        self.protocol = context.protocol

    @property
    def query_arguments(self) -> dict[str, list[bytes]]:  # type: ignore[override]
        """The values of the query by name."""
        return escape.parse_qs_bytes(self.query, keep_blank_values=True)
