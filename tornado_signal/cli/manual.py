"""`completion` and `man`: the command line described once more, from the parser that `--help` comes from."""

import argparse
import textwrap
import time
from collections.abc import Iterator

import shtab

from . import ORIGIN_VARIABLE, URL_VARIABLE

LINE = 79
ENVIRONMENT = {
    URL_VARIABLE: "The server of every command but serve; several with commas between.",
    ORIGIN_VARIABLE: "The origin of every command but serve.",
}


def completion(arguments: argparse.Namespace) -> None:
    """Print completion for a shell."""
    print(shtab.complete(arguments.root, arguments.shell))


def man(arguments: argparse.Namespace) -> None:
    """Print the manual page."""
    for line in page(arguments.root):
        print(*textwrap.wrap(line, LINE, break_on_hyphens=False, break_long_words=False), sep="\n")


def page(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The manual page of a parser with commands, line by line, in man(7)."""
    yield f'.TH {parser.prog.upper()} 1 {time.strftime("%Y-%m-%d")} "{parser.prog}" "User Commands"'
    yield from [".SH NAME", f"{escape(parser.prog)} \\- {escape((parser.description or '').rstrip('.').lower())}"]
    yield from [".SH SYNOPSIS", f".B {escape(parser.prog)}", r"\fICOMMAND\fR [\fIargument\fR ...]"]
    yield from [".SH DESCRIPTION", escape(parser.description or "")]
    yield from [".SH OPTIONS", *options(parser)]
    yield ".SH COMMANDS"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                usage = " ".join(each.format_usage().removeprefix("usage: ").split())
                yield from [f".SS {escape(usage.split(' [')[0])}", escape(each.description or "")]
                yield from options(each)
    yield ".SH ENVIRONMENT"
    for name, meaning in ENVIRONMENT.items():
        yield from [".TP", f".B {name}", escape(meaning)]
    yield from [".SH EXIT STATUS", escape((parser.epilog or "").removeprefix("Exit status: "))]


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The arguments of one parser."""
    form = parser._get_formatter()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction | argparse._HelpAction):
            continue
        yield ".TP"
        yield f".B {escape(form._format_action_invocation(action))}"
        yield escape(form._expand_help(action) if action.help else "as it is called there")


def escape(text: str) -> str:
    """Text as troff shows it unchanged; one line."""
    words = text.replace("\\", "\\e").replace("-", "\\-").split()
    # At the beginning of a line these two would be orders to troff.
    return " ".join("\\&" + word if word[0] in ".'" else word for word in words)
