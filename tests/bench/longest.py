"""How long the slowest of many requests takes, each after the other; begins with a line, ends with its input."""

import http.client
import select
import sys
import time
from urllib.parse import urlsplit

from .messages import ORIGIN

PAUSE_S = 0.002


def main() -> None:
    connection = http.client.HTTPConnection(urlsplit(sys.argv[1]).netloc)
    longest_s = 0.0

    def ask() -> float:
        began_s = time.perf_counter()
        connection.request("GET", "/health", headers={"Origin": ORIGIN})
        connection.getresponse().read()
        return time.perf_counter() - began_s

    ask()
    print("asking", flush=True)
    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        longest_s = max(longest_s, ask())
    print(longest_s)


if __name__ == "__main__":
    main()
