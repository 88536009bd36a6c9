"""A peer: finds another one through tornado-signal, and passes a message each way over a WebRTC data channel.

Run it in two terminals:

    python tests/peer.py http://127.0.0.1:3000 lobby "hello from A"
    python tests/peer.py http://127.0.0.1:3000 lobby "hello from B"

It needs `pip install 'clients/python[peer]'`. Both peers have to be in one network, as it uses neither STUN nor TURN
servers. aiortc ignores the loopback interface.
"""

import argparse
import asyncio
import sys
import uuid
from contextlib import AsyncExitStack, aclosing, suppress

from tornado_signal_client import Connection, Session, SignalClient, SignalError
from tornado_signal_client.api import new_secret

CONNECT_S = 20
SECRET = new_secret()


async def accepted(client: SignalClient, code: str, answer: str) -> bool:
    """Answer a session. Return False if another peer was faster or the session has ended."""
    try:
        await client.answer(code, answer, secret=SECRET)
    except SignalError as error:
        if not error.lost_race:
            raise
        return False
    return True


async def publish(client: SignalClient, topic: str, info: str, leaving: AsyncExitStack) -> Connection:
    """Be the offerer of a new session."""
    own = Connection([], "offerer")
    leaving.push_async_callback(own.close)
    own.code = await client.offer(topic, info, await own.offer(), secret=SECRET)
    return own


async def answer(client: SignalClient, session: Session, info: str, leaving: AsyncExitStack) -> Connection | None:
    """Be the answerer of a session. Return None if another peer was faster."""
    connection = Connection([], "answerer")
    leaving.push_async_callback(connection.close)
    connection.code = session["code"]
    text = await connection.answer(session["offer"], session["offerCandidates"], info)
    return connection if await accepted(client, connection.code, text) else None


async def meet(client: SignalClient, topic: str, leaving: AsyncExitStack) -> Connection:
    """Find another peer under the topic, as the answerer of its session or as the offerer of one's own.

    Peers that come at the same moment all find the list empty, and all publish. Then the order of the list decides:
    a peer only answers sessions older than its own, and takes its own off the list before, by answering it. So the
    oldest one waits, and a peer that is busy with another gets no answer.
    """
    info = f"peer-{uuid.uuid4()}"
    own = None
    try:
        while True:
            async with aclosing(client.listings(topic)) as listings:
                async for listing in listings:
                    if own and (await client.poll(own.code, "offerer", secret=SECRET)).description:
                        met, own = own, None
                        return met
                    for session in reversed(listing.sessions):  # oldest first
                        if session["info"] == info:
                            break  # all further ones are newer
                        if own and not await accepted(client, own.code, "withdrawn"):
                            break  # answered a moment ago
                        own = None
                        if found := await answer(client, session, info, leaving):
                            return found
                    else:
                        if not own:
                            own = await publish(client, topic, info, leaving)
                            print("waiting", flush=True)
                            break  # if it is answered at once, the listing is the same as before: nothing to wait for
    finally:
        if own:  # a peer that has left should get no answer
            with suppress(SignalError):
                await client.withdraw(own.code, "offerer", secret=SECRET)


async def talk(client: SignalClient, connection: Connection, message: str) -> None:
    """The offerer speaks first, and hangs up once it has heard the answerer: so neither leaves too early."""
    await connection.open(client, SECRET)
    if connection.side == "offerer":
        await connection.send(message)
    print("heard:", await connection.receive(), flush=True)
    if connection.side == "answerer":
        await connection.send(message)
        with suppress(SignalError):
            await connection.receive()


async def run(base: str, origin: str, topic: str, message: str, wait_s: float) -> None:
    """Meet another peer within `wait_s` seconds and talk to it."""
    async with SignalClient(base, origin, retry_timeout_s=0) as client, AsyncExitStack() as leaving:
        try:
            async with asyncio.timeout(wait_s):
                connection = await meet(client, topic, leaving)
        except TimeoutError:
            raise TimeoutError(f"no peer came within {wait_s:g} s") from None
        print(f"{connection.side} of {connection.code}", flush=True)
        try:
            async with asyncio.timeout(CONNECT_S):
                await talk(client, connection, message)
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
        asyncio.run(run(args.base, args.origin, args.topic, args.message, args.wait))
    except (SignalError, TimeoutError) as error:
        print(f"peer: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
