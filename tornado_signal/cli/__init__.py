"""The commands for whoever uses a server: what they take, and which function is which.

What they need is imported when one of them runs: the command line begins fast, and `serve` needs none of it.
"""

import argparse
import importlib
import re
from collections.abc import Callable
from typing import Any

from ..settings.sources import flag_reader
from ..settings.value_types import ORIGIN, Kind, made, several, text, whole

URL_VARIABLE = "SIGNAL_URL"
ORIGIN_VARIABLE = "SIGNAL_ORIGIN"
DEFAULT_URL = "http://127.0.0.1:3000"
SHELLS = ("bash", "zsh", "fish")


def _server(url: str) -> str:
    if int((re.search(r"^https?://[^/]*:(\d+)(/|$)", url) or [0, 0])[1]) > 65535:
        raise ValueError
    return url


def _said(most: int, what: str) -> Kind[str]:
    def check(said: str) -> str:
        said.encode()  # an argument that is not UTF-8 fails here, with a ValueError
        return said

    return made(check, text(f"(?s).{{1,{most}}}", what))


SERVERS = several(
    made(
        _server,
        text(
            r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[!-+\--~]*)?",
            f"the address of a server, such as {DEFAULT_URL}",
        ),
    )
)
TOPIC = _said(256, "a topic of 1 to 256 characters")
INFO = _said(1024, "1 to 1024 characters")
CANDIDATE = _said(65536, "some text")
SECONDS = made(float, text(r"[0-9]{1,8}(\.[0-9]{1,3})?", "a number of seconds"))


def _later(module: str, name: str) -> Callable[[argparse.Namespace], None]:
    def run(arguments: argparse.Namespace) -> None:
        getattr(importlib.import_module(f".{module}", __name__), name)(arguments)

    return run


TABLE: dict[str, Callable[[argparse.Namespace], None]] = {
    "topics": _later("discovery", "topics"),
    "sessions": _later("discovery", "sessions"),
    "watch": _later("discovery", "watch"),
    "offer": _later("signaling", "offer"),
    "answer": _later("signaling", "answer"),
    "ping": _later("ping", "ping"),
    "completion": _later("manual", "completion"),
    "man": _later("manual", "man"),
}
"""From a command to what runs it; an OperatorError ends it with status 1."""


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", root: argparse.ArgumentParser) -> None:
    """Add the commands of `TABLE`.

    Args:
        commands: where to.
        root: the parser of the whole command line, which completion and the man page are made from.
    """

    def add(name: str, summary: str, description: str, **defaults: Any) -> argparse.ArgumentParser:
        parser = commands.add_parser(name, help=summary, description=description)
        parser.set_defaults(run=TABLE[name], **defaults)
        return parser

    topics = add("topics", "list the topics", "List the topics that have sessions, and how many.")
    sessions = add("sessions", "list the sessions of a topic", "List the sessions of a topic, newest first.")
    sessions.add_argument("topic", metavar="TOPIC", type=flag_reader(TOPIC))
    watch = add(
        "watch",
        "follow who comes and goes",
        "Follow who comes and goes under a topic, or the topics themselves, until it is interrupted. "
        "A break of the connection or a restart of the server does not end it.",
    )
    watch.add_argument(
        "topic", metavar="TOPIC", nargs="?", type=flag_reader(TOPIC), help="without one, the topics are watched"
    )
    offer = add(
        "offer",
        "publish an offer and wait for its answer",
        "Publish what standard input says as an offer, wait for the answer, and print it. The offer is withdrawn if it "
        "ends before.",
    )
    offer.add_argument("topic", metavar="TOPIC", type=flag_reader(TOPIC))
    offer.add_argument("--info", type=flag_reader(INFO), default="shell", help="who this is (default: %(default)s)")
    answer = add(
        "answer",
        "print an offer and answer it",
        "Print an offer and close standard output; then send what standard input says as its answer.",
    )
    answer.add_argument(
        "target",
        metavar="TOPIC|CODE",
        type=flag_reader(TOPIC),
        help="a topic, of which the oldest session is taken, or the code of a session",
    )
    for parser, event in (offer, "an answer"), (answer, "an offer"):
        parser.add_argument(
            "--candidate",
            type=flag_reader(CANDIDATE),
            action="append",
            default=[],
            metavar="TEXT",
            help="a candidate to send; may be repeated",
        )
        parser.add_argument(
            "--wait",
            type=flag_reader(SECONDS),
            metavar="S",
            help=f"seconds to wait for {event} (default: until interrupted)",
        )
    ping = add(
        "ping",
        "measure how fast offers are answered",
        "Publish an offer, answer it, and measure the time until the answer is there, again and again. What it "
        "publishes it withdraws.",
    )
    ping.add_argument(
        "--count", type=flag_reader(whole(1, 100_000)), default=10, metavar="N", help="how often (default: %(default)s)"
    )
    for parser in (topics, sessions, watch, offer, answer, ping):
        parser.allow_abbrev = False
        parser.add_argument(
            "--url",
            type=flag_reader(SERVERS),
            metavar="URL",
            help="the server; or several with commas between, of which the first that works is used "
            f"(environment: {URL_VARIABLE}; default: {DEFAULT_URL})",
        )
        parser.add_argument(
            "--origin",
            type=flag_reader(ORIGIN),
            metavar="ORIGIN",
            help=f"whose sessions (environment: {ORIGIN_VARIABLE}; default: that of the server's own pages)",
        )
        parser.add_argument("--json", action="store_true", help="print JSON, one object a line, also on a terminal")
    completion = add(
        "completion",
        "print completion for a shell",
        'Print completion for a shell. For bash: eval "$(tornado-signal completion bash)"',
        root=root,
    )
    completion.add_argument("shell", choices=SHELLS)
    add("man", "print the manual page", "Print the manual page. To read it: tornado-signal man | man -l -", root=root)
