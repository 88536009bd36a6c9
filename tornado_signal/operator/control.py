"""The processes that share a store: their states, and the operator's actions on all of them.

Processes exchange requests and replies through the relay. Each is a member of a group, so a missing one is noticed.
"""

import asyncio
import contextlib
import functools
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from ..errors import Unavailable
from ..relay import Channel, Lease, Relay
from ..service.service import Service
from ..settings.settings import Settings
from ..system.lifecycle import LEAVING
from ..system.sockets import port_or_path
from ..system.tls import Tls
from ..transport import ServerState
from .actions import ACTIONS, Actions, InvalidAction, make_server_actions, perform
from .fullness import Fullness
from .history import Point, merge
from .messages import Messages
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


class Inbox:
    """A receiver that calls a function for each message."""

    def __init__(self, receive: Callable[[bytes], None]) -> None:
        self.relayed = receive


class Control:
    """This process as a member of its group. `Operator` describes its operations.

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
        self._messages = Messages(lambda: service.store.secret, service.store.now_ms)
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
        """Leave the group."""
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
        """See `Operator`. Requests at the same time share one description."""
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
    return f"{socket.gethostname()}:{port_or_path(public[0])}".replace(" ", "_")
