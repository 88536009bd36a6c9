"""The examples, and the package for npm in all that it is made for: bundled, with React, and in Node.js."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from bench import npm
from support import npm_package
from support.browsers import reach, until
from support.documents import ADDRESS, blocks
from support.paths import ROOT, TESTS
from support.redis_servers import free_port
from support.searches import some
from support.tokens import write_secret
from support.waiting import accepts

pytestmark = [pytest.mark.slow, pytest.mark.needs("node")]

EXAMPLES = ROOT / "examples"
BUNDLED = """
import { room } from "tornado-signal";
globalThis.lobby = room("lobby", { url: URL, info: "bundled" });
"""
RECIPE = """
import { createElement, StrictMode } from "react";
import { createRoot } from "react-dom/client";
import Recipe from "./recipe.jsx";
createRoot(document.querySelector("#root")).render(createElement(StrictMode, null, createElement(Recipe)));
"""
# Both sides of one connection, and what each has heard: both send before the other can listen.
PAIR = """
import { join, pair, publish } from "tornado-signal";
import { RTCPeerConnection } from "./webrtc.js";

const [url, origin] = process.argv.slice(2);
const options = { url, origin, RTCPeerConnection };
const heard = [];
const listen = ({ channel, side, closed }) => {
  channel.onmessage = ({ data }) => heard.push(`${side} ${typeof data === "string" ? data : data.byteLength}`);
  channel.send("early");
  channel.send(new Uint8Array(3));
  return closed;
};
const publication = publish("pairs", options);
const published = new Promise((resolve) => publication.addEventListener("connection", resolve));
const joined = await join("pairs", { ...options, info: "other" });
const closed = [listen(joined), listen((await published).connection)];
publication.close();
while (heard.length < 4) await new Promise(setImmediate);
await joined.close();
await Promise.all(closed);
const strangers = await Promise.all(["one", "two"].map((info) => pair("strangers", { ...options, info })));
await strangers[0].close();
await strangers[1].closed;
console.log(JSON.stringify(heard.sort()));
"""


@pytest.fixture(scope="module")
def application(tmp_path_factory):
    folder = npm_package.install(tmp_path_factory.mktemp("npm"))
    for name in ("plain", "node"):
        shutil.copytree(EXAMPLES / name, folder / name, ignore=shutil.ignore_patterns("node_modules", "dist"))
    return folder


def talk(*pages):
    """Wait until pages are connected. A message of one is visible on all of them, including its own page."""
    for page in pages:
        page.get_by_role("status").get_by_text(f"You and {len(pages) - 1} more").wait_for()
    pages[0].get_by_label("Message").fill("Hello & <b>welcome</b>")
    pages[0].get_by_role("button", name="Send").click()
    for page in pages:
        page.get_by_role("log").get_by_text("Hello & <b>welcome</b>").wait_for()


def test_pages_of_plain_html_chat_and_the_example_for_node_echoes(application, server, site, profiles):
    text = (EXAMPLES / "plain" / "index.html").read_text()
    assert text.count(ADDRESS) == 1
    site.pages["/plain"] = text.replace(ADDRESS, server.url)
    page, other = (profiles.open(f"{site.origin}/plain") for _ in range(2))
    talk(page, other)
    other.close()
    page.get_by_role("status").get_by_text("You and 1 more").wait_for(state="hidden")
    command = ["node", "index.js", server.url, site.origin]
    with subprocess.Popen(command, cwd=application / "node", stdout=subprocess.PIPE, text=True) as process:
        try:
            page.get_by_role("status").get_by_text("You and 1 more").wait_for()
            assert process.stdout.readline().startswith("Guest ")
            page.get_by_label("Message").fill("Is somebody here?")
            page.get_by_label("Message").press("Enter")
            page.get_by_role("log").get_by_text("Echo: Is somebody here?").wait_for()
            page.close()
            assert process.stdout.readline().endswith(" has left\n")
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()


@pytest.fixture(scope="module")
def react(tmp_path_factory):
    """A copy of the example outside the checkout, installed as its README says."""
    folder = tmp_path_factory.mktemp("react")
    ignored = shutil.ignore_patterns("node_modules", "dist", "*.tgz", "package-lock.json")
    shutil.copytree(EXAMPLES / "react", folder, ignore=ignored, dirs_exist_ok=True)
    npm_package.pack(folder)
    npm.install(folder)
    return folder


@contextlib.contextmanager
def running(react, program, *arguments, **variables):
    """Run a program that listens at the port of `PORT` for the duration of the block. Yield the address."""
    port = free_port()
    command = [program, *(str(port) if each == "PORT" else each for each in arguments)]
    options = {"cwd": react, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=os.environ | {"PORT": str(port)} | variables, **options) as process:
        try:
            until(lambda: accepts(port))
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.terminate()


def test_react_example_runs_in_development_with_and_without_tokens(react, start, profiles):
    vite = (react, "node_modules/.bin/vite", "--host", "127.0.0.1", "--port", "PORT", "--strictPort")
    with running(*vite, VITE_SERVER=start().url) as url:
        talk(*(profiles.open(url) for _ in range(2)))
    server = start("--auth-keys", write_secret(react / "keys"), data="protected")
    for command in ((sys.executable, "backend/tokens.py"), ("node", "backend/tokens.js")):
        with running(react, *command) as url, running(*vite, VITE_SERVER=server.url, VITE_TOKENS=url) as page:
            talk(*(profiles.open(page) for _ in range(2)))
    with running(*vite, VITE_SERVER=server.url) as url:
        profiles.open(url).get_by_role("alert").get_by_text("Missing or invalid token").wait_for()


def test_react_example_builds_and_chats(react, server, site, profiles):
    programs = react / "node_modules" / ".bin"
    npm_package.run(programs / "tsc", cwd=react)
    npm_package.run(programs / "vite", "build", cwd=react, VITE_SERVER=server.url)
    site.pages["/react"] = (react / "dist" / "index.html").read_text()
    for script in (react / "dist" / "assets").iterdir():  # one at first, and one for each part that is loaded later
        site.pages[f"/assets/{script.name}"] = script.read_text()
    talk(*(profiles.open(f"{site.origin}/react") for _ in range(2)))


def test_recipe_for_react_chats(react, server, site, profiles):
    (recipe,) = blocks("recipes", "React", "jsx")
    (react / "recipe.jsx").write_text(recipe.replace(ADDRESS, server.url))
    (react / "main.js").write_text(RECIPE)
    script = npm_package.run("esbuild", "main.js", "--bundle", "--format=esm", "--jsx=automatic", cwd=react)
    site.pages["/recipe"] = f'<!doctype html><div id="root"></div><script type="module">{script}</script>'
    pages = [profiles.open(f"{site.origin}/recipe") for _ in range(2)]
    for page in pages:
        page.get_by_text("Others here: 1").wait_for()
    pages[0].get_by_placeholder("Say something").fill("Hello")
    pages[0].get_by_placeholder("Say something").press("Enter")
    pages[1].get_by_text("Hello").wait_for()


def test_hook_for_react_renders_nothing_of_the_browser_on_a_server(react):
    program = """
      import { createElement } from "react";
      import { renderToString } from "react-dom/server";
      import { useRoom } from "tornado-signal/react";
      const App = () => createElement("p", null, JSON.stringify(useRoom("lobby", { info: "x" })));
      console.log(renderToString(createElement(App)));
    """
    rendered = npm_package.run("node", "--input-type=module", "--eval", program, cwd=react)
    assert rendered.replace("&quot;", '"') == '<p>{"room":null,"peers":[],"error":null}</p>\n'


def test_pairs_in_node(application, server):
    (application / "node" / "pair.js").write_text(PAIR)
    said = npm_package.run("node", "pair.js", server.url, "https://app.example", cwd=application / "node")
    assert json.loads(said) == ["answerer 3", "answerer early", "offerer 3", "offerer early"]


def test_bundled_by_esbuild(application, server, site, profiles):
    (application / "main.js").write_text(BUNDLED.replace("URL", json.dumps(server.url)))
    pages = []
    for format, attribute in (("esm", "type=module"), ("iife", "")):
        script = npm_package.run("esbuild", "main.js", "--bundle", f"--format={format}", cwd=application)
        site.pages[f"/{format}"] = f"<!doctype html><script {attribute}>{script}</script>"
        pages.append(profiles.open(f"{site.origin}/{format}"))
    reach(pages, "lobby.peers.size", 1)


def test_versions():
    locked = json.loads((TESTS / "generated" / "package.json").read_text())["devDependencies"]
    locked |= json.loads((TESTS / "libraries" / "package.json").read_text())["dependencies"]
    version = json.loads((npm_package.WEB / "package.json").read_text())["version"]
    local = f"file:tornado-signal-{version}.tgz"
    for path in some(EXAMPLES.glob("*/package.json")):
        found = json.loads(path.read_text())
        asked = found["dependencies"] | found.get("devDependencies", {})
        assert asked.pop("tornado-signal", local) == local
        assert {name: at.removeprefix("^") for name, at in asked.items()} == {name: locked[name] for name in asked}
