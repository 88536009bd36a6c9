"""Results of requests. They know which failures are caused by an outage."""

import copy
import time
from collections import Counter


class Broken(Exception):
    """A request without a response, or with a 503. It is unknown whether it was carried out."""


class Outages:
    """The times at which something was unavailable, by `time.monotonic`. Those of its parts also count."""

    def __init__(self, *parts: "Outages") -> None:
        self._parts = parts
        self._times: list[tuple[float, float]] = []  # start and end, infinite for a current outage

    def begin(self) -> None:
        self._times.append((time.monotonic(), float("inf")))

    def end(self, settled_s: float = 0) -> None:
        """End the current outage after some more seconds."""
        self._times[-1] = (self._times[-1][0], time.monotonic() + settled_s)

    def during(self, since_s: float, until_s: float) -> bool:
        """Return whether there was an outage at any time between two times."""
        mine = any(began_s <= until_s and since_s <= ended_s for began_s, ended_s in self._times)
        return mine or any(part.during(since_s, until_s) for part in self._parts)


class Tally:
    """The results of all requests to a server at a port that stays the same across restarts."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.outages = Outages()  # the restarts, which break connections
        self.node_outages = Outages()  # those of its Redis, which break no connections of clients
        self.excused: Counter[str] = Counter()  # failures caused by an outage, by protocol
        self.wrong: list[str] = []  # unexpected events, as sentences
        self.latencies_s: list[float] = []  # of requests that do not wait, since they were last read

    def of(self, port: int, outages: Outages) -> "Tally":
        other = copy.copy(self)
        other.port, other.outages = port, outages
        return other

    def must(self, true: object, sentence: str) -> None:
        if not true:
            self.wrong.append(sentence)

    def away(self, since_s: float, until_s: float) -> bool:
        """Return whether the server or its Redis was unavailable at any time between two times."""
        return self.outages.during(since_s, until_s) or self.node_outages.during(since_s, until_s)

    def broken(self, protocol: str, what: str, opened_s: float, began_s: float) -> Broken:
        """Count a failure of something that began at a time, on a connection that was opened at another time."""
        now_s = time.monotonic()
        if self.outages.during(min(opened_s, began_s), now_s) or self.node_outages.during(began_s, now_s):
            self.excused[protocol] += 1
        else:
            self.wrong.append(f"{protocol}, {what}")
        return Broken(what)
