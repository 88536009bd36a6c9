"""A proxy that refuses, cuts or forgets connections."""

import asyncio
import contextlib
import threading

BOUND_S = 30


def refuse_with(status):
    async def refuse(writer):
        writer.write(b"HTTP/1.1 %d x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n" % status)
        writer.close()

    return refuse


async def stay_silent(writer):
    await writer.wait_closed()


class Proxy:
    """A proxy of a server. Enter it before use: with `async with` it runs in the current event loop, else in a thread.

    Args:
        server: its URL, or an object with its port on this machine.
        refuse: called with the writer of each WebSocket handshake in place of the server.
        cut_s: seconds after which each WebSocket is cut.
        site: a `Site` whose page of `connect_page` the proxy also serves, at the same path.

    Attributes:
        url, port: the address of the proxy.
        paths: the path of the first request on each connection.
        open: while cleared, data from the server after a handshake is held back.
        opened, ended: the numbers of WebSockets.
    """

    def __init__(self, server, refuse=None, cut_s=None, site=None):
        self._upstream = int(server.rpartition(":")[2]) if isinstance(server, str) else server.port
        self.refuse, self._cut_s, self._site = refuse, cut_s, site
        self.paths, self.opened, self.ended, self._age = [], 0, 0, 0
        self.open = asyncio.Event()
        self.open.set()
        self._writers, self._running = set(), set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=100)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *exc):
        self._server.close()
        await self._settle()  # what has just been accepted has no writer yet
        self.cut()
        self.open.set()
        await asyncio.wait_for(asyncio.gather(*self._running), BOUND_S)
        await self._settle()  # transports close their sockets in a later iteration

    @staticmethod
    async def _settle():
        for _ in range(10):
            await asyncio.sleep(0)

    def __enter__(self):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        return self._in_thread(self.__aenter__())

    def __exit__(self, *exc):
        self._in_thread(self.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _in_thread(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(2 * BOUND_S)

    def cut(self):
        for writer in self._writers:
            writer.transport.abort()

    def freeze(self):
        """Forward nothing more over the present connections, as a network that forgets them. New ones are forwarded."""
        self._age += 1

    async def _serve(self, reader, writer):
        self._writers.add(writer)
        self._running.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            await self._forward(reader, writer)

    async def _connect(self, port=None):
        from_server, to_server = await asyncio.open_connection("127.0.0.1", port or self._upstream)
        self._writers.add(to_server)
        return from_server, to_server

    async def _forward(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        self.paths.append(head.split()[1].decode())
        websocket = b"\r\nupgrade: websocket" in head.lower()
        if websocket and self.refuse is not None:
            return await self.refuse(writer)
        at_site = self._site is not None and self.paths[-1].startswith("/connect?")
        try:
            from_server, to_server = await self._connect(self._site.server_port if at_site else None)
        except ConnectionError:
            return writer.close()
        if head.startswith(b"CONNECT"):
            writer.write(b"HTTP/1.1 200 x\r\n\r\n")
        else:
            to_server.write(head)
        self.opened += websocket
        try:
            async with asyncio.timeout(self._cut_s if websocket else None):
                back = self._copy_back if websocket else self._copy
                await asyncio.gather(self._copy(reader, to_server), back(from_server, writer))
        finally:
            self.ended += websocket
            if websocket and self._cut_s:
                writer.transport.abort()
                to_server.transport.abort()

    async def _copy(self, reader, writer):
        age = self._age
        with contextlib.suppress(ConnectionError):
            while (data := await reader.read(65536)) and age == self._age:
                writer.write(data)
        if age == self._age:
            writer.close()

    async def _copy_back(self, reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError):
            writer.write(await reader.readuntil(b"\r\n\r\n"))
        await self.open.wait()
        await self._copy(reader, writer)


class RedisProxy(Proxy):
    """A proxy of a Redis.

    Attributes:
        address: its host and port.
        losing: the next command that contains this gets no reply, and its connection is closed.
        lost: the number of replies that were dropped.
        holding: whether connections that subscribe get replies only when `open` is set.
        subscribed: the number of subscriptions meanwhile.
    """

    host, losing, lost, holding, subscribed = "127.0.0.1", None, 0, False, 0

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    async def _forward(self, reader, writer):
        from_server, to_server = await self._connect()
        lose, held = asyncio.Event(), asyncio.Event()
        replies = asyncio.ensure_future(self._reply(from_server, writer, lose, held))
        rest = b""
        while data := await reader.read(65536):
            number = self.holding * (rest + data).count(b"SSUBSCRIBE")
            self.subscribed += number
            rest = (rest + data)[-len(b"SSUBSCRIBE") + 1 :]
            if number:
                held.set()
            if self.losing is not None and self.losing in data:
                self.losing = None
                lose.set()
            to_server.write(data)
        to_server.close()
        await replies

    async def _reply(self, reader, writer, lose, held):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if lose.is_set():
                    self.lost += 1
                    break
                if held.is_set():
                    await self.open.wait()
                writer.write(data)
        writer.close()
