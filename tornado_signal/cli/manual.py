"""`completion` and `man`, made from the parser that `--help` comes from."""

import argparse
import textwrap
import time
from collections.abc import Iterator

from ..errors import OperatorError
from ..settings.command_line import CommandLine
from . import ORIGIN_VARIABLE, URL_VARIABLE

LINE = 79
ENVIRONMENT = {
    URL_VARIABLE: "The server of every command but serve; several with commas between.",
    ORIGIN_VARIABLE: "The origin of every command but serve.",
}


def completion(arguments: argparse.Namespace) -> None:
    """Print completion for a shell.

    Raises:
        OperatorError: shtab is not installed.
    """
    try:
        import shtab
    except ModuleNotFoundError as error:
        raise OperatorError("completion needs shtab: pip install 'tornado-signal[client]'") from error
    print(shtab.complete(arguments.root, arguments.shell))


def man(arguments: argparse.Namespace) -> None:
    """Print the manual page."""
    for line in page(arguments.root):
        print(*textwrap.wrap(line, LINE, break_on_hyphens=False, break_long_words=False), sep="\n")


def page(root: CommandLine) -> Iterator[str]:
    """The manual page of a command line, line by line, in man(7)."""
    description, epilog = root.description or "", root.epilog or ""
    yield f'.TH {root.prog.upper()} 1 {time.strftime("%Y-%m-%d")} "{root.prog}" "User Commands"'
    yield from [".SH NAME", f"{escape(root.prog)} \\- {escape(description.rstrip('.').lower())}"]
    yield from [".SH SYNOPSIS", f".B {escape(root.prog)}", r"\fICOMMAND\fR [\fIargument\fR ...]"]
    yield from [".SH DESCRIPTION", escape(description)]
    yield from [".SH OPTIONS", *options(root)]
    yield ".SH COMMANDS"
    for name, each in root.commands.items():
        yield from [f".SS {escape(f'{root.prog} {name}')}", escape(each.description or "")]
        yield from options(each)
    yield ".SH ENVIRONMENT"
    for name, meaning in ENVIRONMENT.items():
        yield from [".TP", f".B {name}", escape(meaning)]
    yield from [".SH EXIT STATUS", escape(epilog.removeprefix("Exit status: "))]


def options(parser: CommandLine) -> Iterator[str]:
    """The arguments of one command."""
    for each in parser.arguments:
        if "--help" not in each.option_strings:
            meaning = (each.help or "as it is called there") % {"default": each.default}
            yield from [".TP", f".B {escape(usage(each))}", escape(meaning)]


def usage(argument: argparse.Action) -> str:
    """What is typed: a flag with its value, if it takes one, or the value alone."""
    value = argument.metavar or (f"{{{','.join(argument.choices)}}}" if argument.choices else argument.dest.upper())
    if not argument.option_strings:
        return str(value)
    behind = {0: "", "?": f" [{value}]", None: f" {value}"}[argument.nargs]
    return ", ".join(flag + behind for flag in argument.option_strings)


def escape(text: str) -> str:
    """Text as troff shows it unchanged; one line."""
    words = text.replace("\\", "\\e").replace("-", "\\-").split()
    # At the beginning of a line these two would be orders to troff.
    return " ".join("\\&" + word if word[0] in ".'" else word for word in words)
