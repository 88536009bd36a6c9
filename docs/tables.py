"""A hook of mkdocs.yml: makes the tables of settings and commands from the package when the site is built.

A page asks for them by comments: `<!-- settings: address to data_dir -->` for the settings from one to another in the
order of their table, `<!-- commands -->` for every command with its arguments.
"""

import re

from tornado_signal.__main__ import make_parser
from tornado_signal.cli.manual import usage
from tornado_signal.settings.settings import SETTINGS

NAMES = [each.name for each in SETTINGS]


def on_page_markdown(markdown, **_):
    """Put the tables in the place of the comments."""
    markdown = re.sub(r"^<!-- settings: (\w+) to (\w+) -->$", settings, markdown, flags=re.MULTILINE)
    return re.sub(r"^<!-- commands -->$", commands, markdown, flags=re.MULTILINE)


def settings(asked):
    """The table of some settings."""
    first, last = map(NAMES.index, asked.groups())
    rows = []
    for each in SETTINGS[first : last + 1]:
        flag = f'<code id="{each.name}">{each.flag}</code>'
        meaning = capitalized(each.meaning) + (f" ({each.unit})" if each.unit else "")
        reload = "applied on reload" if each.live else "needs a restart"
        rest = f"Allowed: {each.type.allowed}. `{each.variable}`; {reload}."
        rows.append(f"| {flag} | `{each.default}` | {meaning}.<br>{escaped(rest)} |")
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows])


def commands(_):
    """Every command: what it does, its arguments, and the settings that it takes."""
    found = []
    for name, command in make_parser().commands.items():
        rows, links = [], []
        for each in command.arguments:
            setting = each.option_strings[0].removeprefix("--").replace("-", "_") if each.option_strings else ""
            if setting in NAMES:
                links.append(f"[`{each.option_strings[0]}`](settings.md#{setting})")
            elif "--help" not in each.option_strings:
                meaning = (each.help or "As it is called there.") % {"default": each.default}
                rows.append(f"| `{usage(each)}` | {escaped(capitalized(meaning))} |")
        found += [f"### `{name}`", "", command.description, ""]
        if rows:
            found += ["| argument | meaning |", "|---|---|", *rows, ""]
        if links:
            found += ["Settings: all." if len(links) == len(NAMES) else f"Settings: {', '.join(links)}.", ""]
    return "\n".join(found)


def escaped(text):
    """Return text escaped for Markdown. Code in backticks stays code."""
    return re.sub(r"[*|<]", r"\\\g<0>", text)


def capitalized(text):
    """The beginning of a sentence."""
    return text[:1].upper() + text[1:]
