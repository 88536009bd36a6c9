"""`completion` and `man`, generated from the parser of the command line."""

import argparse
import textwrap
import time
from collections.abc import Iterator

from ..errors import OperatorError
from ..settings.command_line import CommandLine
from . import ORIGIN_VARIABLE, URL_VARIABLE

LINE = 79
ENVIRONMENT = {
    URL_VARIABLE: "URL of the server for the client commands, or several separated by commas.",
    ORIGIN_VARIABLE: "Origin for the client commands.",
}


def completion(arguments: argparse.Namespace) -> None:
    """Print completion for a shell."""
    try:
        import shtab
    except ModuleNotFoundError as error:
        raise OperatorError("completion needs shtab; in the checkout: pip install '.[client]'") from error
    print(shtab.complete(arguments.root, arguments.shell))


def man(arguments: argparse.Namespace) -> None:
    """Print the manual page."""
    for line in page(arguments.root):
        print(*textwrap.wrap(line, LINE, break_on_hyphens=False, break_long_words=False), sep="\n")


def page(root: CommandLine) -> Iterator[str]:
    """Yield the lines of the manual page in man(7) format."""
    description, epilog = root.description or "", root.epilog or ""
    yield f'.TH {root.prog.upper()} 1 {time.strftime("%Y-%m-%d")} "{root.prog}" "User Commands"'
    yield from [".SH NAME", f"{escape(root.prog)} \\- {escape(description.rstrip('.').lower())}"]
    yield from [".SH SYNOPSIS", f".B {escape(root.prog)}", r"\fICOMMAND\fR [\fIargument\fR ...]"]
    yield from [".SH DESCRIPTION", escape(description)]
    yield from [".SH OPTIONS", *options(root)]
    yield ".SH COMMANDS"
    for name, command in root.commands.items():
        yield from [f".SS {escape(f'{root.prog} {name}')}", escape(command.description or "")]
        yield from options(command)
    yield ".SH ENVIRONMENT"
    for name, meaning in ENVIRONMENT.items():
        yield from [".TP", f".B {name}", escape(meaning)]
    yield from [".SH EXIT STATUS", escape(epilog.removeprefix("Exit status: "))]


def options(parser: CommandLine) -> Iterator[str]:
    """Yield the lines for the arguments of a command."""
    for argument in parser.arguments:
        if "--help" not in argument.option_strings:
            meaning = (argument.help or "required") % {"default": argument.default}
            yield from [".TP", f".B {escape(usage(argument))}", escape(meaning)]


def usage(argument: argparse.Action) -> str:
    """Return the syntax of an argument: a flag with its value, if any, or only the value."""
    value = argument.metavar or (f"{{{','.join(argument.choices)}}}" if argument.choices else argument.dest.upper())
    if not argument.option_strings:
        return str(value)
    suffix = {0: "", "?": f" [{value}]", None: f" {value}"}[argument.nargs]
    return ", ".join(flag + suffix for flag in argument.option_strings)


def escape(text: str) -> str:
    """Escape text for troff, as one line."""
    words = text.replace("\\", "\\e").replace("-", "\\-").split()
    # At the beginning of a line, troff would interpret these two as requests.
    return " ".join("\\&" + word if word[0] in ".'" else word for word in words)
