"""The browser module and the demo in Firefox, with Chromium."""

from support.browsers import listed, until


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
