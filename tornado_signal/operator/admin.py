"""The command admin: the state of a running server, and actions on it."""

import argparse
import json
import os
import time
from collections import Counter
from typing import Any

from ..errors import OperatorError
from ..settings.sources import load
from ..system import terminal
from ..system.secrets import admin_token
from . import remote

FIELDS = {"address": "address", "origin": "origin", "topic": "topic", "code": "code", "subject": "subject"}
FIELDS |= {"for": "seconds", "level": "level"}
"""The fields of actions, by the names of their arguments."""


def run(arguments: argparse.Namespace) -> None:
    """Print the state of a server, or perform an action and print its results."""
    settings = load(arguments, os.environ)
    url = remote.admin_url(settings, arguments.admin_url)
    if url is None:
        raise OperatorError("name the admin listener of the server with --admin-port or --admin-url")
    token = admin_token(settings)
    if arguments.action == "status":
        state = remote.status(url, token)
        with remote.expected(url):
            terminal.print_fields(state, page, arguments.json)
        return
    given = {field: getattr(arguments, name) for name, field in FIELDS.items()}
    fields = {field: value for field, value in given.items() if value is not None}
    outcome = remote.act(url, token, arguments.action, fields)
    if arguments.json:
        print(json.dumps(outcome))
    else:
        with remote.expected(url):
            for result in outcome["results"]:
                process = result.pop("process")
                values = ", ".join(f"{name} {value}" for name, value in result.items())
                print(terminal.printable(f"{process}: {values}"))
    with remote.expected(url):
        missing = ", ".join(outcome["missing"])
    if missing:
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
