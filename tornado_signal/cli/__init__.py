"""The arguments of the client commands.

The module of a command is imported when it runs, so that the command line starts fast.
"""

import argparse
import importlib
import re
from collections.abc import Callable
from pathlib import Path

from ..settings.command_line import CommandLine, flag_reader
from ..settings.value_types import ACTION as ONE_ACTION
from ..settings.value_types import DURATION, ORIGIN, TEXT, ValueType, converted, integer, list_of, matching
from ..system import terminal

URL_VARIABLE = "SIGNAL_URL"
ORIGIN_VARIABLE = "SIGNAL_ORIGIN"
TOKEN_VARIABLE = "SIGNAL_TOKEN_FILE"
DEFAULT_URL = "http://127.0.0.1:3000"
SHELLS = ("bash", "zsh", "fish")


def _server(url: str) -> str:
    if int((re.search(r"^https?://[^/]*:(\d+)(/|$)", url) or [0, 0])[1]) > 65535:
        raise ValueError
    return url


def _utf8(text: str) -> str:
    text.encode()  # raises a ValueError if the argument was not UTF-8
    return text


def _string(longest: int, allowed: str) -> ValueType[str]:
    return converted(_utf8, matching(f"(?s).{{1,{longest}}}", allowed))


SERVERS = list_of(
    converted(
        _server,
        matching(
            r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[!-+\--~]*)?",
            f"the address of a server, such as {DEFAULT_URL}",
        ),
    )
)
TOPIC = _string(256, "a topic of 1 to 256 characters")
INFO = _string(1024, "1 to 1024 characters")
CANDIDATE = _string(65536, "a non-empty text")
SECONDS = converted(float, matching(r"[0-9]{1,8}(\.[0-9]{1,3})?", "a number of seconds"))


def _lazy(module: str, name: str) -> Callable[[argparse.Namespace], None]:
    def run(arguments: argparse.Namespace) -> None:
        with terminal.output_may_be_closed():
            getattr(importlib.import_module(f".{module}", __name__), name)(arguments)

    return run


def add_commands(root: CommandLine) -> None:
    """Add the client commands."""

    def add(module: str, name: str, summary: str, description: str) -> CommandLine:
        return root.add_command(name, _lazy(module, name.replace("-", "_")), summary, description)

    topics = add(
        "discovery", "topics", "list the topics", "List the topics with sessions, and the number of sessions of each."
    )
    sessions = add(
        "discovery", "sessions", "list the sessions of a topic", "List the sessions of a topic, newest first."
    )
    sessions.add_argument("topic", metavar="TOPIC", type=flag_reader(TOPIC))
    watch = add(
        "discovery",
        "watch",
        "follow the sessions of a topic",
        "Follow the sessions of a topic, or the list of topics, until interrupted. It reconnects after a network "
        "failure or a restart of the server.",
    )
    watch.add_argument(
        "topic",
        metavar="TOPIC",
        nargs="?",
        type=flag_reader(TOPIC),
        help="the topic to follow (default: the list of topics)",
    )
    offer = add(
        "signaling",
        "offer",
        "publish an offer and wait for its answer",
        "Publish standard input as an offer, wait for the answer and print it. If the command ends earlier, it "
        "withdraws the offer.",
    )
    offer.add_argument("topic", metavar="TOPIC", type=flag_reader(TOPIC))
    offer.add_argument(
        "--info", type=flag_reader(INFO), default="shell", help="the session's info (default: %(default)s)"
    )
    answer = add(
        "signaling",
        "answer",
        "print an offer and answer it",
        "Print an offer and close standard output. Then send standard input as the answer.",
    )
    answer.add_argument(
        "target",
        metavar="TOPIC|CODE",
        type=flag_reader(TOPIC),
        help="the code of a session, or a topic whose oldest session to answer",
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
        "ping",
        "measure how fast offers are answered",
        "Repeatedly publish an offer, answer it, and measure the time until the offerer has the answer. All offers are "
        "withdrawn.",
    )
    ping.add_argument(
        "--count",
        type=flag_reader(integer(1, 100_000)),
        default=10,
        metavar="N",
        help="number of measurements (default: %(default)s)",
    )
    check_ice = add(
        "check_ice",
        "check-ice",
        "check the STUN and TURN servers",
        "Get the ICE servers from the server as a peer does, and check each. A STUN server must return this machine's "
        "public address, a TURN server must relay a message. The exit status is 1 if a check fails. "
        "Needs the extra [peer].",
    )
    for parser in (topics, sessions, watch, offer, answer, ping, check_ice):
        parser.add_argument(
            "--url",
            type=flag_reader(SERVERS),
            metavar="URL",
            help="URL of the server, or several separated by commas, of which the first available one is used "
            f"(environment: {URL_VARIABLE}; default: {DEFAULT_URL})",
        )
        parser.add_argument(
            "--origin",
            type=flag_reader(ORIGIN),
            metavar="ORIGIN",
            help=f"origin of the sessions (environment: {ORIGIN_VARIABLE}; default: the origin of the server)",
        )
        parser.add_argument("--json", action="store_true", help="print JSON, one object per line, also on a terminal")
        parser.add_argument(
            "--token-file",
            type=Path,
            metavar="FILE",
            help="file with the token to present, which is read again when the token expires "
            f"(environment: {TOKEN_VARIABLE})",
        )
    token = add(
        "token",
        "token",
        "make a token, or explain one",
        "Make a token for clients of a server with --auth-keys, and print it. With --check, read a token from standard "
        "input, verify and explain it. The exit status is 1 if the server would refuse it.",
    )
    token.add_argument(
        "--key",
        type=Path,
        required=True,
        metavar="FILE",
        help="NAME.secret, or NAME.pem with a private key; with --check a public key, or a directory of keys",
    )
    token.add_argument("--check", action="store_true", help="verify and explain the token on standard input")
    for flag, metavar, meaning in (
        ("--topic", "TOPIC", "a topic, or a prefix that ends in *; may be repeated (default: all topics)"),
        ("--action", "ACTION", "list, offer or answer; may be repeated (default: all)"),
    ):
        value_type = ONE_ACTION if flag == "--action" else TOPIC
        token.add_argument(flag, type=flag_reader(value_type), action="append", metavar=metavar, help=meaning)
    token.add_argument(
        "--ttl",
        type=flag_reader(DURATION),
        default="1h",
        metavar="TIME",
        help="time until it expires, such as 90s, 15m, 1h or 7d (default: %(default)s)",
    )
    token.add_argument("--sub", type=flag_reader(INFO), metavar="TEXT", help="the subject: who it is")
    token.add_argument("--info", type=flag_reader(INFO), metavar="TEXT", help="the only info of its bearer's offers")
    token.add_argument("--origin", type=flag_reader(ORIGIN), metavar="ORIGIN", help="the only origin that may use it")
    token.add_argument("--issuer", type=flag_reader(TEXT), metavar="TEXT", help="the issuer; with --check: required")
    token.add_argument(
        "--audience", type=flag_reader(TEXT), metavar="TEXT", help="the audience; with --check: required"
    )
    completion = add(
        "manual",
        "completion",
        "print completion for a shell",
        'Print completion for a shell. For bash: eval "$(tornado-signal completion bash)"',
    )
    completion.add_argument("shell", choices=SHELLS)
    man = add(
        "manual", "man", "print the manual page", "Print the manual page. To read it: tornado-signal man | man -l -"
    )
    for parser in (completion, man):
        parser.set_defaults(root=root)
