"""The documentation, README.md and the pages of docs/: by page, heading and block."""

import functools
import re

from .paths import ROOT

DOCS = ROOT / "docs"
ADDRESS = "http://127.0.0.1:3000"
"""The server of all examples."""


@functools.cache
def pages():
    """The text of each page by its name: `README`, and those of docs/ as `systemd` or `http-api`."""
    return {path.stem: path.read_text() for path in (ROOT / "README.md", *sorted(DOCS.glob("*.md")))}


@functools.cache
def sections(page):
    """The text under each heading of a page, that of its subsections included.

    What looks like a heading in a block of code is none.
    """
    found, open_ = {}, []
    in_block = False
    for line in pages()[page].splitlines(keepends=True):
        in_block ^= line.startswith("```")
        if not in_block and (heading := re.match("(#+) (.*)\n", line)):
            open_ = [(level, name) for level, name in open_ if level < len(heading[1])]
            assert heading[2] not in found, f"two headings of {page} are {heading[2]}"
            open_.append((len(heading[1]), heading[2]))
            found[heading[2]] = ""
        else:
            for _, name in open_:
                found[name] += line
    return found


def blocks(page, heading, *languages):
    """The fenced blocks of a section in some languages, as their texts."""
    return [text for language, text in all_blocks(sections(page)[heading]) if language in languages]


def all_blocks(text):
    """The fenced blocks of a text, as pairs of language and text."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
