"""A check of the reports of a server that is full of connections."""

import contextlib
import socket
from urllib.parse import urlsplit

from tornado_signal.operator.fullness import RESOURCES

from .scraping import scrape
from .service_manager import receive_message
from .waiting import until


def check_fullness(server, manager, what, count):
    """Open `count` connections, more than fit, and close them. Check what the operator sees."""

    def full():
        return {name for (name, *_), value in scrape(server.admin_url).all("full").items() if value}

    where = urlsplit(server.url)
    assert server.ask_admin("/readyz") == (200, {"status": "ok"})
    assert full() == set()
    assert {*scrape(server.admin_url).all("max_connections").values()} == {3}
    with contextlib.ExitStack() as ends:
        for _ in range(count):
            ends.enter_context(socket.create_connection((where.hostname, where.port)))
        until(lambda: server.ask_admin("/readyz") == (200, {"status": "ok", "full": [what]}))
        assert full() == {what}
        while f"; full: {what}" not in receive_message(manager).get("STATUS", ""):
            pass
    until(lambda: server.ask_admin("/readyz") == (200, {"status": "ok"}))
    assert full() == set()
    while "; full" in receive_message(manager).get("STATUS", "; full"):
        pass
    assert server.call("/health")[0] == 200
    assert server.stop() == 0
    logged = [line for line in server.log if "tornado_signal.operator.fullness: " in line]
    begins = [line for line in logged if f"clients are refused: {RESOURCES[what]}" in line]
    ends = [line for line in logged if f"clients are served again: {what} had no room for " in line]
    assert len(begins) == len(ends) == len(logged) / 2 > 0
