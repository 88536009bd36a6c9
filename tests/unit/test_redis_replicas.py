"""Replicas that a write on Redis waits for."""

import asyncio
import itertools

import pytest

from tornado_signal.redis.nodes import Acknowledgement, Pipeline

LAG_S = 24


class Primary:
    """A primary with a connection to it. `rounds` are the states of its replicas before and after each WAIT."""

    timeout_s = 2 * LAG_S

    def __init__(self, rounds, clock):
        self.rounds, self.clock, self.awaited = itertools.chain(rounds, itertools.repeat(rounds[-1])), clock, []

    async def connect(self, address, on_reply, on_lost):
        self.on_reply = on_reply
        return self

    def send(self, commands):
        state, after = next(self.rounds)
        for command in commands:
            reply = b"OK"
            if command[0] == b"WAIT":
                self.awaited.append(command[1])
                state = after
                reply = state.count(b"online,offset=9")
                self.clock[0] += 1
            elif command[0] == b"INFO":
                reply = b"role:master\r\nmaster_replid:5\r\n" + state
            asyncio.get_running_loop().call_soon(self.on_reply, reply)

    def close(self, *, discard):
        pass


HAS = b"slave0:ip=h,port=1,state=online,offset=9,lag=0\r\n"
LACKS = b"slave1:ip=h,port=2,state=online,offset=1,lag=%d\r\n"
COPIES = b"slave1:ip=h,port=2,state=wait_bgsave,offset=0,lag=0\r\n"


@pytest.mark.parametrize(
    ("rounds", "awaited"),
    [
        ([(HAS, HAS)], [1]),
        ([(HAS, HAS + LACKS % 1), (HAS, HAS + HAS)], [1, 2]),  # appears during the wait
        ([(HAS + LACKS % LAG_S, HAS + LACKS % (LAG_S + 1)), (HAS, HAS + HAS)], [1, 2]),  # was not silent for too long
        ([(HAS, HAS + LACKS % (LAG_S + 2))], [1]),
        ([(HAS + COPIES, HAS + COPIES), (HAS, HAS + HAS)], [1, 2]),
        # Not for longer after a failover.
        ([(HAS, HAS + COPIES)] * (LAG_S + 1), [1] + [2] * LAG_S + [1]),
        # Its node may serve no more: that shows when the write is repeated.
        ([(HAS, HAS + LACKS % 0), (HAS, HAS)], [1, 2, 1]),
    ],
    ids=["alone", "appears", "silent since", "silent before", "copies", "copies for long", "leaves"],
)
async def test_replicas_that_can_win_an_election_are_awaited(rounds, awaited, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock[0])
    primary = Primary(rounds, clock)
    lane = Pipeline(("h", 1), primary, Acknowledgement(lag_s=LAG_S))
    replies = [await lane.submit((b"SET", b"key", b"value"))]
    if replies[0] != b"OK":
        replies.append(await lane.submit((b"SET", b"key", b"value")))
    assert replies[-1] == b"OK"
    assert primary.awaited == awaited
    lane.disconnect()
