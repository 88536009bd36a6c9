"""The operator's commands: admin, inspect, check, repair, compact and health.

Their modules are imported when a command runs, so that other commands start fast.
"""

import argparse
from collections.abc import Callable

from ..settings.command_line import CommandLine, add_settings, flag_reader
from ..settings.settings import SETTINGS
from ..settings.value_types import DURATION, ORIGIN, TEXT, URL, integer
from ..system import terminal

LISTENER = ("admin_port", "admin_address", "admin_token_file")
ACTIONS = ("status", "disconnect", "block", "unblock", "withdraw", "drain", "log-level", "compact")
MOST = 20  # default number of origins and topics to list
REDIS = ("store", *(setting.name for setting in SETTINGS if setting.name.startswith("redis_")))


def add_commands(commands: CommandLine) -> None:
    """Add the commands."""
    parser = _add(
        commands,
        "inspect",
        "show statistics of the stored sessions, by origin and topic",
        "data_dir",
        *LISTENER,
        *REDIS,
    )
    parser.add_argument("--json", action="store_true", help="print JSON, also on a terminal")
    parser.add_argument(
        "--most",
        type=flag_reader(integer(0, 1000)),
        default=MOST,
        metavar="N",
        help=f"list the N largest origins and topics (default: {MOST})",
    )
    _add_url(parser)
    _add(
        commands,
        "check",
        "check the integrity of the data of a stopped server, or of the data on Redis",
        "data_dir",
        *REDIS,
    )
    meaning = "keep the sound sessions of a damaged database, and move the damaged directory aside"
    _add(commands, "repair", meaning, "data_dir", "store")
    meaning = "return the space of deleted sessions to the file system"
    parser = _add(commands, "compact", meaning, "data_dir", *LISTENER, "store")
    _add_url(parser)
    parser = _add(
        commands,
        "admin",
        "show the state of a running server, or act on it",
        *LISTENER,
        run=_run_admin,
    )
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help=", ".join(ACTIONS))
    for flag, value_type, metavar, meaning in (
        ("--address", TEXT, "ADDRESS", "an IP address or a network, for disconnect, block and unblock"),
        ("--origin", ORIGIN, "ORIGIN", "an origin, for disconnect and withdraw"),
        ("--topic", TEXT, "TOPIC", "a topic of the origin, for disconnect and withdraw"),
        ("--code", TEXT, "CODE", "the code of a session of the origin, for disconnect and withdraw"),
        ("--subject", TEXT, "SUB", "the claim sub of a token, for disconnect"),
        ("--for", DURATION, "TIME", "how long to block, such as 90s, 15m, 1h or 7d"),
        ("--level", TEXT, "LEVEL", "debug, info, warning or error, for log-level"),
    ):
        parser.add_argument(flag, type=flag_reader(value_type), metavar=metavar, help=meaning)
    parser.add_argument("--json", action="store_true", help="print JSON, also on a terminal")
    _add_url(parser)
    health = "check whether the server with these settings is healthy"
    _add(
        commands, "health", health, "address", "port", "tls_certificate", "tls_key", "allowed_origins", run=_run_health
    )


def _add(
    commands: CommandLine,
    name: str,
    meaning: str,
    *settings: str,
    run: Callable[[argparse.Namespace], None] | None = None,
) -> CommandLine:
    parser = commands.add_command(
        name, run or _run, meaning, f"{meaning.capitalize()}. Settings are read in the same way as for `serve`."
    )
    add_settings(parser, settings)
    return parser


def _add_url(parser: argparse.ArgumentParser) -> None:
    meaning = "URL of the running server's admin listener, unless it is at --admin-port of this machine"
    parser.add_argument("--admin-url", type=flag_reader(URL), metavar="URL", help=meaning)


def _run(arguments: argparse.Namespace) -> None:
    from .commands import run

    with terminal.output_may_be_closed():
        run(arguments)


def _run_admin(arguments: argparse.Namespace) -> None:
    from .admin import run

    with terminal.output_may_be_closed():
        run(arguments)


def _run_health(arguments: argparse.Namespace) -> None:
    from .health import run

    run(arguments)
