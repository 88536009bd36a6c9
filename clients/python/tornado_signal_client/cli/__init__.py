"""The commands and their arguments.

The module of a command is imported when it runs, because one of them needs an extra.
"""

import argparse
import difflib
import functools
import importlib
import importlib.metadata
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..types import T
from .terminal import CommandError

PROGRAM = "tornado-signal-client"
URL_VARIABLE = "SIGNAL_URL"
ORIGIN_VARIABLE = "SIGNAL_ORIGIN"
TOKEN_VARIABLE = "SIGNAL_TOKEN_FILE"
SHELLS = ("bash", "zsh", "fish")
DEFAULT_URL = "http://127.0.0.1:3000"
MAX_COUNT = 100_000


class Parser(argparse.ArgumentParser):
    """A parser that lists its commands and their arguments, and suggests similar flags for unknown ones."""

    def __init__(self, **options: Any) -> None:
        self.arguments: list[argparse.Action] = []  # the arguments and flags, in order of definition
        self.commands: dict[str, Parser] = {}  # the parser of each command, by name
        super().__init__(**options, allow_abbrev=False)  # an abbreviation could mean another flag after an upgrade

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        self.arguments.append(super().add_argument(*names, **options))
        return self.arguments[-1]

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        arguments, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser = self.commands[arguments.command]
            flags = [flag for argument in parser.arguments for flag in argument.option_strings]
            names = [argument.partition("=")[0] for argument in unknown if argument.startswith("--")]
            similar = [flag for name in names for flag in difflib.get_close_matches(name, flags, n=1)]
            hint = f"; did you mean {' and '.join(similar)}?" if similar else ""
            parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return arguments


def matching(pattern: str, allowed: str, convert: Callable[[str], T]) -> Callable[[str], T]:
    """Return the `type` of an argument that matches `pattern` and that `convert` accepts, or raises ValueError."""

    def read(text: str) -> T:
        try:
            if re.fullmatch(pattern, text):
                return convert(text)
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"{text!r}: expected {allowed}")

    return read


def _text(longest: int, allowed: str) -> Callable[[str], str]:
    # Encoding raises a ValueError if the argument was not UTF-8.
    return matching(f"(?s).{{1,{longest}}}", allowed, lambda text: text.encode().decode())


def _count(digits: str) -> int:
    if not 1 <= int(digits) <= MAX_COUNT:
        raise ValueError
    return int(digits)


def _server(url: str) -> str:
    if int((re.search(r"^https?://[^/]*:(\d+)(/|$)", url) or [0, 0])[1]) > 65535:
        raise ValueError
    return url


def servers(text: str) -> tuple[str, ...]:
    return tuple(_url(part.strip()) for part in text.split(","))


TOPIC = _text(256, "a topic of 1 to 256 characters")
INFO = _text(1024, "1 to 1024 characters")
CANDIDATE = _text(65536, "a non-empty text")
SECONDS = matching(r"[0-9]{1,8}(\.[0-9]{1,3})?", "a number of seconds", float)
COUNT = matching("[0-9]{1,18}", f"a whole number from 1 to {MAX_COUNT}", _count)
ORIGIN = matching("(?!https?://[^/]*/)[!-)+-~]{1,512}", "an origin such as https://app.example.com", str)
_url = matching(
    r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[!-+\--~]*)?",
    f"the address of a server, such as {DEFAULT_URL}; several separated by commas",
    _server,
)


COMMANDS = {  # the module, a summary and a description of each
    "topics": ("discovery", "list the topics", "List the topics with sessions, and the number of sessions of each."),
    "sessions": ("discovery", "list the sessions of a topic", "List the sessions of a topic, newest first."),
    "watch": (
        "discovery",
        "follow the sessions of a topic",
        "Follow the sessions of a topic, or the list of topics, until interrupted. It reconnects after a network "
        "failure or a restart of the server.",
    ),
    "offer": (
        "signaling",
        "publish an offer and wait for its answer",
        "Publish standard input as an offer, wait for the answer and print it. If the command ends earlier, it "
        "withdraws the offer.",
    ),
    "answer": (
        "signaling",
        "print an offer and answer it",
        "Print an offer and close standard output. Then send standard input as the answer.",
    ),
    "ping": (
        "signaling",
        "measure how fast offers are answered",
        "Repeatedly publish an offer, answer it, and measure the time until the offerer has the answer. All offers are "
        "withdrawn.",
    ),
    "check-ice": (
        "check_ice",
        "check the STUN and TURN servers",
        "Get the ICE servers from the server as a peer does, and check each. A STUN server must return this machine's "
        "public address, a TURN server must relay a message. The exit status is 1 if a check fails. "
        "Needs the extra [peer].",
    ),
}
URL_HELP = (
    "URL of the server, or several separated by commas, of which the first available one is used "
    f"(environment: {URL_VARIABLE}; default: {DEFAULT_URL})"
)
ORIGIN_HELP = f"origin of the sessions (environment: {ORIGIN_VARIABLE}; default: the origin of the server)"
TOKEN_HELP = (
    f"file with the token to present, which is read again when the token expires (environment: {TOKEN_VARIABLE})"
)


def make_parser() -> Parser:
    root = Parser(
        prog=PROGRAM,
        description="Use a signaling server from a shell.",
        epilog="Exit status: 0 success, 1 an error to fix, 2 wrong usage, 3 an internal error.",
    )
    root.add_argument("--version", action="version", version=importlib.metadata.version(PROGRAM))
    group = root.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, summary, description) in COMMANDS.items():
        root.commands[name] = command = group.add_parser(name, help=summary, description=description)
        run = functools.partial(_run, module, name.replace("-", "_"))
        command.set_defaults(run=run, interrupted="interrupted")
    offer, answer = root.commands["offer"], root.commands["answer"]
    for command in (root.commands["sessions"], offer):
        command.add_argument("topic", metavar="TOPIC", type=TOPIC)
    followed = "the topic to follow (default: the list of topics)"
    root.commands["watch"].set_defaults(interrupted=None)
    root.commands["watch"].add_argument("topic", metavar="TOPIC", nargs="?", type=TOPIC, help=followed)
    offer.add_argument("--info", type=INFO, default="shell", help="the session's info (default: %(default)s)")
    offer.set_defaults(interrupted="interrupted; the offer has been withdrawn")
    target = "the code of a session, or a topic whose oldest session to answer"
    answer.add_argument("target", metavar="TOPIC|CODE", type=TOPIC, help=target)
    for command, event in (offer, "an answer"), (answer, "an offer"):
        several = {"action": "append", "default": [], "help": "a candidate to send; may be repeated"}
        command.add_argument("--candidate", type=CANDIDATE, metavar="TEXT", **several)
        limit = f"seconds to wait for {event} (default: until interrupted)"
        command.add_argument("--wait", type=SECONDS, metavar="S", help=limit)
    count = "number of measurements (default: %(default)s)"
    root.commands["ping"].add_argument("--count", type=COUNT, default=10, metavar="N", help=count)
    for command in root.commands.values():
        command.add_argument("--url", type=servers, metavar="URL", help=URL_HELP)
        command.add_argument("--origin", type=ORIGIN, metavar="ORIGIN", help=ORIGIN_HELP)
        command.add_argument("--json", action="store_true", help="print JSON, one object per line, also on a terminal")
        command.add_argument("--token-file", type=Path, metavar="FILE", help=TOKEN_HELP)
    root.commands["completion"] = completion = group.add_parser(
        "completion",
        help="print completion for a shell",
        description=f'Print completion for a shell. For bash: eval "$({PROGRAM} completion bash)"',
    )
    completion.add_argument("shell", choices=SHELLS)
    completion.set_defaults(run=lambda arguments: _complete(root, arguments.shell))
    return root


def _run(module: str, name: str, arguments: argparse.Namespace) -> None:
    command, run = (importlib.import_module(f".{each}", __name__) for each in (module, "run"))
    run.with_client(getattr(command, name), arguments)


def _complete(root: Parser, shell: str) -> None:
    try:
        import shtab
    except ModuleNotFoundError as error:
        raise CommandError(
            "completion needs shtab; in the checkout: pip install 'clients/python[completion]'"
        ) from error
    print(shtab.complete(root, shell))
