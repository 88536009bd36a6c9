"""A client of the WebSocket API, which compares what the server sends with /asyncapi.json."""

import asyncio
import contextlib
import functools
import inspect
import itertools
import json

import jsonschema_rs

from tornado_signal.service.operations import declare
from tornado_signal.settings.settings import Settings
from tornado_signal.websocket.asyncapi import make_asyncapi

from .command import ORIGIN
from .y_webrtc import BOUND_S, RawClient

DOCUMENT = make_asyncapi(declare(Settings()))


@functools.cache
def validator(name):
    payload = DOCUMENT["components"]["messages"][name]["payload"]
    return jsonschema_rs.validator_for({**payload, "components": DOCUMENT["components"]})


async def until(condition):
    """Wait until a condition is true. It is a function or a coroutine function."""
    async with asyncio.timeout(BOUND_S):
        while not (await result if inspect.isawaitable(result := condition()) else result):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def outcome(response):
    """Return the same as over HTTP: the status, and the result or the error."""
    if "result" in response:
        return 200, response["result"]
    return response["error"]["code"], {"error": response["error"]["message"]}


def open_socket(server, origin=ORIGIN, **options):
    scheme = "wss" if "ssl" in options else "ws"
    return RpcClient(f"{scheme}://127.0.0.1:{server.port}/ws", origin, **options)


class RpcClient(RawClient):
    """A client whose `events` are the queue of unread subscription events."""

    def __init__(self, url, origin, **options):
        super().__init__(url, origin, **options)
        self._ids = itertools.count(1)
        self._waiting = {}
        self.events = asyncio.Queue()

    async def __aenter__(self):
        await super().__aenter__()
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *exc):
        await super().__aexit__(*exc)
        await self._reading

    close = RawClient.abort

    @property
    def over(self):
        return self._reading.done()

    async def _read(self):
        with contextlib.suppress(Exception):
            async for text in self.socket:
                message = json.loads(text)
                if isinstance(message, dict) and message.get("method") == "event":
                    self.events.put_nowait(message["params"])
                else:
                    batch = isinstance(message, list)
                    key = json.dumps([response["id"] for response in message]) if batch else message["id"]
                    self._waiting[key].set_result(message)
        for waiting in self._waiting.values():
            self._fail(waiting)
        self.events.put_nowait(None)

    def _fail(self, waiting):
        if not waiting.done():
            waiting.set_exception(ConnectionError(self.socket.close_code))
            waiting.exception()

    def send(self, method, /, **params):
        id_ = next(self._ids)
        return self.send_raw({"jsonrpc": "2.0", "id": id_, "method": method, "params": params}, id_)

    def expect(self, key):
        """Return the future response to a request by its id, or to a batch by its ids as JSON."""
        response = self._waiting[key] = asyncio.get_running_loop().create_future()
        return response

    def send_raw(self, message, key):
        response = self.expect(key)
        sending = asyncio.ensure_future(self.socket.send(json.dumps(message)))
        sending.add_done_callback(lambda task: task.cancelled() or (task.exception() and self._fail(response)))
        return response

    async def ask(self, method, /, **params):
        response = await asyncio.wait_for(self.send(method, **params), BOUND_S)
        if "result" in response:
            validator(method).validate({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        validator(f"{method}Result" if "result" in response else "error").validate(response)
        return response

    async def call(self, method, /, **params):
        response = await self.ask(method, **params)
        assert "result" in response, response
        return response["result"]

    async def refused(self, method, /, **params):
        error = (await self.ask(method, **params))["error"]
        return error["code"], error["message"]

    async def event(self, bound_s=BOUND_S):
        """Return type, data and cursor of the next event, ignoring events with only a cursor."""
        while True:
            params = await asyncio.wait_for(self.any_event(), bound_s)
            validator("event").validate({"jsonrpc": "2.0", "method": "event", "params": params})
            if "type" in params:
                return params["type"], params["data"], params["cursor"]

    async def any_event(self):
        """Return the parameters of the next event. Raise ConnectionError if the connection is closed."""
        params = await self.events.get()
        if params is None:
            self.events.put_nowait(None)
            raise ConnectionError(self.socket.close_code)
        return params
