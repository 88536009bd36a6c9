"""The processes that share a store: their states, and the operator's actions on all of them.

Processes exchange requests and replies through the relay. Each is a member of a group, so a missing one is noticed.
"""

import asyncio
import contextlib
import functools
import hashlib
import hmac
import json
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from ..errors import Unavailable
from ..relay import Channel, Lease
from ..relay.opening import Relay
from ..service import wire
from ..service.service import Service
from ..settings.settings import Settings
from ..system.lifecycle import LEAVING
from ..system.tls import Tls
from ..transport import ServerState
from .actions import ACTIONS, Actions, InvalidAction, make_server_actions, perform
from .fullness import Fullness
from .history import Point, merge
from .status import Status, StoredSessions
from .verdict import judge

log = logging.getLogger(__name__)

SCOPE: Final = "admin"  # no client has this scope: those of other protocols are JSON arrays
# Earlier versions use the channel `requests`, and break their subscription at a signed message.
REQUESTS: Final = Channel(SCOPE, "signed requests")
PROCESSES: Final = Channel(SCOPE, "processes")
MAX_PROCESSES: Final = 10_000
REPLY_S: Final = 2.0
JOIN_RETRY_S: Final = 5.0


SIGNATURE_BYTES: Final = 64  # in hexadecimal: the relay strips spaces at the start of a message
MAX_AGE_MS: Final = 60_000  # of a request; an older one is a repetition
MAX_SENDERS: Final = 10_000  # whose latest requests are known
PURPOSE: Final = b"messages between processes"

REQUEST: Final = {"from": str, "number": int, "name": str, "fields": dict, "by": str}
REPLY: Final = {"id": str, "process": str, "number": int}


class Messages:
    """Signs and checks messages between processes. Rights to publish on Redis are not enough to forge one.

    Only those who may read the store know its secret. The time is the store's, which all processes share.
    """

    def __init__(self, secret: Callable[[], bytes], now_ms: Callable[[], int], own_id: str) -> None:
        self._secret = secret
        self._now_ms = now_ms
        self._started_ms = now_ms()  # an earlier request was for other processes, and can be repeated
        self._number = 0
        # The number of the latest request by sender. The first own ones can seem earlier: a slow response of Redis sets
        # the estimate of its clock ahead for a second.
        self._latest: dict[str, int] = {own_id: 0}

    def next_number(self) -> int:
        """Return a number for a request, larger than the one before. It is also about the time."""
        self._number = max(self._number + 1, self._now_ms())
        return self._number

    def sign(self, fields: dict[str, Any]) -> bytes:
        body = wire.encode(fields)
        return self._signature(body) + body

    def read_request(self, message: bytes) -> dict[str, Any] | None:
        """Return the fields of a request, or None if it is forged, repeated, invalid or older than this process."""
        fields = self._read(message, REQUEST)
        if fields is None or abs(self._now_ms() - fields["number"]) > MAX_AGE_MS:
            return None
        sender, number = fields["from"], fields["number"]
        if number <= self._latest.get(sender, self._started_ms - 1):
            return None
        if len(self._latest) >= MAX_SENDERS:
            oldest = self._now_ms() - MAX_AGE_MS
            self._latest = {sender: latest for sender, latest in self._latest.items() if latest > oldest}
        self._latest[sender] = number
        return fields

    def read_reply(self, message: bytes) -> dict[str, Any] | None:
        """Return the fields of a reply, or None if it is forged or invalid."""
        return self._read(message, REPLY)

    def _read(self, message: bytes, types: dict[str, type]) -> dict[str, Any] | None:
        signature, body = message[:SIGNATURE_BYTES], message[SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._signature(body)):
            return None
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError):
            return None
        if type(fields) is not dict or any(type(fields.get(name)) is not kind for name, kind in types.items()):
            return None
        return fields

    def _signature(self, body: bytes) -> bytes:
        # The secret has other uses, and is another one after the store was emptied.
        return hmac.digest(hmac.digest(self._secret(), PURPOSE, hashlib.sha256), body, hashlib.sha256).hex().encode()


class Inbox:
    """A receiver that calls a function for each message."""

    def __init__(self, receive: Callable[[bytes], None]) -> None:
        self.relayed = receive


class Control:
    """This process as a member of its group. `WorkersOperator` has the same operations for the listener.

    The number of the worker is 0 if the server is one process. `apply` applies other settings, until a reload.
    """

    def __init__(
        self,
        service: Service,
        relay: Relay,
        transport: ServerState,
        apply: Callable[[Settings], object],
        server: str,
        worker: int,
        tls: Tls | None = None,
    ) -> None:
        self._service, self._transport, self._tls = service, transport, tls
        self._relay = relay
        self._id = service.store.process_id.hex()
        self._name = f"{server}/{worker}" if worker else server  # without spaces
        self._lifecycle = service.lifecycle
        self.fullness = Fullness(service.store, service.limits.full)
        self._started_s = round(time.time())
        self._status = Status(service, transport, self.fullness, server, worker, self._started_s)
        self._stored = StoredSessions(service.store, lambda: service.settings.admin_topics)
        stop = functools.partial(service.lifecycle.reach, LEAVING)
        self._actions = Actions(service, transport, make_server_actions(stop, service.live, apply))
        self._messages = Messages(lambda: service.store.secret, service.store.now_ms, self._id)
        self._replies: dict[int, asyncio.Queue[dict[str, Any]]] = {}  # by the number of the request
        self._tasks: set[asyncio.Task[None]] = set()
        self._refusal_logged = False  # whether the log says that messages are not signed
        self._describing: dict[bool, asyncio.Future[dict[str, Any]]] = {}  # by whether with the history
        self.rotate = self._status.history.rotate
        self._inboxes = {
            REQUESTS: Inbox(self._on_request),
            Channel(SCOPE, f"replies {self._id}"): Inbox(self._on_reply),
        }

    def start(self) -> None:
        """Join the group in the background, and take over the blocks of other processes."""
        self._start(self._join())

    async def close(self) -> None:
        self._stored.close()
        for describing in self._describing.values():
            describing.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for channel, inbox in self._inboxes.items():
            self._relay.unsubscribe(channel, inbox)
        with contextlib.suppress(Unavailable):
            await self._relay.leave(PROCESSES, self._id, self._id)

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _join(self) -> None:
        while True:
            try:
                for channel, inbox in self._inboxes.items():
                    if (opening := self._relay.subscribe(channel, inbox)) is not None:
                        await opening
                await self._relay.join(PROCESSES, Lease(self._id, self._id, data=self._name), MAX_PROCESSES)
                break
            except Unavailable:
                pass
            except Exception:
                log.exception("cannot join the other processes: trying again")
            await asyncio.sleep(JOIN_RETRY_S)
        try:
            replies, _ = await self._call("blocks", {}, "")
            for reply in replies:
                for network, until_ms in reply.get("result", ()):
                    self._actions.take_over(network, until_ms)
        except Exception:
            log.exception("cannot take over the blocks of other processes")

    # For the listener

    async def readiness(self) -> tuple[int, dict[str, Any]]:
        """Return status and body of /readyz. Can raise Unavailable."""
        if self._lifecycle.leaving:
            raise Unavailable("draining")
        await self._service.store.probe()
        details = {"full": self.fullness.full, "turnProvider": self._service.provided.problem}
        return 200, {"status": "ok", **{name: detail for name, detail in details.items() if detail}}

    def metrics(self) -> AsyncIterator[bytes]:
        texts: AsyncIterator[bytes] = self._exposition.texts()
        return texts

    @functools.cached_property
    def _exposition(self) -> Any:
        from .exposition import Exposition  # here, because that takes a while

        return Exposition(self._service, self.fullness, self._transport, self._tls, self._started_s)

    async def describe(self, *, history: bool = False) -> dict[str, Any]:
        """Return the verdict and the states of all processes (docs/operator-page.md#data).

        With `history` also the figures of the last hour. Requests at the same time share one description.
        """
        if history not in self._describing or self._describing[history].done():
            self._describing[history] = asyncio.ensure_future(self._describe(history))
        return await asyncio.shield(self._describing[history])

    async def _describe(self, history: bool) -> dict[str, Any]:
        (replies, missing), own, stored = await asyncio.gather(
            self._call("status", {"history": history}, ""),
            self._status.describe(history=history),
            self._stored.latest(),
        )
        others = [reply["result"] for reply in replies if "result" in reply]
        processes = sorted([own, *others], key=lambda process: (process["server"], process["worker"]))
        histories = [process.pop("history", ()) for process in processes]
        return {
            "time": now_ms(),
            "verdict": judge(processes, missing),
            "processes": processes,
            "missing": missing,
            "store": stored,
            "log": [],
            **({"history": {"columns": Point._fields, "points": merge(histories)}} if history else {}),
        }

    async def perform(self, name: str, fields: dict[str, Any], by: str) -> dict[str, Any]:
        """Perform an action, a key of `ACTIONS`, on each process that it concerns. The log names `by`.

        Return `results` of each process with its name, and `missing`, the processes that did not respond. Raise
        InvalidAction before anything has changed.
        """
        results = [{"process": self._name, **await perform(self._actions.performers, name, fields, by)}]
        missing: list[str] = []
        if ACTIONS[name].everywhere:
            replies, missing = await self._call(name, fields, by)
            results += [{"process": reply["process"], **reply["result"]} for reply in replies if "result" in reply]
            missing += [reply["process"] for reply in replies if "error" in reply]
        return {"results": sorted(results, key=lambda result: result["process"]), "missing": sorted(missing)}

    # Between processes

    async def _call(self, name: str, fields: dict[str, Any], by: str) -> tuple[list[dict[str, Any]], list[str]]:
        """Send a request to all other processes. Return the replies, and the names of processes without one."""
        try:
            members = await self._relay.members(PROCESSES)
        except Unavailable:
            return [], ["other processes, because Redis does not respond"]
        expected = {lease.member: lease.data for lease in members.sample if lease.member != self._id}
        if not expected:
            return [], []
        number, replies = self._messages.next_number(), dict[str, Any]()
        received = self._replies[number] = asyncio.Queue[dict[str, Any]]()
        try:
            request = {"from": self._id, "number": number, "name": name, "fields": fields, "by": by}
            self._relay.publish(REQUESTS, self._messages.sign(request))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPLY_S):
                    while expected.keys() - replies.keys():
                        reply = await received.get()
                        replies[reply["id"]] = reply
        finally:
            del self._replies[number]
        return list(replies.values()), [process for member, process in expected.items() if member not in replies]

    def _on_request(self, message: bytes) -> None:
        request = self._messages.read_request(message)
        if request is None:
            self._log_refused()
        elif request["from"] != self._id:
            self._start(self._reply(request))

    def _log_refused(self) -> None:
        if not self._refusal_logged:
            self._refusal_logged = True
            log.warning(
                "a message of another process is refused, because it is not signed with the secret of the store, "
                "repeated, or older than this process; further ones are not logged"
            )

    async def _reply(self, request: dict[str, Any]) -> None:
        reply = {"id": self._id, "process": self._name, "number": request["number"]}
        try:
            if request["name"] == "status":
                result: Any = await self._status.describe(history=bool(request["fields"].get("history")))
            elif request["name"] == "blocks":
                result = self._actions.blocks()
            elif request["name"] in ACTIONS and ACTIONS[request["name"]].everywhere:
                result = await perform(self._actions.performers, request["name"], request["fields"], request["by"])
            else:  # such as an action of a newer version
                raise InvalidAction(f"{request['name']} is not an action of several processes")
            reply["result"] = result
        except (InvalidAction, Unavailable) as error:
            log.warning("a request of another process failed: %s", error)
            reply["error"] = type(error).__name__
        except Exception as error:
            log.exception("a request of another process failed")
            reply["error"] = type(error).__name__
        self._relay.publish(Channel(SCOPE, f"replies {request['from']}"), self._messages.sign(reply))

    def _on_reply(self, message: bytes) -> None:
        reply = self._messages.read_reply(message)
        if reply is None:
            self._log_refused()
        elif reply["number"] in self._replies:  # otherwise it arrived after `REPLY_S`
            self._replies[reply["number"]].put_nowait(reply)


def now_ms() -> int:
    return round(time.time() * 1000)


def server_name(public: list[socket.socket]) -> str:
    """Return the name of a server among those that share its store: its host, and its port or Unix socket."""
    name = public[0].getsockname()
    return f"{socket.gethostname()}:{name[1] if isinstance(name, tuple) else name}".replace(" ", "_")
