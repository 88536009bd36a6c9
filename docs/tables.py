"""A hook of mkdocs.yml that inserts tables of the package's settings and commands into the pages.

Comments mark their places: `<!-- settings: address to data_dir -->` for the settings from one to another in the order
of their table, and `<!-- commands -->` for every command with its arguments.
"""

import re

from tornado_signal.__main__ import make_parser
from tornado_signal.settings.settings import SETTINGS
from tornado_signal_client import cli as client

NAMES = [setting.name for setting in SETTINGS]


def on_page_markdown(markdown, **_):
    """Replace the comments by the tables."""
    markdown = re.sub(r"^<!-- settings: (\w+) to (\w+) -->$", settings, markdown, flags=re.MULTILINE)
    return re.sub(r"^<!-- commands -->$", commands, markdown, flags=re.MULTILINE)


def settings(comment):
    """Return the table of the settings that a comment names."""
    first, last = map(NAMES.index, comment.groups())
    rows = []
    for setting in SETTINGS[first : last + 1]:
        flag = f'<code id="{setting.name}">{setting.flag}</code>'
        meaning = capitalized(setting.meaning) + (f" ({setting.unit})" if setting.unit else "")
        reload = "applied on reload" if setting.live else "needs a restart"
        rest = f"Allowed: {setting.type.allowed}. `{setting.variable}`; {reload}."
        rows.append(f"| {flag} | `{setting.default}` | {meaning}.<br>{escaped(rest)} |")
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows])


def commands(_):
    """Return a section for each command: its description, arguments and settings."""
    lines = []
    for command in [*make_parser().commands.values(), *client.make_parser().commands.values()]:
        rows, links = [], []
        for argument in command.arguments:
            flags = argument.option_strings
            setting = flags[0].removeprefix("--").replace("-", "_") if flags else ""
            if setting in NAMES:
                links.append(f"[`{flags[0]}`](settings.md#{setting})")
            elif "--help" not in flags:
                meaning = (argument.help or f"the {argument.dest}") % {"default": argument.default}
                rows.append(f"| `{usage(argument)}` | {escaped(capitalized(meaning))} |")
        lines += [f"### `{command.prog}`", "", command.description, ""]
        if rows:
            lines += ["| argument | meaning |", "|---|---|", *rows, ""]
        if links:
            lines += ["Settings: all." if len(links) == len(NAMES) else f"Settings: {', '.join(links)}.", ""]
    return "\n".join(lines)


def usage(argument):
    """Return the syntax of an argument: a flag with its value, if any, or only the value."""
    value = argument.metavar or (f"{{{','.join(argument.choices)}}}" if argument.choices else argument.dest.upper())
    if not argument.option_strings:
        return str(value)
    suffix = {0: "", "?": f" [{value}]", None: f" {value}"}[argument.nargs]
    return ", ".join(flag + suffix for flag in argument.option_strings)


def escaped(text):
    """Return text escaped for Markdown. Code in backticks stays code."""
    return re.sub(r"[*|<]", r"\\\g<0>", text)


def capitalized(text):
    """Return a text with an upper-case first letter."""
    return text[:1].upper() + text[1:]
