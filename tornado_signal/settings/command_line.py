"""The parser of the command line: commands, and flags for the settings."""

import argparse
import difflib
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from .settings import REPLACED, SETTINGS
from .sources import CONFIG_VARIABLE
from .value_types import ValueType

T = TypeVar("T")


class CommandLine(argparse.ArgumentParser):
    """A parser that knows its commands and arguments, and suggests similar flags for unknown ones."""

    def __init__(self, **options: Any) -> None:
        self.arguments: list[argparse.Action] = []  # the arguments and flags, in order of definition
        self.commands: dict[str, CommandLine] = {}  # the parser of each command, by name
        self._command_group: Any = None
        super().__init__(**options)

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        self.arguments.append(super().add_argument(*names, **options))
        return self.arguments[-1]

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse arguments like argparse, and suggest similar flags for unknown ones."""
        arguments, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser = self.commands.get(arguments.command, self)
            flags = [flag[2:] for argument in parser.arguments for flag in argument.option_strings if flag[:2] == "--"]
            names = [argument[2:].partition("=")[0] for argument in unknown if argument.startswith("--")]
            suggestions: list[str] = []
            for name in names:
                new = REPLACED.get(name.replace("-", "_"), "").replace("_", "-")
                longer = [flag for flag in flags if flag.endswith(f"-{name}")]
                suggestions += [new] if new else [*longer, *difflib.get_close_matches(name, flags)][:1]
            suggested = " and ".join(f"--{name}" for name in dict.fromkeys(suggestions))
            hint = f"; did you mean {suggested}?" if suggested else ""
            parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return arguments

    def add_command(
        self, name: str, run: Callable[[argparse.Namespace], None], summary: str, description: str
    ) -> "CommandLine":
        """Add a command and return its parser.

        The parsed arguments have `run` as an attribute, to be called with them. Flags cannot be abbreviated, because
        an abbreviation could mean another flag after an upgrade.
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
    """Add `--config` and a flag for each of the named settings.

    The other settings have no flag, only an environment variable and a key in the file. An invalid flag is a usage
    error (exit status 2). A flag that is not given has no attribute in the namespace, which has `names` as
    `settings`.
    """
    parser.set_defaults(settings=names)
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="TOML file with settings, named with underscores: session_timeout_ms = 300000 "
        f"(environment: {CONFIG_VARIABLE})",
    )
    for setting in SETTINGS:
        if setting.name in names:
            parser.add_argument(
                setting.flag,
                metavar="VALUE",
                nargs=None if setting.type.bare_flag is None else "?",
                const=setting.type.bare_flag,
                type=flag_reader(setting.type),
                default=argparse.SUPPRESS,
                help=setting.help.replace("%", "%%"),
            )


def add_all_settings(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `serve`: `--check`, `--config` and a flag for each setting."""
    parser.usage = "%(prog)s [-h] [--check] [--config FILE] [--SETTING VALUE]..."  # an error would list all flags
    parser.add_argument(
        "--check",
        action="store_true",
        help="check the settings, the data directory and the ports, print the results and exit",
    )
    add_settings(parser, [setting.name for setting in SETTINGS])


def flag_reader(value_type: ValueType[T]) -> Callable[[str], T]:
    """Return a converter for the `type` argument of argparse."""

    def read(raw: str) -> T:
        try:
            return value_type.parse(raw)
        except ValueError as error:
            raise argparse.ArgumentTypeError(
                f"{getattr(error, 'entry', raw)!r}: expected {value_type.allowed}"
            ) from None

    return read
