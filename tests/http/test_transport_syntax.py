"""Odd and hostile requests: what this transport makes of them, however they arrive, next to Tornado's own server.

Each test goes through all requests and names those that fail it: thousands of small tests would take much longer.
"""

import contextlib
import itertools
import re

import pytest
from support.http_corpus import CORPUS, GOOD, LAST
from support.http_verdicts import DIFFERENT, ENDS, LAXER, REFUSED, STRICTER
from support.raw_http import Answer, answers, chopping, read_all, serving

TORNADO_REFUSES = b"HTTP/1.1 400 Bad Request\r\n\r\n"  # it says no length: the connection ends there


@pytest.fixture(scope="module")
def ours():
    """This transport with an application that echoes."""
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def tornados():
    """Tornado's own server with the same application."""
    with serving(kind="tornado", quiet=False) as running:
        yield running


@pytest.fixture(scope="module")
def whole(ours):
    """What this transport answers to each request of the corpus when it arrives in one piece, with LAST behind it."""
    return {name: seen(ours.exchange(raw + LAST)) for name, raw in CORPUS.items()}


def seen(found: list[Answer]) -> list[tuple]:
    """What has to be the same however the request arrives and whoever answers: refusals are compared by their kind."""
    passing = ("date", "connection", "transfer-encoding")
    return [
        (answer.status, {key: value for key, value in answer.headers.items() if key not in passing}, answer.body)
        for answer in found
        if answer.status != 100
    ]


def refused(found: list[tuple]) -> bool:
    """Whether the last answer is the transport's own, or none at all; handlers name their server."""
    return not found or "server" not in found[-1][1]


def by_tornado(tornados, raw: bytes) -> list[tuple]:
    with tornados.connect() as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(raw)
        received = read_all(client)
    received = received.replace(b"100 (Continue)", b"100 Continue")
    if not received.endswith(TORNADO_REFUSES):
        return seen(answers(received))
    return [*seen(answers(received.removesuffix(TORNADO_REFUSES))), (400, {}, b"")]


def test_what_tornado_refuses_is_refused_and_every_exception_is_in_a_table(subtests, whole, tornados):
    for name, raw in CORPUS.items():
        with subtests.test(name):
            here, there = whole[name], by_tornado(tornados, raw + LAST)
            if refused(here) and refused(there):
                found, here, there = None, here[:-1], there[:-1]  # what came before the refusal
            elif refused(here):
                found = STRICTER
            elif refused(there):
                found = LAXER
            else:
                found = DIFFERENT if here != there else None
            assert [table for table in (STRICTER, LAXER, DIFFERENT) if name in table] == (
                [] if found is None else [found]
            )
            assert found is not None or here == there


def test_a_refusal_has_its_status_and_is_the_end(subtests, whole):
    for name, answered in whole.items():
        with subtests.test(name):
            *before, last = answered
            assert not any(refused([answer]) for answer in before)
            assert not any(b'"/smuggled"' in body for _, _, body in answered)
            if refused(answered):
                assert last[0] == REFUSED[name]
                assert last[1]["content-type"] == "application/json"
                assert last[1]["vary"] == "Origin"
                assert b'{"error":"' in last[2]
            else:
                assert name not in REFUSED
                assert before or name in ENDS
                assert (b'"/last"' in last[2]) == (name not in ENDS)


def test_arriving_byte_by_byte_makes_no_difference(subtests, ours, whole):
    for name, raw in CORPUS.items():
        with subtests.test(name), chopping(1):
            assert seen(ours.exchange(raw + LAST)) == whole[name]


def test_arriving_in_two_pieces_makes_no_difference(subtests, ours, whole):
    for name, raw in CORPUS.items():
        if name.startswith("byte "):  # like many others
            continue
        places = {*range(5, min(len(raw), 150), 10), *range(len(raw) - 3, len(raw))}
        places |= {end.start() + step for end in itertools.islice(re.finditer(rb"\r\n", raw), 10) for step in range(3)}
        with subtests.test(name):
            for place in sorted(places & {*range(1, len(raw))}):
                with chopping(place, 1 << 20):
                    assert seen(ours.exchange(raw + LAST)) == whole[name], place


def test_arriving_behind_other_requests_makes_no_difference(subtests, ours, whole):
    for name, raw in CORPUS.items():
        with subtests.test(name):
            found = seen(ours.exchange(GOOD + GOOD + raw + LAST))
            assert [body.count(b'"/good"') for _, _, body in found[:2]] == [1, 1]
            assert found[2:] == whole[name]
