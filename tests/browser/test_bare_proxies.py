"""Pages of the server's own host behind proxies as people write them from memory, which change Host and scheme."""

import re

import pytest
from support.browsers import Site
from support.demo import checked, meet
from support.proxies import BareApache, BareNginx, BareNginxPath

ODD = r"a/b\c %2F d;e+f?g#h:i@j&k=l\"m~n🎉.."
KINDS = {"apache": BareApache, "nginx below /signal/": BareNginxPath}


@pytest.mark.parametrize("kind", ["nginx", "nginx to a Unix socket", *KINDS])
def test_pages_find_each_other_in_any_room_and_the_check_agrees(
    kind, start, start_proxy, profiles, open_demo, connect_page, tmp_path
):
    path, unix = tmp_path / "signal.sock", kind.endswith("socket")
    server = start("--stun-servers", "none", *(("--address", f"unix:{path}") if unix else ()))
    proxy = start_proxy(KINDS.get(kind, BareNginx), path if unix else server.port)
    meet(**{name: open_demo(proxy, name) for name in ("Alice", "Bob")})
    results = checked(profiles.open(f"{proxy.url}/demo#check"))
    assert results["HTTP"][0] == results["Signaling"][0] == "ok", results
    pages = [connect_page(proxy) for _ in range(2)]
    for page in pages:
        page.evaluate("(name) => { window.lobby = room(name, {url: location.search.slice(1)}); }", ODD)
    for page in pages:
        page.wait_for_function("() => window.lobby.peers.size === 1")
    server.stop()
    assert "Host" in next(line for line in server.log if "a proxy changes" in line)


STRIPPING = "location / {{ proxy_set_header Referer ''; proxy_pass"


class StrippingNginx(BareNginx):
    """The same, which also removes the header Referer."""

    SITE = BareNginx.SITE.replace("location / {{ proxy_pass", STRIPPING)


@pytest.mark.parametrize("kind", [BareNginx, StrippingNginx])
def test_page_without_referrers_is_in_the_room_or_learns_of_the_proxy(kind, server, start_proxy, profiles):
    proxy = start_proxy(kind, server.port)
    pages = [profiles.context().new_page() for _ in range(2)]
    body, headers = Site.CONNECT.read_text(), {"Content-Type": "text/html", "Referrer-Policy": "no-referrer"}
    for page in pages:
        page.route(re.compile("/connect"), lambda route: route.fulfill(body=body, headers=headers))
        page.goto(f"{proxy.url}/connect?{proxy.url}")
        page.wait_for_function("() => window.ready")
        page.evaluate("enter('lobby')")
    if kind is BareNginx:
        for page in pages:
            page.wait_for_function("() => here.peers.size === 1")
    else:
        pages[0].wait_for_function("() => seen.some(([name]) => name === 'close')")
        (name, message, *_) = pages[0].evaluate("seen")[0]
        assert name == "error"
        assert "A proxy" in message
