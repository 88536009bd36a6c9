"""Who the client is and what it called this server: only trusted proxies are believed."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_signal.forwarded import client_address, own_origin, trusted

NOBODY = ()
PROXIES = tuple(map(ipaddress.ip_network, ["127.0.0.1", "10.0.0.0/8", "2001:db8::/32"]))


@pytest.mark.parametrize(
    ("address", "is_trusted"),
    [
        ("127.0.0.1", True),
        ("127.0.0.2", False),
        ("10.255.0.1", True),
        ("11.0.0.1", False),
        ("2001:db8::1", True),
        ("2001:DB8:0::0001", True),
        ("2001:db9::1", False),
        ("::ffff:10.0.0.1", True),  # how a listener on all of IPv6 sees IPv4
        ("::ffff:11.0.0.1", False),
        ("", False),
        ("localhost", False),
        ("10.0.0.1:80", False),
        ("010.0.0.1", False),
    ],
)
def test_trusted(address, is_trusted):
    """An address is trusted if one of the networks holds it, however it is written; what is none, never."""
    assert trusted(address, PROXIES) is is_trusted
    assert not trusted(address, NOBODY)


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "client"),
    [
        ("192.0.2.1", None, "192.0.2.1"),
        ("192.0.2.1", "198.51.100.7", "192.0.2.1"),  # not a proxy of ours: not believed
        ("127.0.0.1", None, "127.0.0.1"),
        ("127.0.0.1", "", "127.0.0.1"),
        ("127.0.0.1", "198.51.100.7", "198.51.100.7"),
        ("127.0.0.1", "203.0.113.5, 198.51.100.7", "198.51.100.7"),  # the client said 203.…, the proxy 198.…
        ("127.0.0.1", "203.0.113.5, 198.51.100.7, 10.1.1.1", "198.51.100.7"),
        ("127.0.0.1", "203.0.113.5,198.51.100.7 ,\t10.1.1.1,10.2.2.2", "198.51.100.7"),
        ("127.0.0.1", "10.1.1.1, 10.2.2.2", "10.1.1.1"),  # proxies all the way
        ("127.0.0.1", "198.51.100.7, nonsense, 10.1.1.1", "10.1.1.1"),
        ("127.0.0.1", "nonsense", "127.0.0.1"),
        ("127.0.0.1", ", ,", "127.0.0.1"),
        ("2001:db8::9", "2001:DB9:0:0::7", "2001:db9::7"),  # one spelling for each
        ("::ffff:127.0.0.1", "198.51.100.7", "198.51.100.7"),
    ],
)
def test_client_address(peer, forwarded_for, client):
    """The client is the right-most address that is not a trusted proxy; without proxies, the peer."""
    headers = {} if forwarded_for is None else {"X-Forwarded-For": forwarded_for}
    assert client_address(peer, headers, iter(PROXIES)) == client
    assert client_address(peer, headers, NOBODY) == peer


@given(st.text(), st.lists(st.sampled_from(["10.1.1.1", "127.0.0.1"]), max_size=3))
def test_nothing_that_a_client_says_passes_for_another(said, hops):
    """Whatever a client writes, the address that the outermost proxy saw is the one that counts."""
    line = ", ".join([said, "198.51.100.7", *hops])
    assert client_address("127.0.0.1", {"X-Forwarded-For": line}, PROXIES) == "198.51.100.7"


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
        ("10.0.0.1", {"Host": "h", "X-Forwarded-Host": "a, b"}, None),
        ("192.0.2.1", {}, None),
        ("192.0.2.1", {"Host": ""}, None),
        ("192.0.2.1", {"Host": "user@example.org"}, None),
        ("192.0.2.1", {"Host": "example.org/path"}, None),
        ("192.0.2.1", {"Host": "example.org:"}, None),
        ("192.0.2.1", {"Host": "example.org\n"}, None),
        ("192.0.2.1", {"Host": "exämple.org"}, None),
    ],
)
def test_own_origin(peer, headers, origin):
    """The server's own origin is what the client called it, through a trusted proxy what that one was called."""
    assert own_origin("http", peer, headers, PROXIES) == origin
