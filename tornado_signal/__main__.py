"""The command line."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from . import COMMIT, __version__
from .operator import commands
from .settings.command_line import CommandLine, add_all_settings
from .settings.settings import Settings
from .settings.sources import current_environment, load
from .system import logs
from .system.boundary import CLEAN, guarded
from .system.owner import become_owner


def make_parser() -> CommandLine:
    parser = CommandLine(
        prog="tornado-signal",
        description="Signaling and topic discovery for peer-to-peer applications.",
        epilog="Exit status: 0 clean stop, 1 an error to fix on this machine, 2 wrong usage, 3 an internal error.",
    )
    parser.add_argument("--version", action="version", version=f"{__version__} ({COMMIT})")
    serve = parser.add_command(
        "serve",
        run_server,
        "run the server",
        "Run the server. Flags take precedence over the environment, the environment over the file.",
    )
    add_all_settings(serve)
    commands.add_commands(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, with the arguments of the process by default. Return the exit status."""
    logs.open_standard_streams()
    if os.getpid() == 1:  # as process 1 of a container: the kernel ignores signals without a handler
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(CLEAN))
    arguments = make_parser().parse_args(argv)
    logs.set_up()
    os.umask(0o077)  # files contain clients' addresses, so only this user may read them
    return guarded(lambda: arguments.run(arguments))


def run_server(arguments: argparse.Namespace) -> None:
    """Serve, or with `--check` only verify that the process could serve."""
    import uvloop  # here, so that other commands start fast

    from .process.check import check
    from .process.server import serve
    from .process.tuning import number_of_workers

    def read() -> Settings:
        return load(arguments, current_environment(os.environ))

    settings = load(arguments, os.environ)
    logs.set_up(settings.log_level, settings.log_format)
    if settings.store == "leveldb" and not arguments.check:
        become_owner(settings.data_dir)
    if arguments.check:
        print("settings: can be used", *uvloop.run(check(settings)), sep="\n")
    elif (workers := number_of_workers(settings)) > 1:
        from .process.supervisor import supervise

        uvloop.run(supervise(settings, read, workers))
    else:
        uvloop.run(serve(settings, read))


if __name__ == "__main__":
    sys.exit(main())
