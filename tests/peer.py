"""A peer: finds another one through tornado-signal, and passes a message each way over a WebRTC data channel.

Run it in two terminals:

    python tests/peer.py http://127.0.0.1:3000 lobby "hello from A"
    python tests/peer.py http://127.0.0.1:3000 lobby "hello from B"

It needs `pip install 'clients/python[peer]'`. Both peers have to be in one network, as it uses neither STUN nor TURN
servers. aiortc ignores the loopback interface.
"""

import asyncio
import sys

from tornado_signal_client import Joined, Message, Peers


async def main(base: str, topic: str, message: str) -> None:
    """Send a message to the first other peer under a topic, and print its message."""
    async with Peers(base, ice_servers=[]) as peers, peers.room(topic, max=2) as room:
        async for event in room:
            match event:
                case Joined(peer):
                    await room.send(message, peer)
                case Message(_, heard):
                    print("heard:", heard)
                    return


asyncio.run(main(*sys.argv[1:]))
