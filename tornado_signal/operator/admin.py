"""The command admin: the state of a running server, and actions on it."""

import argparse
import json
import math
import os
import socket
import sys
import time
from collections import Counter
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from ..errors import OperatorError
from ..settings.settings import Settings
from ..settings.sources import load
from ..system import terminal
from ..system.secrets import admin_token
from .health import exchange, url_host

LIMIT_S = 3600.0  # of a request with its response: the withdrawal of many sessions takes long
MAX_RESPONSE_BYTES = 2 * 2**20

FIELDS = ("address", "origin", "topic", "code", "subject", "for", "level")
"""The arguments that are fields of actions, of the same name except `for`, which is `seconds`."""


def run(arguments: argparse.Namespace) -> None:
    """Print the state of a server, or perform an action and print its results."""
    settings = load(arguments, os.environ)
    url, token = admin_url(settings, arguments.admin_url), admin_token(settings)
    try:
        if arguments.action == "status":
            show_status(send("GET", url, "/status", token), arguments.json)
        else:
            given = {name: getattr(arguments, name) for name in FIELDS}
            fields = {"seconds" if name == "for" else name: value for name, value in given.items() if value is not None}
            show_results(send("POST", url, f"/actions/{arguments.action}", token, json.dumps(fields)), arguments.json)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise OperatorError(
            f"the server at {url} is not the admin listener of a tornado-signal; name that with --admin-port or "
            "--admin-url"
        ) from error


def show_status(state: dict[str, Any], as_json: bool) -> None:
    if terminal.wants_tables(as_json):
        print(page(state))
    else:
        json.dump(state, sys.stdout, indent=2)  # in pieces, because a foreign server can send anything
        print()


def show_results(outcome: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(outcome))
    else:
        for result in outcome["results"]:
            process = result.pop("process")
            values = ", ".join(f"{name} {value}" for name, value in result.items())
            print(terminal.printable(f"{process}: {values}"))
    if missing := ", ".join(outcome["missing"]):
        raise OperatorError(f"no response from {terminal.printable(missing)}; repeat the action")


def page(state: dict[str, Any]) -> str:
    """Format the states of processes for a terminal."""
    now_s = time.time()
    rows = [
        [
            f"{process['server']}/{process['worker']}" if process["worker"] else process["server"],
            process["state"],
            process["version"][:12],
            round(now_s - process["started_s"]),
            *(process["figures"][name] for name in ("connections", "websockets", "waiting_requests", "held_offers")),
            round(process["figures"]["memory_bytes"] / 2**20),
        ]
        for process in state["processes"]
    ]
    heads = ["PROCESS", "STATE", "VERSION", "SECONDS", "CONNECTIONS", "WEBSOCKETS", "WAITING", "HELD", "MIB"]
    parts = [describe_verdict(state["verdict"], now_s), terminal.table(heads, rows)]
    addresses = [
        [address["address"], address["connections"], address["waiting"], address["held_offers"]]
        for process in state["processes"]
        for address in process["addresses"]
    ]
    if addresses:
        parts.append(terminal.table(["ADDRESS", "CONNECTIONS", "WAITING", "HELD"], addresses))
    if state["store"] and state["store"]["origins"]:
        origins = [list(origin.values()) for origin in state["store"]["origins"]]
        parts.append(terminal.table(["ORIGIN", "UNANSWERED", "TOPICS"], origins))
    refused: Counter[str] = Counter()
    for process in state["processes"]:
        refused.update({each["origin"]: each["requests"] for each in process.get("refused_origins", ())})
    if refused:
        parts.append(terminal.table(["REFUSED ORIGIN", "REQUESTS IN 5 MINUTES"], refused.most_common()))
    if state["missing"]:
        parts.append(terminal.printable(f"no response from {', '.join(state['missing'])}"))
    return "\n\n".join(parts)


def describe_verdict(verdict: dict[str, Any], now_s: float) -> str:
    """Return the verdict in words, with the local time since when, and a line for each cause."""
    word, since = verdict["level"].capitalize(), verdict["since"]
    if since is not None:
        minutes = max(0, round((now_s - since / 1000) / 60))
        word += f" since {time.strftime('%H:%M', time.localtime(since / 1000))} ({minutes} min)"
    return "\n".join([word, *(terminal.printable(f"- {cause['text']}") for cause in verdict["causes"])])


def admin_url(settings: Settings, url: str | None) -> str:
    """Return the URL of the admin listener: `url`, or the one of the settings."""
    if url is not None:
        return url
    if settings.admin_port is None:
        raise OperatorError("name the admin listener of the server with --admin-port or --admin-url")
    if settings.admin_port == 0:
        raise OperatorError("with --admin-port 0 only the server's log contains the port; name it with --admin-url")
    return f"http://{url_host(settings.admin_address)}:{settings.admin_port}"


def send(method: str, url: str, path: str, token: bytes, body: str = "") -> dict[str, Any]:
    """Send a request to the admin listener of a running server, and return the fields of its response.

    Raise ValueError, LookupError, TypeError or RecursionError if it is not a response of an admin listener.
    """
    parts = urlsplit(url)
    head = f"{method} {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    authorization = b"Authorization: Bearer %b\r\n" % token if token else b""
    try:
        connection = socket.create_connection((parts.hostname, parts.port or 80), LIMIT_S)
        request = b"%b%b\r\n%b" % (head.encode(), authorization, body.encode())
        status, response = exchange(connection, request, LIMIT_S, MAX_RESPONSE_BYTES)
    except OSError as error:
        raise OperatorError(
            f"no server responds at {url} ({error.strerror or error}); start it, or name its admin listener with "
            "--admin-port or --admin-url"
        ) from error
    if status == HTTPStatus.UNAUTHORIZED:
        raise OperatorError(f"the server at {url} requires its token; name the file with --admin-token-file")
    if status == HTTPStatus.FORBIDDEN:
        raise OperatorError(
            f"the server at {url} allows this from its own machine only; set --admin-token-file on the "
            "server and for this command"
        )
    if status not in (HTTPStatus.OK, HTTPStatus.BAD_REQUEST, HTTPStatus.SERVICE_UNAVAILABLE):
        raise ValueError(f"status {status}")
    fields: dict[str, Any] = json.loads(response.decode(), parse_constant=_finite, parse_float=_finite)
    if not isinstance(fields, dict):
        raise TypeError("not an object")
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        reason = terminal.printable(str(fields["reason"]))
        raise OperatorError(f"the server at {url} is unavailable: {reason}; try again, or read its log")
    if status == HTTPStatus.BAD_REQUEST:
        _action, invalid = fields["action"], fields["error"]  # other servers know no actions
        raise OperatorError(f"the server at {url} refuses: {terminal.printable(str(invalid))}")
    return fields


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not finite")
    return number
