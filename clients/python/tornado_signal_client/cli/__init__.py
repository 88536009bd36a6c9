"""The commands and their arguments.

The module of a command is imported when it runs, because one of them needs an extra.
"""

import argparse
import importlib
import importlib.metadata
from collections.abc import Callable
from pathlib import Path

from .arguments import CANDIDATE, COUNT, DEFAULT_URL, INFO, ORIGIN, SECONDS, TOPIC, Parser, servers
from .terminal import CommandError

PROGRAM = "tornado-signal-client"
URL_VARIABLE = "SIGNAL_URL"
ORIGIN_VARIABLE = "SIGNAL_ORIGIN"
TOKEN_VARIABLE = "SIGNAL_TOKEN_FILE"
SHELLS = ("bash", "zsh", "fish")


def _lazy(module: str, name: str) -> Callable[[argparse.Namespace], None]:
    def run(arguments: argparse.Namespace) -> None:
        getattr(importlib.import_module(f".{module}", __name__), name)(arguments)

    return run


def make_parser() -> Parser:
    """Return the parser of the command line."""
    root = Parser(
        prog=PROGRAM,
        description="Use a signaling server from a shell.",
        epilog="Exit status: 0 success, 1 an error to fix, 2 wrong usage, 3 an internal error.",
    )
    root.add_argument("--version", action="version", version=importlib.metadata.version(PROGRAM))
    group = root.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(module: str, name: str, summary: str, description: str) -> Parser:
        parser: Parser = group.add_parser(name, help=summary, description=description)
        parser.set_defaults(run=_lazy(module, name.replace("-", "_")))
        root.commands[name] = parser
        return parser

    topics = add(
        "discovery", "topics", "list the topics", "List the topics with sessions, and the number of sessions of each."
    )
    sessions = add(
        "discovery", "sessions", "list the sessions of a topic", "List the sessions of a topic, newest first."
    )
    watch = add(
        "discovery",
        "watch",
        "follow the sessions of a topic",
        "Follow the sessions of a topic, or the list of topics, until interrupted. It reconnects after a network "
        "failure or a restart of the server.",
    )
    offer = add(
        "signaling",
        "offer",
        "publish an offer and wait for its answer",
        "Publish standard input as an offer, wait for the answer and print it. If the command ends earlier, it "
        "withdraws the offer.",
    )
    answer = add(
        "signaling",
        "answer",
        "print an offer and answer it",
        "Print an offer and close standard output. Then send standard input as the answer.",
    )
    ping = add(
        "ping",
        "ping",
        "measure how fast offers are answered",
        "Repeatedly publish an offer, answer it, and measure the time until the offerer has the answer. All offers are "
        "withdrawn.",
    )
    check_ice = add(
        "check_ice",
        "check-ice",
        "check the STUN and TURN servers",
        "Get the ICE servers from the server as a peer does, and check each. A STUN server must return this machine's "
        "public address, a TURN server must relay a message. The exit status is 1 if a check fails. "
        "Needs the extra [peer].",
    )
    for parser in (sessions, offer):
        parser.add_argument("topic", metavar="TOPIC", type=TOPIC)
    followed = "the topic to follow (default: the list of topics)"
    watch.add_argument("topic", metavar="TOPIC", nargs="?", type=TOPIC, help=followed)
    offer.add_argument("--info", type=INFO, default="shell", help="the session's info (default: %(default)s)")
    target = "the code of a session, or a topic whose oldest session to answer"
    answer.add_argument("target", metavar="TOPIC|CODE", type=TOPIC, help=target)
    for parser, event in (offer, "an answer"), (answer, "an offer"):
        several = {"action": "append", "default": [], "help": "a candidate to send; may be repeated"}
        parser.add_argument("--candidate", type=CANDIDATE, metavar="TEXT", **several)
        limit = f"seconds to wait for {event} (default: until interrupted)"
        parser.add_argument("--wait", type=SECONDS, metavar="S", help=limit)
    count = "number of measurements (default: %(default)s)"
    ping.add_argument("--count", type=COUNT, default=10, metavar="N", help=count)
    url = (
        "URL of the server, or several separated by commas, of which the first available one is used "
        f"(environment: {URL_VARIABLE}; default: {DEFAULT_URL})"
    )
    origin = f"origin of the sessions (environment: {ORIGIN_VARIABLE}; default: the origin of the server)"
    token = (
        f"file with the token to present, which is read again when the token expires (environment: {TOKEN_VARIABLE})"
    )
    for parser in (topics, sessions, watch, offer, answer, ping, check_ice):
        parser.add_argument("--url", type=servers, metavar="URL", help=url)
        parser.add_argument("--origin", type=ORIGIN, metavar="ORIGIN", help=origin)
        parser.add_argument("--json", action="store_true", help="print JSON, one object per line, also on a terminal")
        parser.add_argument("--token-file", type=Path, metavar="FILE", help=token)
    completion = group.add_parser(
        "completion",
        help="print completion for a shell",
        description=f'Print completion for a shell. For bash: eval "$({PROGRAM} completion bash)"',
    )
    completion.add_argument("shell", choices=SHELLS)
    completion.set_defaults(run=lambda arguments: _complete(root, arguments.shell))
    root.commands["completion"] = completion
    return root


def _complete(root: Parser, shell: str) -> None:
    try:
        import shtab
    except ModuleNotFoundError as error:
        raise CommandError(
            "completion needs shtab; in the checkout: pip install 'clients/python[completion]'"
        ) from error
    print(shtab.complete(root, shell))
