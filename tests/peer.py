"""A peer: finds another one through tornado-signal, and passes a message each way over a WebRTC data channel.

Run it in two terminals:

    python tests/peer.py http://127.0.0.1:3000 lobby "hello from A"
    python tests/peer.py http://127.0.0.1:3000 lobby "hello from B"

All it knows is the server's address and a topic, all it needs is `pip install aiortc tornado`. Both peers have to be
in one network, as it uses neither STUN nor TURN servers; aiortc leaves out the loopback interface.
"""

import argparse
import asyncio
import json
import sys
import uuid
from contextlib import AsyncExitStack
from urllib.parse import quote

from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.sdp import candidate_from_sdp
from tornado.httpclient import AsyncHTTPClient, HTTPError

PAUSE_S = 0.2
CONNECT_S = 20
WITHDRAWN = "withdrawn"


class Refused(Exception):
    """The server answered with an error."""

    def __init__(self, status: int, error: str) -> None:
        super().__init__(f"{status} {error}")
        self.status = status


class Api:
    """What a peer says to the server."""

    def __init__(self, base: str, origin: str, topic: str) -> None:
        self.base = base.rstrip("/")
        self.topic = quote(topic, safe="")  # one segment of the path, whatever the topic is
        self.headers = {"Origin": origin, "Content-Type": "application/json"}

    async def sessions(self) -> list[dict]:
        """The unanswered sessions of the topic, newest first."""
        return (await self._get(f"/{self.topic}/sessions"))["sessions"]

    async def offer(self, info: str, offer: str) -> str:
        """Publish a session; its code."""
        return (await self._post(f"/{self.topic}/offer", info=info, offer=offer))["code"]

    async def answer(self, code: str, answer: str) -> bool:
        """Answer a session; False if another peer was faster or the session is gone."""
        try:
            await self._post("/answer", code=code, side="answerer", answer=answer)
        except Refused as refused:
            if refused.status not in (404, 409):
                raise
            return False
        return True

    async def candidate(self, code: str, side: str, candidate: str) -> None:
        """Send an address at which this side may be reached."""
        await self._post("/answer", code=code, side=side, candidate=candidate)

    async def poll(self, code: str, side: str) -> dict:
        """What the other side has sent so far."""
        return await self._post("/poll", code=code, side=side)

    async def _get(self, path: str) -> dict:
        return await self._fetch(path)

    async def _post(self, path: str, **body: str) -> dict:
        return await self._fetch(path, method="POST", body=json.dumps(body))

    async def _fetch(self, path: str, **request: str) -> dict:
        response = await AsyncHTTPClient().fetch(self.base + path, headers=self.headers, raise_error=False, **request)
        reply = json.loads(response.body)
        if response.code != 200:
            raise Refused(response.code, reply["error"])
        return reply


class Link:
    """One side of a session: a WebRTC connection with a data channel, over which one message goes each way.

    The offerer speaks first, and hangs up once it has heard the answerer: so neither leaves too early.
    """

    def __init__(self, api: Api, message: str) -> None:
        self.api = api
        self.message = message
        self.connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.heard: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.hung_up = asyncio.Event()
        self.listed = False

    async def publish(self, info: str) -> None:
        """Be the offerer of a new session."""
        channel = self.connection.createDataChannel("messages")
        channel.on("open", lambda: channel.send(self.message))
        channel.once("message", self.heard.set_result)
        offer, candidates = await self._describe(await self.connection.createOffer())
        self.side, self.code, self.listed = "offerer", await self.api.offer(info, offer), True
        await self._trickle(candidates)

    async def answered(self) -> bool:
        """Whether the session that was published has its answerer now."""
        answer = (await self.api.poll(self.code, self.side))["answer"]
        if answer:
            self.listed = False
            await self.connection.setRemoteDescription(RTCSessionDescription(**json.loads(answer)))
        return bool(answer)

    async def withdraw(self) -> bool:
        """Take the published session off the list by answering it; False if another peer was faster."""
        self.listed = False
        return await self.api.answer(self.code, WITHDRAWN)

    async def close(self) -> None:
        """Leave; nobody is to answer a peer that has left."""
        await self.connection.close()
        if self.listed:
            await self.withdraw()

    async def answer(self, session: dict) -> bool:
        """Be the answerer of a session; False if another peer was faster."""

        @self.connection.on("datachannel")
        def opened(channel):
            channel.once("message", self.heard.set_result)
            channel.once("message", lambda _: channel.send(self.message))
            channel.on("close", self.hung_up.set)

        await self.connection.setRemoteDescription(RTCSessionDescription(**json.loads(session["offer"])))
        answer, candidates = await self._describe(await self.connection.createAnswer())
        self.side, self.code = "answerer", session["code"]
        if not await self.api.answer(self.code, answer):
            return False
        await self._trickle(candidates)
        return True

    async def talk(self) -> None:
        """Add the other side's candidates as they come, until it is heard over the channel."""
        seen = 0
        while not self.heard.done():
            news = await self.api.poll(self.code, self.side)
            candidates = news["answerCandidates" if self.side == "offerer" else "offerCandidates"]
            for candidate in candidates[seen:]:
                await self._add(json.loads(candidate))
            seen = len(candidates)
            await asyncio.sleep(PAUSE_S)
        print("heard:", self.heard.result(), flush=True)
        if self.side == "answerer":
            await self.hung_up.wait()

    async def _describe(self, description: RTCSessionDescription) -> tuple[str, list[str]]:
        """Describe this side as a browser does: without its addresses, and these one by one.

        A browser sends each address when it turns up; aiortc waits for all and puts them into the description.
        """
        await self.connection.setLocalDescription(description)
        lines = self.connection.localDescription.sdp.splitlines()
        kept = [line for line in lines if not line.startswith(("a=candidate:", "a=end-of-candidates"))]
        candidates = [
            json.dumps({"candidate": line.removeprefix("a="), "sdpMid": "0", "sdpMLineIndex": 0})
            for line in lines
            if line.startswith("a=candidate:")
        ]
        return json.dumps({"type": description.type, "sdp": "\r\n".join([*kept, ""])}), candidates

    async def _trickle(self, candidates: list[str]) -> None:
        for candidate in candidates:
            await self.api.candidate(self.code, self.side, candidate)

    async def _add(self, fields: dict) -> None:
        line = fields["candidate"].removeprefix("candidate:")
        if line:  # a browser's last candidate is empty: no more will come
            candidate = candidate_from_sdp(line)
            candidate.sdpMid, candidate.sdpMLineIndex = fields["sdpMid"], fields["sdpMLineIndex"]
            await self.connection.addIceCandidate(candidate)


async def meet(api: Api, message: str, leaving: AsyncExitStack) -> Link:
    """Find another peer under the topic, as the answerer of its session or as the offerer of one's own.

    Peers that come at the same moment all find the list empty, and all publish. Then the order of the list decides:
    a peer only answers sessions older than its own, and takes its own off the list before. So the oldest one waits,
    and nobody answers a peer that is busy with another.
    """

    def new_link() -> Link:
        link = Link(api, message)
        leaving.push_async_callback(link.close)
        return link

    info = f"peer-{uuid.uuid4()}"
    own = None
    while True:
        if own and await own.answered():
            return own
        for session in reversed(await api.sessions()):  # oldest first
            if session["info"] == info:
                break  # all further ones are newer
            if own and not await own.withdraw():
                break  # answered a moment ago
            own = None
            link = new_link()
            if await link.answer(session):
                return link
        else:
            if not own:
                own = new_link()
                await own.publish(info)
                print("waiting", flush=True)
        await asyncio.sleep(PAUSE_S)


async def run(api: Api, message: str, wait_s: float) -> None:
    """Meet another peer within `wait_s` seconds and talk to it."""
    async with AsyncExitStack() as leaving:
        try:
            async with asyncio.timeout(wait_s):
                link = await meet(api, message, leaving)
        except TimeoutError:
            raise TimeoutError(f"nobody came within {wait_s:g} s") from None
        print(f"{link.side} of {link.code}", flush=True)
        try:
            async with asyncio.timeout(CONNECT_S):
                await link.talk()
        except TimeoutError:
            raise TimeoutError(f"no conversation within {CONNECT_S} s of meeting") from None


def main() -> int:
    """Exit status 0 when a message went each way."""
    parser = argparse.ArgumentParser(description="Meet a peer through tornado-signal and pass a message each way.")
    parser.add_argument("base", help="address of the server, such as http://127.0.0.1:3000")
    parser.add_argument("topic", help="where to meet: both peers name the same")
    parser.add_argument("message", help="what to say")
    parser.add_argument("--origin", default="https://peer.example", help="both peers name the same (%(default)s)")
    parser.add_argument("--wait", type=float, default=60, metavar="S", help="seconds to wait for a peer (%(default)s)")
    args = parser.parse_args()
    try:
        asyncio.run(run(Api(args.base, args.origin, args.topic), args.message, args.wait))
    except (Refused, HTTPError, OSError) as error:  # TimeoutError is an OSError
        print(f"peer: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
