"""The room of the devices in one network: `nearby`, and the button of the demo page."""

import json

from support.browsers import until
from support.demo import connected, shows

ENTER = """async (info) => {
  window.here = await client.nearby({info});
  await new Promise((resolve) => here.addEventListener("join", resolve));
  return [...here.peers.values()].map(({info}) => info);
}"""
FAIL = "client.nearby(%s).then(() => '', ({code, name}) => (typeof code === 'string' ? code : name))"
BUTTON = "Devices near me"


def test_pages_of_one_network_meet_without_a_name(server, site, connect_page):
    pages = [connect_page(server) for _ in range(2)]
    for number, page in enumerate(pages):
        page.evaluate(f"() => {{ window.entered = ({ENTER})('{number}'); }}")
    assert [page.evaluate("entered") for page in pages] == [["1"], ["0"]]
    (topic,) = server.call("/topics", origin=site.origin)[1]["topics"]
    assert topic["topic"] == f"room~{server.call('/nearby', origin=site.origin)[1]['topic']}"


def test_the_next_server_is_asked_if_one_is_unavailable(server, page):
    urls = json.dumps(["http://127.0.0.1:9", server.url])
    page.evaluate(f"async () => {{ window.here = await client.nearby({{url: {urls}}}); }}")
    until(lambda: page.evaluate("here.listed"))


def test_a_server_without_it_is_an_error_with_a_code_which_the_demo_explains(start, connect_page, open_demo):
    server = start("--nearby=false")
    page, demo = connect_page(server), open_demo(server, "Alice", "")
    assert page.evaluate(FAIL % "") == "not-found"
    assert page.evaluate(FAIL % "{signal: AbortSignal.abort()}") == "AbortError"
    demo.get_by_role("button", name=BUTTON).click()
    shows(demo, "This server does not show which devices are in one network.")


def test_button_of_the_demo_connects_the_devices_of_a_network(server, open_demo):
    alice, bob = (open_demo(server, name, "") for name in ("Alice", "Bob"))
    alice.get_by_role("button", name=BUTTON).click()
    shows(alice, "Waiting for somebody")
    assert alice.get_by_role("heading", level=1).filter(has_text=BUTTON).is_visible()
    bob.get_by_text("Open rooms").click()
    bob.evaluate("() => new Promise((resolve) => setTimeout(resolve, 0))")
    assert "nearby-" not in bob.locator("main").inner_text()
    bob.get_by_role("button", name=BUTTON).click()
    connected(alice, "Bob")
    connected(bob, "Alice")
    bob.reload()
    connected(alice, "Bob")
    bob.get_by_role("button", name="Leave").click()
    shows(alice, "Bob has left.")
    assert "nearby-" not in alice.locator("#elsewhere").inner_text()
