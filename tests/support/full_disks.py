"""Helpers to fill a server's disk and to check the acknowledged sessions."""

import base64
import json
import random
import time

from .command import BOUND_S
from .waiting import until

OFFER = base64.b64encode(random.Random(1).randbytes(45_000)).decode()  # LevelDB cannot compress it


def post(server, path, body):
    status, headers, response = server.exchange(path, body)
    return status, headers, json.loads(response)


def publish_until(server, kept, done, limit=2000):
    """Publish offers until `done(status)`, add the acknowledged ones to `kept`, and return the last headers."""
    for _ in range(limit):
        number = len(kept)
        status, headers, response = post(server, "/lobby/offer", {"info": str(number), "offer": f"{number} {OFFER}"})
        if status == 200:
            kept[response["code"]] = number
        else:
            assert (status, response) == (503, {"error": "Service unavailable"})
            time.sleep(0.01)  # the server measures free space only periodically
        if done(status):
            return headers
    raise AssertionError(f"not reached after {limit} offers")


def wait_until_ready(server):
    until(lambda: server.call("/readyz", base=server.admin_url, origin=None)[0] == 200, BOUND_S)


def check(server, kept):
    """Check that all acknowledged sessions are listed in order, and that refused ones are complete or absent."""
    sessions = server.call("/lobby/sessions")[1]["sessions"]
    numbers = {session["code"]: session["info"] for session in sessions}
    assert all(numbers[code] == str(number) for code, number in kept.items())
    assert all(each["offer"] == f"{each['info']} {OFFER}" for each in sessions)
    created = [session["createdAt"] for session in sessions]
    assert created == sorted(created, reverse=True)
