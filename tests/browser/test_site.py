"""The site that is made of docs/: without a warning, with what the package says of itself, and from nowhere else."""

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from urllib.parse import urljoin, urlsplit

import pytest
from support.documents import pages
from support.paths import ROOT

from tornado_signal.__main__ import make_parser
from tornado_signal.settings.settings import SETTINGS

pytest_plugins = ["support.browser_fixtures"]


def build(source, site):
    """Have MkDocs make the site of mkdocs.yml and docs/ without a network; whether it is content, and what it says."""
    alone = ["unshare", "-n" if os.geteuid() == 0 else "-rn"]
    done = subprocess.run(
        [*alone, sys.executable, "-m", "mkdocs", "build", "--site-dir", site],
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
    directory = tmp_path_factory.mktemp("site")
    content, said = build(ROOT, directory)
    assert content, said
    return directory


@pytest.fixture
def copy(tmp_path):
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copytree(ROOT / "examples/containers", tmp_path / "examples/containers")
    return tmp_path


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Files of a directory."""

    def log_message(self, *args):
        """Say nothing."""


@pytest.fixture
def address(site):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_every_page_can_be_searched(site):
    found = {
        entry["location"].partition(".")[0]
        for entry in json.loads((site / "search/search_index.json").read_text())["docs"]
    }
    assert found == pages().keys() - {"README"}
    assert not list(site.rglob("*.py"))


def test_every_setting_is_on_its_page(site):
    page = (site / "settings.html").read_text()
    rows = dict(re.findall(r'<code id="(\w+)".*?>.*?</code></td>\s*(.*?)</tr>', page, re.DOTALL))
    assert list(rows) == [each.name for each in SETTINGS]
    for each in SETTINGS:
        assert f"<code>{each.variable}</code>" in rows[each.name]
        assert f"<code>{each.default}</code>" in rows[each.name]
        assert ("applied on reload" in rows[each.name]) == each.live


def test_every_command_has_its_section(site):
    found = re.findall(r'<h3 id="\w+"><code>(\w+)</code>', (site / "command-line.html").read_text())
    assert found == list(make_parser().commands)


def test_a_reader_searches_and_loads_nothing_from_elsewhere(site, address, profiles):
    asked = set()
    page = profiles.open("about:blank")
    page.on("request", lambda request: asked.add(request.url))
    for path in site.glob("*.html"):
        page.goto(f"{address}/{path.name}")
    page.goto(f"{address}/index.html", wait_until="networkidle")  # else nothing looks for what is typed
    page.get_by_placeholder("Search").press_sequentially("hold_grace")
    link = page.locator("a.md-search-result__link[href*='settings.html']").first.get_attribute("href")
    page.goto(urljoin(page.url, link))  # a click may come while the results are drawn again
    assert page.locator("h1").inner_text().startswith("Settings")
    assert len(asked) > len(pages())
    assert {urlsplit(each).netloc for each in asked} == {urlsplit(address).netloc}


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
    page = copy / "docs" / "websocket-api.md"
    text = page.read_text()
    assert old in text
    page.write_text(text.replace(old, new))
    content, said = build(copy, copy / "site")
    assert not content
    assert "1 warnings in strict mode" in said
