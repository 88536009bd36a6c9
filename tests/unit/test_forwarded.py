"""Addresses of clients and the own origin: only trusted proxies name them. Requests of the last minutes by name."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tornado.httputil import HTTPHeaders

from tornado_signal.limits import recent as recently
from tornado_signal.limits.forwarded import client_address, own_origin, trusted
from tornado_signal.limits.per_address import Limits
from tornado_signal.limits.recent import MAX_NAMES, OTHERS, Counts, RecentCounts, network_of, with_networks
from tornado_signal.settings.settings import Settings

NO_PROXIES = ()
PROXIES = tuple(map(ipaddress.ip_network, ["127.0.0.1", "10.0.0.0/8", "2001:db8::/32", "fe80::/10"]))
LOCAL = (*PROXIES, "unix")


def test_only_addresses_of_trusted_networks_are_trusted():
    trusted_addresses = ["127.0.0.1", "10.255.0.1", "2001:db8::1", "2001:DB8:0::0001", "fe80::1%eth0"]
    trusted_addresses.append("::ffff:10.0.0.1")  # an IPv4 client of a dual-stack IPv6 listener
    untrusted_addresses = ["127.0.0.2", "11.0.0.1", "2001:db9::1", "::ffff:11.0.0.1", "", "unix", "unix:", "localhost"]
    untrusted_addresses += ["10.0.0.1:80", "010.0.0.1"]
    expected = dict.fromkeys(trusted_addresses, True) | dict.fromkeys(untrusted_addresses, False)
    assert {address: trusted(address, PROXIES) for address in expected} == expected
    assert not any(trusted(address, NO_PROXIES) for address in expected)
    by_name = [("", ("unix",)), ("", LOCAL), ("10.0.0.1", LOCAL), ("127.0.0.1", ("unix",)), ("unix", ("unix",))]
    assert [trusted(address, networks) for address, networks in by_name] == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "client"),
    [
        ("192.0.2.1", "", "192.0.2.1"),
        ("192.0.2.1", "198.51.100.7", "192.0.2.1"),  # not a trusted proxy: the header is ignored
        ("127.0.0.1", "", "127.0.0.1"),
        ("127.0.0.1", "198.51.100.7", "198.51.100.7"),
        ("127.0.0.1", "203.0.113.5, 198.51.100.7", "198.51.100.7"),  # the client sent 203.…, the proxy appended 198.…
        ("127.0.0.1", "203.0.113.5, 198.51.100.7, 10.1.1.1", "198.51.100.7"),
        ("127.0.0.1", "203.0.113.5,198.51.100.7 ,\t10.1.1.1,10.2.2.2", "198.51.100.7"),
        ("127.0.0.1", "10.1.1.1, 10.2.2.2", "10.1.1.1"),  # only trusted proxies
        ("127.0.0.1", "198.51.100.7, nonsense, 10.1.1.1", "10.1.1.1"),
        *[("127.0.0.1", line, "127.0.0.1") for line in ("", "nonsense", ", ,", f"203.0.113.5, {'0' * 100_000}1")],
        *[("127.0.0.1", f"203.0.113.5, {hop}", "127.0.0.1") for hop in ("[fe80::1", "10.1.1.1:", "10.1.1.1:123456")],
        ("2001:db8::9", "2001:DB9:0:0::7", "2001:db9::7"),  # addresses are normalized
        ("::ffff:127.0.0.1", "198.51.100.7", "198.51.100.7"),
        ("127.0.0.1", "::ffff:198.51.100.7", "198.51.100.7"),
        ("127.0.0.1", "203.0.113.5, ::ffff:10.1.1.1", "203.0.113.5"),
        ("127.0.0.1", "::ffff:c633:6407", "198.51.100.7"),
        ("127.0.0.1", "203.0.113.5, 64:ff9b::198.51.100.7", "198.51.100.7"),  # NAT64
        ("127.0.0.1", "203.0.113.5, 2002:c633:6407:1:2::3", "198.51.100.7"),  # 6to4
        *(("127.0.0.1", f"203.0.113.5, {each}", each) for each in ("64:ff9b::a00:1", "2002:7f00:1::", "64:ff9b:1::1")),
        ("127.0.0.1", "198.51.100.7:4711", "198.51.100.7"),  # some proxies append the port
        ("127.0.0.1", "[2001:db9::7]:4711", "2001:db9::7"),
        ("127.0.0.1", "[2001:db9::7]", "2001:db9::7"),
        ("127.0.0.1", "203.0.113.5, [2001:db8::7]:4711, 10.1.1.1:80", "203.0.113.5"),
        ("127.0.0.1", "2001:db9::7:4711", "2001:db9::7:4711"),  # without brackets there is no port
        ("127.0.0.1", "203.0.113.5, fe80::1%eth0", "203.0.113.5"),
        ("127.0.0.1", "fec0::1%" + "x" * 20, "fec0::1"),  # the zone is dropped
        ("127.0.0.1", "203.0.113.5, [127.0.0.1]", "203.0.113.5"),
        ("127.0.0.1", "203.0.113.5, unknown, 10.1.1.1", "10.1.1.1"),  # written by Squid
        ("127.0.0.1", "203.0.113.5, unix:", "unix"),  # Unix sockets are not trusted in this test
    ],
)
def test_client_is_the_rightmost_untrusted_address(peer, forwarded_for, client):
    assert client_address(peer, forwarded_for, PROXIES) == client
    assert client_address(peer, forwarded_for, NO_PROXIES) == peer.removeprefix("::ffff:")


def test_client_behind_a_unix_socket():
    clients = {
        ("", NO_PROXIES): "unix",
        ("", PROXIES): "unix",
        ("", LOCAL): "198.51.100.7",
        ("", ("unix",)): "10.1.1.1",
    }
    clients |= {("127.0.0.1", LOCAL): "198.51.100.7", ("127.0.0.1", ("unix",)): "127.0.0.1"}
    line = "203.0.113.5, 198.51.100.7, unix:, 10.1.1.1"
    assert {(peer, proxies): client_address(peer, line, proxies) for peer, proxies in clients} == clients
    assert all(client_address(peer, "", proxies) == (peer or "unix") for peer, proxies in clients)


def test_forwarded_addresses_are_kept_until_other_settings():
    limits = Limits(Settings(trusted_proxies=PROXIES))
    assert [limits.client_address("127.0.0.1", "198.51.100.7") for _ in range(2)] == ["198.51.100.7"] * 2
    assert limits.client_address("192.0.2.1", "198.51.100.7") == "192.0.2.1"
    limits.apply(Settings())
    assert limits.client_address("127.0.0.1", "198.51.100.7") == "127.0.0.1"


def test_last_of_repeated_headers_is_used():
    headers = HTTPHeaders({"Host": "h"})
    lines = [("For", "203.0.113.5, 203.0.113.6"), ("For", "198.51.100.7"), ("Proto", "gopher"), ("Proto", "https")]
    for name, value in [*lines, ("Host", "forged.example"), ("Host", "app.example")]:
        headers.add(f"X-Forwarded-{name}", value)
    assert client_address("127.0.0.1", headers["X-Forwarded-For"], PROXIES) == "198.51.100.7"
    assert own_origin("http", "127.0.0.1", headers, PROXIES) == "https://app.example"


@given(st.text(), st.lists(st.sampled_from(["10.1.1.1", "127.0.0.1"]), max_size=3))
def test_client_cannot_forge_its_address(forged, hops):
    line = ", ".join([forged, "198.51.100.7", *hops])
    assert client_address("127.0.0.1", line, PROXIES) == "198.51.100.7"
    assert client_address("", line + ", unix:", LOCAL) == "198.51.100.7"


@pytest.mark.parametrize(
    ("peer", "headers", "origin"),
    [
        ("192.0.2.1", {"Host": "example.org"}, "http://example.org"),
        ("192.0.2.1", {"Host": "example.org:8080"}, "http://example.org:8080"),
        ("192.0.2.1", {"Host": "[::1]:8080"}, "http://[::1]:8080"),
        ("192.0.2.1", {"Host": "h", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "x"}, "http://h"),
        ("10.0.0.1", {"Host": "h", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "x"}, "https://x"),
        ("10.0.0.1", {"Host": "h", "X-Forwarded-Proto": "https"}, "https://h"),
        ("10.0.0.1", {"Host": "h", "X-Forwarded-Proto": "gopher"}, "http://h"),
        ("10.0.0.1", {"Host": "h", "X-Forwarded-Proto": "http,https", "X-Forwarded-Host": "a, b"}, "https://b"),
        ("10.0.0.1", {"Host": "h", "X-Forwarded-Host": "a, "}, None),
        ("10.0.0.1", {"Host": "h", "X-Forwarded-Host": "[2001:db8::1]:8443"}, "http://[2001:db8::1]:8443"),
        ("", {"Host": "h", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "x"}, "http://h"),
        ("192.0.2.1", {}, None),
        *[("192.0.2.1", {"Host": host}, None) for host in ("", "user@example.org", "example.org/path", "exämple.org")],
        *[("192.0.2.1", {"Host": host}, None) for host in ("example.org:", "example.org\n")],
    ],
)
def test_own_origin_uses_headers_of_trusted_proxies_only(peer, headers, origin):
    assert own_origin("http", peer, headers, PROXIES) == origin


@pytest.fixture
def recent():
    return RecentCounts(network_of, OTHERS)


def count(recent, name, *statuses):
    for status in statuses:
        recent.count(name, status)


def test_counts_are_those_of_five_minutes_and_of_the_last_one(recent):
    count(recent, "192.0.2.1", 200, 404, 429, 503)
    for _ in range(recently.MINUTE):
        recent.rotate()
        assert recent.totals() == {"192.0.2.1": (Counts(4, 2, 1), Counts(4, 2, 1))}
    recent.rotate()
    count(recent, "192.0.2.1", 0)
    assert recent.totals() == {"192.0.2.1": (Counts(5, 2, 1), Counts(1, 0, 0))}
    for _ in range(recently.SLICES):
        recent.rotate()
    assert recent.totals() == {"192.0.2.1": (Counts(1, 0, 0), Counts(0, 0, 0))}
    recent.rotate()
    assert recent.totals() == {}


def test_clients_of_a_large_network_are_merged_and_replace_no_client(recent):
    for _ in range(20):
        count(recent, "192.0.2.1", *[200] * 20)
        for number in range(600):
            count(recent, f"2001:db8:1:{number:x}::/64", 429)
            assert len(recent._current) <= MAX_NAMES
        recent.rotate()
        assert len(recent._complete[-1]) <= 2 * recently.KEPT
    totals = recent.totals()
    assert totals["192.0.2.1"][0] == Counts(400, 0, 0)
    shown = with_networks(totals)
    assert shown["2001:db8:1::/48"][0] == Counts(12_000, 12_000, 0)


def test_clients_of_very_many_networks_are_merged(recent):
    for number in range(2000):
        count(recent, f"10.{number // 250}.{number % 250}.7", 200)
        assert len(recent._current) <= MAX_NAMES
    recent.rotate()
    totals = recent.totals()
    assert sum(all_.requests for all_, _ in totals.values()) == 2000
    assert totals[OTHERS][0].requests > 1000


def test_networks_with_several_clients_are_shown_as_one():
    one = (Counts(2, 1, 0), Counts(1, 0, 0))
    shown = with_networks({f"192.0.2.{number}": one for number in range(3)} | {"198.51.100.1": one, "": one})
    assert shown["192.0.2.0/24"] == (Counts(6, 3, 0), Counts(3, 0, 0))
    assert shown.keys() - {"192.0.2.0", "192.0.2.1", "192.0.2.2"} == {"192.0.2.0/24", "198.51.100.1", ""}
    networks = dict.fromkeys(("192.0.2.0/24", "2001:db8:1::/48", "", OTHERS), OTHERS)
    networks |= {"192.0.2.1": "192.0.2.0/24", "2001:db8:1:2::/64": "2001:db8:1::/48", "2001:db8::1": "2001:db8::/48"}
    assert {name: network_of(name) for name in networks} == networks
