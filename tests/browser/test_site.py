"""The documentation site: built without warnings, with the package's own tables, and without external requests."""

import json
import os
import re
import shutil
import subprocess
import sys
from urllib.parse import urljoin, urlsplit

import pytest
from support.documents import pages
from support.needs import require
from support.paths import ROOT
from support.pythons import once

from tornado_signal.__main__ import make_parser
from tornado_signal.settings.settings import SETTINGS
from tornado_signal_client import cli as client


def build(source, site, **variables):
    """Build the site with MkDocs, without a network. Return whether it succeeded, and its output."""
    require("namespace", "mkdocs")
    alone = ["unshare", "-n" if os.geteuid() == 0 else "-rn"]
    done = subprocess.run(
        [*alone, sys.executable, "-m", "mkdocs", "build", "--site-dir", site],
        cwd=source,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    def make(directory):
        sources = tmp_path_factory.mktemp("sources")
        copy_sources(sources)
        (sources / "docs/__pycache__").mkdir(exist_ok=True)
        (sources / "docs/__pycache__/tables.cpython-311.pyc").touch()
        content, said = build(sources, directory, REPOSITORY_URL="https://git.example/tornado-signal")
        assert content, said

    return once(tmp_path_factory.getbasetemp(), "site", make)


def copy_sources(directory):
    for file in ("mkdocs.yml", "CHANGELOG.md"):
        shutil.copy(ROOT / file, directory)
    for folder in ("docs", "examples/containers"):
        shutil.copytree(ROOT / folder, directory / folder)


@pytest.fixture
def address(site):
    command = [sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "--directory", site, "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        yield re.search(r"\((http://.*)/\)", server.stdout.readline())[1]
        server.terminate()


def test_every_page_can_be_searched(site):
    index = json.loads((site / "search/search_index.json").read_text())["docs"]
    assert {entry["location"].partition(".")[0] for entry in index} == pages().keys() - {"README", "decisions"}
    assert [path for end in ("*.py", "__pycache__") for path in site.rglob(end)] == []


def test_every_setting_is_on_its_page(site):
    page = (site / "settings.html").read_text()
    rows = dict(re.findall(r'<code id="(\w+)".*?>.*?</code></td>\s*(.*?)</tr>', page, re.DOTALL))
    assert list(rows) == [each.name for each in SETTINGS]
    for each in SETTINGS:
        assert f"<code>{each.variable}</code>" in rows[each.name]
        assert f"<code>{each.default}</code>" in rows[each.name]
        assert ("applied on reload" in rows[each.name]) == each.live


def test_every_command_has_its_section(site):
    sections = re.findall(r'<h3 id="[\w-]+"><code>([\w -]+)</code>', (site / "command-line.html").read_text())
    assert sections == [
        f"{each.prog} {name}" for each in (make_parser(), client.make_parser()) for name in each.commands
    ]


# Search terms of readers, and the page that must be among the results.
SEARCHES = {
    "troubleshooting": "troubleshooting.html",
    "authentication": "troubleshooting.html",
    "encryption": "troubleshooting.html",
    "firewall": "deploy.html",
    "production": "deploy.html",
    "mobile": "troubleshooting.html",
    "Safari": "troubleshooting.html",
    "VPS": "deploy.html",
    "who may join": "security.html",
    "PeerJS": "from-peerjs.html",
    "hold_grace": "settings.html",
}


def test_searches_find_the_pages_without_external_requests(site, address, profiles):
    files = r"<(?:script|link|img|iframe|source)\b[^>]*\s(?:src|href)=\"?(?:https?:)?//"
    assert [path.name for path in site.glob("*.html") if re.search(files, path.read_text())] == []
    asked = set()
    page = profiles.open("about:blank")
    page.on("request", lambda request: asked.add(request.url))
    page.goto(f"{address}/index.html", wait_until="networkidle")  # else nothing looks for what is typed
    for words, found in SEARCHES.items():
        page.get_by_placeholder("Search").fill("")
        page.get_by_placeholder("Search").press_sequentially(words)
        link = page.locator(f"a.md-search-result__link[href*='{found}']").first
        link.wait_for(state="attached")
    page.goto(urljoin(page.url, link.get_attribute("href")))  # a click may come while the results are drawn again
    assert page.locator("h1").inner_text().startswith("Settings")
    assert len(asked) > 5
    assert {urlsplit(each).netloc for each in asked} == {urlsplit(address).netloc}


def test_the_pages_link_to_the_repository_and_the_changelog(site):
    page = (site / "index.html").read_text()
    assert 'href="https://git.example/tornado-signal"' in page
    assert 'href="changelog.html"' in page
    assert "Keep a Changelog" in (site / "changelog.html").read_text()


def test_broken_links_are_errors(tmp_path):
    copy_sources(tmp_path)
    wrong = ("settings.md#no_such_setting", "no-such-page.md", "/http-api.html")
    with (tmp_path / "docs" / "websocket-api.md").open("a") as page:
        page.writelines(f"\n[wrong]({link})\n" for link in wrong)
    content, said = build(tmp_path, tmp_path / "site")
    assert not content
    assert "3 warnings in strict mode" in said
