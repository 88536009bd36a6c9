"""Successful responses of the endpoints: texts, topics, pages, codes, secrets, the topic nearby and ICE servers."""

import base64
import hashlib
import hmac
import ipaddress
import itertools
import re

import pytest
from support.browsers import TURN_SECRET as SECRET
from support.rpc import open_socket
from support.service import NOW_MS, ORIGIN, OTHER, TRANSPORTS, refused

from tornado_signal.errors import OperatorError
from tornado_signal.service.ice import read_ice_servers
from tornado_signal.settings.settings import Settings

TEXTS = ["x", "\0", '"\\\n\u2028', "😀" * 1024, "\x7f\x1f", "é" * 1024, " ", "null", "x" * 1024]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_strings_are_returned_unchanged_codes_are_case_insensitive_and_null_means_absent(service):
    for number, text in enumerate(TEXTS):
        code = await service.offer(str(number), info=text, offer=text)
        candidates = [text, text, text + "!"]
        for side, candidate in itertools.product(("offerer", "answerer"), candidates):
            await service.post("/answer", code=code.upper(), side=side, answer=None, candidate=candidate)
        (listed,) = await service.sessions(str(number))
        assert (listed["info"], listed["offer"], listed["offerCandidates"]) == (text, text, candidates)
        await service.post("/answer", code=code.upper(), side="answerer", answer=text, candidate=None)
        answered = await service.post("/poll", code=code, side="offerer")
        offered = await service.post("/poll", code=code, side="answerer")
        assert answered == {"answer": text, "answerCandidates": candidates}
        assert offered == {"offer": text, "offerCandidates": candidates}


async def test_page_has_100_topics_by_default_and_at_most_1000(service):
    for number in range(1005):
        await service.store.create(ORIGIN, f"{number:04}", "i", "o")
    for query, page, limit in [
        *(("", 1, 100), ("?page=1", 1, 100), ("?limit=1000", 1, 1000), (f"?limit={2**53}", 1, 1000)),
        *(("?page=2&limit=1001", 2, 1000), (f"?page={2**53}", 2**53, 100), (f"?page={2**53}&limit=1000", 2**53, 1000)),
        *(("?page=002&limit=0005", 2, 5), ("?page=201&limit=5", 201, 5)),
        *(("?limit=5&other=x&page=2", 2, 5), ("?p%61ge=2&limit=%35", 2, 5)),
    ]:
        result = await service.get("/topics" + query)
        assert len(result["topics"]) == max(0, min(limit, 1005 - (page - 1) * limit)), query
        expected = {"page": page, "limit": limit, "total": 1005, "hasMore": page * limit < 1005}
        assert result["pagination"] == expected, query


async def test_database_stores_hashes_of_secrets_only(service, tmp_path):
    secrets = {"offerer": "the offerer's secret", "answerer": "the answerer's secret 😀"}
    offer = await service.post("/lobby/offer", info="i", offer="o", secret=secrets["offerer"])
    for side, fields in (("answerer", {"answer": "a"}), ("offerer", {"candidate": "c"})):
        await service.post("/answer", code=offer["code"], side=side, secret=secrets[side], **fields)
    body = {"code": offer["code"], "side": "offerer", "secret": "a secret that is wrong"}
    assert (await service.call("POST", "/refresh", body)).status == 404
    await service.close_store()
    stored = b"".join(path.read_bytes() for path in (tmp_path / "data0").iterdir() if path.is_file())
    for secret in secrets.values():
        data = secret.encode()
        assert hashlib.sha256(data).digest() in stored
        assert data not in stored
        assert hashlib.sha256(data).hexdigest().encode() not in stored
    assert b"a secret" not in stored


async def test_session_timeout_is_the_maximum_ttl(start_service):
    service = await start_service(session_timeout_ms=2000)
    assert refused(await service.call("POST", "/lobby/offer", {"info": "i", "offer": "o", "ttl": 2001}))[0] == 400
    for ttl in (None, 2000):
        await service.post("/lobby/offer", info="i", offer="o", ttl=ttl)
    assert {session["expiresAt"] for session in await service.sessions()} == {NOW_MS + 2000}


DAY_MS = 86_400_000


async def nearby(service, address=None, origin=ORIGIN):
    headers = [("X-Forwarded-For", address)] if address else []
    return (await service.get("/nearby", origin=origin, headers=headers))["topic"]


async def test_topic_belongs_to_a_network_an_origin_and_a_store(start_service):
    loopback = (ipaddress.ip_network("127.0.0.1"),)
    service, other = [await start_service(trusted_proxies=loopback) for _ in range(2)]
    behind = ["1.1.1.1, 8.8.8.8", "fe80::1, 8.8.8.8"]
    networks = [
        ["8.8.8.8", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808:5::1", *behind],
        ["8.8.8.9"],
        ["2a00:1450:1:2::1", "2a00:1450:1:2:ffff:ffff:ffff:ffff"],
        ["2a00:1450:1:3::1"],
        ["192.168.1.2", "10.0.0.1", "fd00::1", "fe80::1", "127.0.0.1", "::1"],
        *(["100.64.0.1"], ["100.64.0.2"]),  # of a carrier
    ]
    topics = [await nearby(service, "8.8.8.8", OTHER), await nearby(other, "8.8.8.8")]
    for addresses in networks:
        (topic,) = {await nearby(service, address) for address in addresses}
        topics.append(topic)
    assert all(re.fullmatch("nearby-[0-9a-f]{32}", topic) for topic in topics)
    assert len({*topics}) == len(topics)
    assert len(service.store.secret) == 32
    async with open_socket(service) as client:
        assert await client.call("nearby") == {"topic": await nearby(service, "127.0.0.1")}


async def test_address_cannot_be_forged_and_clients_behind_an_unknown_proxy_have_no_network(start_service):
    trusting = {"trusted_proxies": (ipaddress.ip_network("10.0.0.0/8"),), "unlimited_addresses": ()}
    service = await start_service(**trusting)
    assert await nearby(service, "8.8.8.8") == await nearby(service, "8.8.4.4")
    for settings in ({}, {"nearby": False}):
        service = await start_service(**settings)
        for headers in ([("X-Forwarded-For", "8.8.8.8")], []):
            assert refused(await service.call("GET", "/nearby", headers=headers)) == (404, "Not found")
    async with open_socket(service) as client:
        assert (await client.refused("nearby"))[0] == 404


@pytest.mark.parametrize("prefix", ["", "room~", "pair~"])
async def test_topic_changes_daily_without_separating_those_in_it(prefix, service):
    service.clock.ms = first_ms = (NOW_MS // DAY_MS + 1) * DAY_MS
    before = await nearby(service)
    service.clock.ms += DAY_MS - 1
    assert await nearby(service) == before
    code = await service.offer(prefix + before)
    service.clock.ms = first_ms + DAY_MS
    assert await nearby(service) == before
    after = await nearby(service, origin=OTHER)
    await service.post("/withdraw", code=code, side="offerer")
    assert await nearby(service) not in (before, after)
    await service.offer(prefix + before)
    service.clock.ms = first_ms + 2 * DAY_MS
    await service.offer(prefix + before)
    assert await nearby(service) != before


STUN = ("stun:stun.example:3478", "stun:[2001:db8::1]")
TURN = ("turn:turn.example:3478?transport=udp", "turns:turn.example")


async def test_ice_servers_expire_and_those_of_turn_have_timed_passwords(start_service, secret_file, monkeypatch):
    urls = ["stun:stun.cloudflare.com:3478", "stun:stun.l.google.com:19302"]
    for settings, servers in (({}, [{"urls": urls}]), ({"stun_servers": ()}, [])):
        service = await start_service(**settings)
        assert await service.get("/ice-servers") == {"iceServers": servers, "expiresAt": NOW_MS + DAY_MS}
    service = await start_service(stun_servers=STUN, turn_servers=TURN, turn_secret_file=secret_file, turn_ttl_s=600)
    service.clock.ms += 999
    response = await service.call("GET", "/ice-servers")
    assert response.headers["Cache-Control"] == "no-store"
    username = response.json["iceServers"][1]["username"]
    assert re.fullmatch(f"{NOW_MS // 1000 + 600}:[0-9a-f]{{16}}", username)
    credential = base64.b64encode(hmac.new(SECRET.encode(), username.encode(), hashlib.sha1).digest()).decode()
    turn = {"urls": list(TURN), "username": username, "credential": credential}
    assert response.json == {"iceServers": [{"urls": list(STUN)}, turn], "expiresAt": NOW_MS + 600_000}
    service.clock.ms += 1
    names = {(await service.get("/ice-servers"))["iceServers"][1]["username"] for _ in range(10)}
    assert {name.partition(":")[0] for name in names} == {str(NOW_MS // 1000 + 601)}
    assert len(names) == 10  # a TURN server counts what each of them uses
    # A clock of the store that was ahead once must not sign passwords that are valid for longer.
    monkeypatch.setattr(service.clock, "wall_s", lambda: NOW_MS / 1000)
    service.clock.ms += 30 * DAY_MS
    response = await service.get("/ice-servers")
    assert response["expiresAt"] == NOW_MS + 600_000
    assert response["iceServers"][1]["username"].startswith(f"{NOW_MS // 1000 + 600}:")


def test_unusable_secret_is_refused_and_not_shown(secret_file, tmp_path):
    with pytest.raises(OperatorError, match="nowhere"):
        read_ice_servers(Settings(turn_servers=TURN, turn_secret_file=tmp_path / "nowhere"))
    for text in ("", "\n", "too short", "one line of sixteen\nand another"):
        secret_file.write_text(text)
        with pytest.raises(OperatorError, match="must hold one line") as caught:
            read_ice_servers(Settings(turn_servers=TURN, turn_secret_file=secret_file))
        assert not text.strip() or text not in str(caught.value)
