"""A proxy that refuses, holds back, cuts or freezes connections."""

import asyncio
import contextlib

BOUND_S = 20


class Proxy:
    """A proxy between clients and a server of this process. Enter it before use.

    Attributes:
        url: the URL of the proxy.
        paths: the path of the first request on each connection.
        refuse: called with the writer of each WebSocket handshake. If None, handshakes are forwarded.
        open: while cleared, data from the server after a handshake is held back.
        live: cleared by `freeze` for the connections until then. New ones are forwarded.
    """

    def __init__(self, service, refuse=None):
        self.port = service.port
        self.refuse = refuse
        self.paths = []
        self.open = asyncio.Event()
        self.open.set()
        self.live = asyncio.Event()
        self.live.set()
        self._writers = set()
        self._running = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc):
        self._server.close()
        self.cut()
        self.open.set()
        await asyncio.wait_for(asyncio.gather(*self._running), BOUND_S)

    def cut(self):
        for writer in self._writers:
            writer.transport.abort()

    def freeze(self):
        """Forward nothing more over the present connections, as a network that forgets them."""
        self.live.clear()
        self.live = asyncio.Event()
        self.live.set()

    async def _forward(self, reader, writer):
        live = self.live
        self._writers.add(writer)
        self._running.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.paths.append(head.split()[1].decode())
            if self.paths[-1] == "/ws" and self.refuse is not None:
                await self.refuse(writer)
                return
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self.port)
            self._writers.add(to_server)
            if head.startswith(b"CONNECT"):
                writer.write(b"HTTP/1.1 200 x\r\n\r\n")
            else:
                to_server.write(head)
            await asyncio.gather(self._copy(reader, to_server, live), self._copy_back(from_server, writer, live))

    async def _copy(self, reader, writer, live):
        with contextlib.suppress(ConnectionError):
            while (data := await reader.read(65536)) and live.is_set():
                writer.write(data)
        if live.is_set():
            writer.close()

    async def _copy_back(self, reader, writer, live):
        if self.paths[-1] == "/ws":
            with contextlib.suppress(asyncio.IncompleteReadError):
                writer.write(await reader.readuntil(b"\r\n\r\n"))
            await self.open.wait()
        await self._copy(reader, writer, live)
