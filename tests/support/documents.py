"""The documentation, README.md and docs/, by page, heading and code block."""

import functools
import re

from .paths import ROOT

DOCS = ROOT / "docs"
ADDRESS = "http://127.0.0.1:3000"  # the server's address in all examples


@functools.cache
def pages():
    """Return the text of each page by its name, such as `README` or `http-api`."""
    return {path.stem: path.read_text() for path in (ROOT / "README.md", *sorted(DOCS.glob("*.md")))}


@functools.cache
def sections(page):
    """Return the text under each heading of a page, subsections included."""
    texts, open_ = {}, []
    in_block = False
    for line in pages()[page].splitlines(keepends=True):
        in_block ^= line.startswith("```")
        if not in_block and (heading := re.match("(#+) (.*)\n", line)):
            open_ = [(level, name) for level, name in open_ if level < len(heading[1])]
            assert heading[2] not in texts, f"two headings of {page} are {heading[2]}"
            open_.append((len(heading[1]), heading[2]))
            texts[heading[2]] = ""
        else:
            for _, name in open_:
                texts[name] += line
    return texts


def blocks(page, heading, *languages):
    return [text for language, text in all_blocks(sections(page)[heading]) if language in languages]


def all_blocks(text):
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def table(page, heading, first=".+?"):
    """The rows of a table that begins with a column of this name, as lists of cells."""
    text = sections(page)[heading]
    rows = re.search(rf"^\| {first} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)[1].splitlines()
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
