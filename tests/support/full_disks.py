"""A server on a disk that is full, and what it has acknowledged."""

import base64
import http.client
import json
import random
import time
import urllib.parse

from .command import BOUND_S, ORIGIN

OFFER = base64.b64encode(random.Random(1).randbytes(45_000)).decode()  # LevelDB cannot make it smaller


def post(server, path, body):
    """Status, headers and JSON of a request."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(server.url).netloc, timeout=BOUND_S)
    try:
        connection.request("POST", path, json.dumps(body), {"Origin": ORIGIN})
        response = connection.getresponse()
        return response.status, response.headers, json.load(response)
    finally:
        connection.close()


def publish_until(server, kept, done, limit=2000):
    """Publish offers until `done(status)`; the acknowledged go to `kept`. Returns the last response's headers."""
    for _ in range(limit):
        number = len(kept)
        status, headers, found = post(server, "/lobby/offer", {"info": str(number), "offer": f"{number} {OFFER}"})
        if status == 200:
            kept[found["code"]] = number
        else:
            assert (status, found) == (503, {"error": "Service unavailable"})
            time.sleep(0.01)  # that there is room again shows once the server has looked
        if done(status):
            return headers
    raise AssertionError(f"never, in {limit} offers")


def wait_until_ready(server):
    """Wait until the store can be written and read."""
    end_s = time.monotonic() + BOUND_S
    while server.call("/readyz", base=server.admin_url, origin=None)[0] != 200:
        assert time.monotonic() < end_s
        time.sleep(0.05)


def check(server, kept):
    """Everything acknowledged is there, whole, and in its order; of what was refused, all or nothing."""
    sessions = server.call("/lobby/sessions")[1]["sessions"]
    numbers = {each["code"]: each["info"] for each in sessions}
    assert all(numbers[code] == str(number) for code, number in kept.items())
    assert all(each["offer"] == f"{each['info']} {OFFER}" for each in sessions)
    created = [each["createdAt"] for each in sessions]
    assert created == sorted(created, reverse=True)
