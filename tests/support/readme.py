"""The README, section by section."""

import re

from .paths import ROOT

README = (ROOT / "README.md").read_text()
ADDRESS = "http://127.0.0.1:3000"


def sections():
    """The text of each second-level section by its heading."""
    parts = re.split(r"^## (.*)\n", README, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def blocks(heading, *languages):
    """The fenced blocks of a section, as pairs of language and text."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", sections()[heading], re.MULTILINE | re.DOTALL)
    return [(language, text) for language, text in found if language in languages]
