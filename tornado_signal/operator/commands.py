"""The operator's commands: admin, check and health.

Their modules are imported when a command runs, so that other commands start fast.
"""

import argparse
from collections.abc import Callable

from ..settings.command_line import CommandLine, add_settings, flag_reader
from ..settings.settings import SETTINGS
from ..settings.value_types import DURATION, ORIGIN, TEXT, URL
from ..system import terminal

LISTENER = ("admin_port", "admin_address", "admin_token_file")
ACTIONS = ("status", "disconnect", "block", "unblock", "withdraw", "drain", "log-level", "compact")
REDIS = ("store", *(setting.name for setting in SETTINGS if setting.name.startswith("redis_")))


def add_commands(commands: CommandLine) -> None:
    """Add the commands."""
    check = "check the integrity of the data of a stopped server, or of the data on Redis"
    _add(commands, "check", check, "data_dir", *REDIS, run=_run_check)
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
    meaning = "URL of the running server's admin listener, unless it is at --admin-port of this machine"
    parser.add_argument("--admin-url", type=flag_reader(URL), metavar="URL", help=meaning)
    health = "check whether the server with these settings is healthy"
    _add(
        commands, "health", health, "address", "port", "tls_certificate", "tls_key", "allowed_origins", run=_run_health
    )


def _add(
    commands: CommandLine,
    name: str,
    meaning: str,
    *settings: str,
    run: Callable[[argparse.Namespace], None],
) -> CommandLine:
    parser = commands.add_command(
        name, run, meaning, f"{meaning.capitalize()}. Settings are read in the same way as for `serve`."
    )
    add_settings(parser, settings)
    return parser


def _run_check(arguments: argparse.Namespace) -> None:
    from .check import run

    with terminal.output_may_be_closed():
        run(arguments)


def _run_admin(arguments: argparse.Namespace) -> None:
    from .admin import run

    with terminal.output_may_be_closed():
        run(arguments)


def _run_health(arguments: argparse.Namespace) -> None:
    from .health import run

    run(arguments)
