"""The command line: its commands, and flags for settings (Contract D)."""

import argparse
import difflib
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from .settings import REPLACED, SETTINGS
from .sources import CONFIG_VARIABLE
from .value_types import ValueType

T = TypeVar("T")


class CommandLine(argparse.ArgumentParser):
    """A parser that lists its commands and their arguments; the manual page is made from that.

    Attributes:
        arguments: the arguments and flags, in their order.
        commands: the parser of each command, by its name.
    """

    def __init__(self, **options: Any) -> None:
        self.arguments: list[argparse.Action] = []
        self.commands: dict[str, CommandLine] = {}
        self._command_group: Any = None
        super().__init__(**options)

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        self.arguments.append(super().add_argument(*names, **options))
        return self.arguments[-1]

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """As argparse does, but an error about unknown flags names those that may be meant."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser = self.commands.get(found.command, self)
            flags = [flag for argument in parser.arguments for flag in argument.option_strings]
            written = [each.partition("=")[0] for each in unknown if each.startswith("--")]
            near = []
            for each in written:
                new = REPLACED.get(each.removeprefix("--").replace("-", "_"), "")
                near += [f"--{new}".replace("_", "-")] if new else difflib.get_close_matches(each, flags, n=1)
            hint = f"; did you mean {' and '.join(dict.fromkeys(near))}?" if near else ""
            parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return found

    def add_command(
        self, name: str, run: Callable[[argparse.Namespace], None], summary: str, description: str
    ) -> "CommandLine":
        """Add a command, whose arguments hold as `run` what is to be called with them; its parser.

        Flags are to be written in full: an abbreviation could mean something else after an update.
        """
        if self._command_group is None:
            self._command_group = self.add_subparsers(dest="command", metavar="COMMAND", required=True)
        parser: CommandLine = self._command_group.add_parser(
            name, help=summary, description=description, allow_abbrev=False
        )
        parser.set_defaults(run=run)
        self.commands[name] = parser
        return parser


def add_settings(parser: argparse.ArgumentParser, names: Collection[str]) -> None:
    """Add `--config` and a flag for each of some settings; the others come from environment and file alone.

    A wrong flag ends in the parser's usage error (exit status 2). A flag that is not given leaves nothing in the
    namespace.
    """
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="TOML file with settings, each under its name with underscores: session_timeout_ms = 300000 "
        f"(environment: {CONFIG_VARIABLE})",
    )
    for each in SETTINGS:
        if each.name in names:
            parser.add_argument(
                each.flag,
                metavar="VALUE",
                nargs=None if each.type.bare_flag is None else "?",
                const=each.type.bare_flag,
                type=flag_reader(each.type),
                default=argparse.SUPPRESS,
                help=each.help.replace("%", "%%"),
            )


def add_all_settings(parser: argparse.ArgumentParser) -> None:
    """Add all that `serve` takes: `--check`, `--config` and a flag for each setting."""
    parser.usage = "%(prog)s [-h] [--check] [--config FILE] [--SETTING VALUE]..."  # else an error has it all before it
    parser.add_argument(
        "--check", action="store_true", help="check settings, data directory and ports, say what can be used, and exit"
    )
    add_settings(parser, [each.name for each in SETTINGS])


def flag_reader(value_type: ValueType[T]) -> Callable[[str], T]:
    """What `argparse` calls with the text of a flag."""

    def read(raw: str) -> T:
        try:
            return value_type.parse(raw)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{raw!r}: expected {value_type.allowed}") from None

    return read
