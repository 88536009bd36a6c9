"""Inspect, check, compact and health: the operator's commands.

Their modules are imported when one of them runs: other commands start fast.
"""

import argparse
from collections.abc import Callable

from ..settings.command_line import CommandLine, add_settings, flag_reader
from ..settings.settings import SETTINGS
from ..settings.value_types import URL, integer

LISTENER = ("admin_port", "admin_address", "admin_token_file")
MOST = 20  # origins and topics that are named
REDIS = ("store", *(each.name for each in SETTINGS if each.name.startswith("redis_")))  # where sessions are on Redis


def add_commands(commands: CommandLine) -> None:
    """Add these commands to those of the command line."""
    parser = _add(commands, "inspect", "count what is there, by origin and topic", "data_dir", *LISTENER, *REDIS)
    parser.add_argument("--json", action="store_true", help="JSON also on a terminal")
    parser.add_argument(
        "--most",
        type=flag_reader(integer(0, 1000)),
        default=MOST,
        metavar="N",
        help=f"name so many origins and topics, the largest (default: {MOST})",
    )
    _add_url(parser)
    _add(commands, "check", "prove that the data of a stopped server is sound, or that on Redis", "data_dir", *REDIS)
    meaning = "give the space of deleted sessions back to the disk"
    parser = _add(commands, "compact", meaning, "data_dir", *LISTENER, "store")
    _add_url(parser)
    health = "ask the server of these settings whether it is healthy"
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
        name, run or _run, meaning, f"{meaning.capitalize()}. Settings are found as by `serve`."
    )
    add_settings(parser, settings)
    return parser


def _add_url(parser: argparse.ArgumentParser) -> None:
    meaning = "where the admin listener of the running server is, if not at --admin-port of this machine"
    parser.add_argument("--admin-url", type=flag_reader(URL), metavar="URL", help=meaning)


def _run(arguments: argparse.Namespace) -> None:
    from .commands import run

    run(arguments)


def _run_health(arguments: argparse.Namespace) -> None:
    from .health import run

    run(arguments)
