"""The site that is made of docs/: without a warning, with what the package says of itself, and from nowhere else."""

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from support.documents import pages
from support.paths import ROOT

from tornado_signal.__main__ import make_parser
from tornado_signal.settings.settings import SETTINGS


def build(source, site):
    """Have MkDocs make the site of a directory with mkdocs.yml and docs/; whether it is content, and what it says."""
    done = subprocess.run(
        [sys.executable, "-W", "default", "-m", "mkdocs", "build", "--site-dir", site],
        cwd=source,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site."""
    directory = tmp_path_factory.mktemp("site")
    content, said = build(ROOT, directory)
    assert content, said
    return directory


@pytest.fixture
def copy(tmp_path):
    """What the site is made of, to be changed."""
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    return tmp_path


class Loaded(HTMLParser):
    """The addresses of all that a browser fetches by itself for a page."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.found += [given["src"]] if given.get("src") else []
        if tag == "link" and given.get("rel") not in ("prev", "next", "canonical"):
            self.found.append(given["href"])


def test_every_page(site):
    """Each page of docs/ is there, and can be searched."""
    found = {
        entry["location"].partition(".")[0]
        for entry in json.loads((site / "search/search_index.json").read_text())["docs"]
    }
    assert found == pages().keys() - {"README"}
    assert not list(site.rglob("*.py"))


def test_settings(site):
    """Every setting is on its page once, with its variable, its default, and whether a reload applies it."""
    page = (site / "settings.html").read_text()
    rows = dict(re.findall(r'<code id="(\w+)".*?>.*?</code></td>\s*(.*?)</tr>', page, re.DOTALL))
    assert list(rows) == [each.name for each in SETTINGS]
    for each in SETTINGS:
        assert f"<code>{each.variable}</code>" in rows[each.name]
        assert f"<code>{each.default}</code>" in rows[each.name]
        assert ("applied on reload" in rows[each.name]) == each.live


def test_commands(site):
    """Every command has its section."""
    found = re.findall(r'<h3 id="\w+"><code>(\w+)</code>', (site / "command-line.html").read_text())
    assert found == list(make_parser().commands)


def test_nothing_comes_from_elsewhere(site):
    """What a browser loads with a page, styles and fonts included, is in the site."""
    for page in site.rglob("*.html"):
        loaded = Loaded(page.read_text()).found
        assert len(loaded) > 3
        for address in loaded:
            assert (page.parent / address.partition("?")[0]).exists() or address.startswith("/assets/"), (page, address)
    for style in site.rglob("*.css"):
        assert not re.search(r"@import|url\(\s*[\"']?(https?:)?//", style.read_text())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("](settings.md#hold_grace_ms)", "](settings.md#no_such_setting)"),
        ("](http-api.md)", "](no-such-page.md)"),
        ("](http-api.md)", "](/http-api.html)"),
    ],
    ids=["anchor", "page", "absolute"],
)
def test_a_broken_link_is_an_error(old, new, copy):
    """So that a site which is built says something."""
    page = copy / "docs" / "websocket-api.md"
    text = page.read_text()
    assert old in text
    page.write_text(text.replace(old, new))
    content, said = build(copy, copy / "site")
    assert not content
    assert "1 warnings in strict mode" in said
