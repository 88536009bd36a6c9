"""The browser module with peers of another make: Firefox, and aiortc on the Python client."""

import contextlib
import subprocess
import sys

import pytest
from support.browsers import launch_in, listed, until
from support.command import Server
from support.paths import PEER

pytestmark = pytest.mark.needs("aiortc")

BOUND_S = 60


def test_firefox_joins_and_publishes(server, site, connect_page, connect_firefox):
    chromium, firefox = connect_page(server), connect_firefox(server)
    chromium.evaluate("listen('lobby', {info: 'chromium'})")
    assert firefox.evaluate("call('lobby', {info: 'firefox'})") == ["chromium", "chromium: hello"]
    assert firefox.evaluate("(async () => await say(new Uint8Array(50000)) === await digest(new Uint8Array(50000)))()")
    firefox.evaluate("connection.close()")
    chromium.evaluate("connections[0].closed")
    firefox.evaluate("listen('other', {info: 'firefox'})")
    for _ in range(2):
        assert chromium.evaluate("call('other', {info: 'chromium'})") == ["firefox", "firefox: hello"]
    assert firefox.evaluate("errors") == []
    until(lambda: firefox.evaluate("steps.filter(([name]) => name === 'published').length") == 3)
    firefox.evaluate("location.reload()")
    chromium.evaluate("connection.closed")
    until(lambda: not listed(server, site.origin, "other"))


def test_demo_in_firefox(server, profiles, firefox):
    chromium = profiles.open(f"{server.url}/demo#topic=lobby")
    chromium.get_by_role("button", name="Join").click()
    firefox.goto(f"{server.url}/demo#topic=lobby")
    firefox.evaluate("document.getElementById('enter').click()")
    chromium.get_by_text("2 here").wait_for()
    chromium.get_by_label("Message").fill("from Chromium")
    chromium.keyboard.press("Enter")
    until(lambda: firefox.evaluate("document.getElementById('log').textContent.endsWith('from Chromium')"))
    until(lambda: firefox.evaluate("document.getElementById('tiles').textContent.includes('Direct')"))
    firefox.evaluate("(document.getElementById('message').value = 'from Firefox', 0)")
    firefox.evaluate("document.querySelector('#say button:not([type])').click()")
    chromium.get_by_text("from Firefox").wait_for()
    assert firefox.evaluate("document.getElementById('problem').textContent") == ""
    module = "import('/client.js?version=1').then(({SignalClient}) => new SignalClient().open())"
    assert firefox.evaluate(f"{module}.then(({{readyState}}) => readyState)") == 1  # the page's policy lets it
    firefox.evaluate("document.getElementById('camera').click()")
    until(lambda: chromium.evaluate("[...document.querySelectorAll('video')].some((each) => each.videoWidth > 2)"))
    firefox.evaluate("document.getElementById('leave').click()")
    chromium.get_by_text("Waiting for somebody").wait_for()


@pytest.fixture
def inside(network, chromium, tmp_path):
    server = Server("--data-dir", tmp_path / "data", prefix=network)
    with contextlib.ExitStack() as stack:
        stack.callback(server.end)
        browser = launch_in(chromium(0).browser_type, network, tmp_path / "chromium")
        stack.callback(browser.close)
        page = browser.new_context(permissions=["microphone"]).new_page()
        page.set_default_timeout(BOUND_S * 1000)
        page.goto(f"{server.url}/client.js")
        page.evaluate("() => import('/client.js').then((client) => { Object.assign(window, client); })")
        yield server, page


def peer(network, server, message):
    command = [sys.executable, PEER, "--origin", server.url, server.url, "lobby", message]
    return subprocess.Popen([*network, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ending(process):
    output, errors = process.communicate(timeout=BOUND_S)
    assert (process.returncode, errors) == (0, ""), output
    return output.splitlines()


def test_aiortc_answers_the_module(network, inside):
    server, page = inside
    page.evaluate(
        """() => {
          window.met = new Promise((resolve) => {
            publish("lobby", {info: "chromium"}).addEventListener("connection", ({connection}) => {
              connection.channel.send("hello from Chromium");
              connection.channel.onmessage = ({data}) => {
                resolve(data);
                connection.close();
              };
            });
          });
        }"""
    )
    until(lambda: page.evaluate("new SignalClient().sessions('lobby')")["sessions"])
    process = peer(network, server, "hello from aiortc")
    assert page.evaluate("met") == "hello from aiortc"
    said, heard = ending(process)
    assert said.startswith("answerer of ")
    assert heard == "heard: hello from Chromium"


def test_module_joins_aiortc(network, inside):
    server, page = inside
    process = peer(network, server, "hello from aiortc")
    found = page.evaluate(
        """async () => {
          const connection = await join("lobby", {info: "chromium"});
          const heard = await new Promise((resolve) => {
            connection.channel.onmessage = ({data}) => resolve(data);
          });
          connection.channel.send("hello from Chromium");
          await connection.closed;
          return [connection.info, heard];
        }"""
    )
    assert found[0].startswith("peer-")
    assert found[1] == "hello from aiortc"
    _, said, heard = ending(process)
    assert said.startswith("offerer of ")
    assert heard == "heard: hello from Chromium"
