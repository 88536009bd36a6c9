"""Tokens: what they allow over each protocol, and how invalid ones are refused (docs/authorization.md)."""

import asyncio
import base64
import contextlib
import functools
import hashlib
import hmac
import itertools
import json
import logging
import math
import sys
from urllib.parse import urlencode

import hypothesis
import jwt
import pytest
from hypothesis import strategies as st
from support.nostr import make_event
from support.paths import TESTS
from support.peerjs import connect_peer, open_peer
from support.rpc import BOUND_S, RpcClient, open_socket, until
from support.service import ORIGIN, connected, refused, request, segment
from support.sse import open_stream
from support.tokens import MAKERS, SECRET, make_token, private_pem, public_pem, write_secret
from support.y_webrtc import RawClient
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tornado_signal.auth import ACTIONS, Authority, authority, grants, load_keys
from tornado_signal.errors import OperatorError, Unauthorized
from tornado_signal.settings.settings import Settings

UNAUTHORIZED = (401, "Missing or invalid token")
NOT_ALLOWED = (403, "Not allowed by the token")
OFFER = {"info": "me", "offer": "an offer"}
OTHER_SECRET = b"another secret, which stays as it is"


@pytest.fixture
def keys(tmp_path):
    """A folder of links to a key, as in Kubernetes."""
    keys = tmp_path / "keys"
    (keys / "..data").mkdir(parents=True)
    write_secret(keys / "..data")
    (keys / "main.secret").symlink_to("..data/main.secret")
    return keys


@pytest.fixture
def protected(start_service, keys):
    return functools.partial(start_service, auth_keys=keys)


@pytest.fixture
def service(io_loop, protected):
    return io_loop.run_sync(lambda: protected(peerjs_discovery=True))


def bearer(token):
    return [("Authorization", f"Bearer {token}")]


def now_s(service):
    return service.clock.ms / 1000


def token_of(service, life_s=600, **claims):
    return make_token({"exp": now_s(service) + life_s, **claims})


async def call(service, method, target, body=None, token=None, **options):
    headers = bearer(token) if token else ()
    return await service.call(method, target, body, headers=headers, **options)


async def status_of(service, token, target="/topics"):
    return (await call(service, "GET", target, token=token)).status


def connect_raw(service, path):
    return RawClient(f"ws://127.0.0.1:{service.port}{path}", ORIGIN)


@contextlib.asynccontextmanager
async def authorized(service, token, origin=ORIGIN):
    async with open_socket(service, origin) as client:
        await client.call("authorize", token=token)
        yield client


def send_batch(client, calls):
    """Send methods with their parameters, and return the future of the responses."""
    batch = [{"jsonrpc": "2.0", "id": id_, "method": name, "params": each} for id_, (name, each) in enumerate(calls)]
    return client.send_raw(batch, json.dumps([*range(len(calls))]))


async def test_without_keys_tokens_are_ignored(start_service):
    service = await start_service()
    assert (await call(service, "POST", "/lobby/offer", OFFER, token="nonsense")).status == 200
    async with open_socket(service) as client:
        assert await client.call("authorize", token="nonsense") == {"expiresAt": None}
        assert await client.refused("authorize") == (400, "Missing or invalid required parameter: token")


# Required tokens


async def test_public_paths_and_preflights_need_no_token(service):
    for target, headers in itertools.product(("/", "/health", "/openapi.json", "/client.js"), ((), bearer("nonsense"))):
        assert (await service.raw(request("GET", target, headers=headers))).status == 200
    preflight = [("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "authorization")]
    response = await service.call("OPTIONS", "/lobby/offer", headers=preflight)
    assert (response.status, response.headers["Access-Control-Allow-Headers"]) == (204, "authorization")


async def test_token_comes_once_as_bearer_in_any_case_or_in_the_query_of_a_stream(service):
    good, bad = token_of(service), "nonsense"
    for scheme in ("Bearer", "bearer", "BEARER"):
        headers = [("Authorization", f"{scheme} {good}")]
        assert (await service.call("GET", "/topics", headers=headers)).status == 200
    basic = await service.call("GET", "/topics", headers=[("Authorization", "Basic dTpw")])
    assert refused(basic) == UNAUTHORIZED
    assert service.shared.log.metrics.refusals[401, "token missing"] == 1
    for tokens in ((good, bad), (bad, good), (good, good)):
        headers = [header for token in tokens for header in bearer(token)]
        assert refused(await service.call("GET", "/topics", headers=headers)) == UNAUTHORIZED
    for in_header, in_query, status in ((good, [bad], 200), (bad, [good], 401), (None, [bad, good], 401)):
        target = f"/lobby/events?{urlencode({'token': in_query}, doseq=True)}"
        async with open_stream(service.port, target, headers=bearer(in_header) if in_header else ()) as stream:
            assert stream.status == status
    query = urlencode({"token": good})
    for target in ("/topics", "/lobby/sessions", "/ice-servers"):
        assert refused(await call(service, "GET", f"{target}?{query}")) == UNAUTHORIZED
    async with RpcClient(f"ws://127.0.0.1:{service.port}/ws?{query}", ORIGIN) as client:
        assert await client.refused("topics") == UNAUTHORIZED


async def test_refused_authorization_keeps_the_earlier_rights_and_one_with_fewer_closes_the_connection(protected):
    service = await protected(auth_anonymous=("list",))
    async with open_socket(service) as client:
        assert await client.refused("authorize", token="nonsense") == UNAUTHORIZED
        await client.call("topics")
        assert await client.refused("offer", topic="lobby", **OFFER) == UNAUTHORIZED
        await client.call("authorize", token=token_of(service, actions=["offer"]))
        assert await client.refused("authorize", token="nonsense") == UNAUTHORIZED
        await client.call("offer", topic="lobby", **OFFER)
        assert await client.refused("topics") == NOT_ALLOWED
    async with authorized(service, token_of(service, topics=["a"])) as client:
        await client.call("authorize", token=token_of(service, topics=["b"]))
        assert await client.refused("subscribe", topic="a") == NOT_ALLOWED
        await client.call("subscribe", topic="b")
        await client.call("authorize", token=token_of(service, topics=["b", "c*"]))
        await client.call("authorize", token=token_of(service, topics=["b", "cc*"]))
        assert await client.close_frame() == (1008, "token with fewer rights")


async def test_batch_is_authorized_in_its_order(service):
    calls = [("topics", {}), ("offer", {"topic": "lobby", **OFFER}), ("iceServers", {})]
    calls += [("authorize", {"token": token_of(service)}), *calls]
    async with open_socket(service) as client:
        response = send_batch(client, calls)
        codes = [each.get("error", {}).get("code", 200) for each in await asyncio.wait_for(response, BOUND_S)]
    assert codes == [401, 401, 401, 200, 200, 200, 200]


async def test_token_may_come_with_the_handshake_and_credentials_of_a_proxy_do_not_refuse_it(service):
    async with open_socket(service, additional_headers=dict(bearer(token_of(service)))) as client:
        await client.call("topics")
    with pytest.raises(InvalidStatus, match="401"):
        await open_socket(service, additional_headers=dict(bearer("nonsense"))).__aenter__()
    for value in ("Basic dTpw", "Bearer", "Bearer "):
        async with open_socket(service, additional_headers={"Authorization": value}) as client:
            assert await client.refused("topics") == UNAUTHORIZED
            await client.call("authorize", token=token_of(service))
            await client.call("topics")


def is_allowed(claims, action, topic, info=None):
    actions = claims.get("actions", ACTIONS)
    patterns = claims.get("topics", ["*"])
    covered = any(topic.startswith(each[:-1]) if each.endswith("*") else topic == each for each in patterns)
    return action in actions and covered and claims.get("info", info) in (None, info)


async def published_code(service, topic):
    """Publish an offer in a topic as a client with all rights, and return its code."""
    return (await call(service, "POST", f"/{topic}/offer", OFFER, token=token_of(service))).json["code"]


HASHES = ["a" * 20, "ab" * 10, "\xff" * 20]  # info_hashes, whose topics are also ids, rooms and topics in this test
NAMES = [text.encode("latin-1").hex() for text in HASHES]
NUMBERS = itertools.count()
CLAIMED_NAMES = st.fixed_dictionaries(
    {},
    optional={
        "actions": st.lists(st.sampled_from(ACTIONS), unique=True, min_size=1),
        "topics": st.lists(st.sampled_from([*NAMES, "61*", "6162*", "ff*", "*"]), max_size=3),
        "info": st.sampled_from([NAMES[0], "me"]),
    },
)


def messages_of(name, info_hash):
    """Yield messages of other protocols: the target, what is sent, the number of responses, and the rights it needs."""
    announcement = {"action": "announce", "info_hash": info_hash, "peer_id": "p" * 20, "left": 1}
    answer = announcement | {"answer": {}, "to_peer_id": "p" * 20, "offer_id": "o"}  # has no response of its own
    peer, ping, both = f"/peerjs?id={name}&key=key-{next(NUMBERS)}&", {"type": "ping"}, ["offer", "answer"]
    for more in ({"topics": [name]}, {"topic": name}):
        yield "/y-webrtc?", [{"type": "subscribe", **more}, ping], 1, ["list"]
    for more in ({"data": 1}, {"payload": 1}):
        yield "/y-webrtc?", [{"type": "publish", "topic": name, **more}, ping], 1, both
    yield "/tracker?", [announcement | {"event": "started"}], 1, ["offer"]
    yield "/tracker?", [{"action": "scrape", "info_hash": info_hash}], 1, ["list"]
    yield "/tracker?", [answer, {"action": "none"}], 1, ["answer"]
    yield "/nostr?", [["REQ", "a", {"#x": [name]}]], 1, ["list"]
    yield "/nostr?", [["EVENT", make_event(name)]], 1, both
    yield peer, [], 1, ["id"]
    for kind, needs in {"OFFER": ["id"], "ANSWER": ["id", "answer"], "CANDIDATE": ["id", "answer"]}.items():
        yield peer, [{"type": kind, "dst": name, "payload": kind}], 2, needs


async def works(service, target, messages, count, denied):
    """Return whether messages get their responses. Otherwise the last one, or the close reason, must be `denied`."""
    received = []
    async with connect_raw(service, target) as client:
        with contextlib.suppress(ConnectionClosed):  # if an id is refused
            for message in messages:
                await client.send(message)
        with contextlib.suppress(ConnectionClosed):
            while len(received) < count:
                received.append(await client.receive())
    match received:
        case [*_, {"failure reason": reason} | {"type": "ERROR", "payload": {"msg": reason}}]:
            assert reason == denied
        case [*_, ["CLOSED", _, reason] | ["OK", _, False, reason]]:
            assert reason == f"restricted: {denied}"
        case _ if len(received) < count:
            assert (client.socket.close_code, client.socket.close_reason) == (1008, denied.lower())
        case _:
            return True
    return False


@hypothesis.settings(max_examples=12, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.example(claims={"topics": [NAMES[2]]}, index=2)
@hypothesis.example(claims={"topics": ["6162*"]}, index=1)
@hypothesis.example(claims={"info": "me"}, index=0)
@hypothesis.given(claims=CLAIMED_NAMES, index=st.sampled_from(range(len(HASHES))))
def test_same_is_allowed_over_other_protocols(claims, index, io_loop, service):
    name = NAMES[index]

    async def compare():
        token = token_of(service, **claims)
        allowed = {action: is_allowed(claims, action, name, claims.get("info")) for action in ACTIONS}
        allowed["id"] = is_allowed(claims, "offer", name, name)
        for target, messages, count, needs in messages_of(name, HASHES[index]):
            expected = all(allowed[each] for each in needs)
            url = target + urlencode({"token": token})
            assert await works(service, url, messages, count, NOT_ALLOWED[1]) == expected, messages
        listed = await service.raw(request("GET", "/peerjs/peers", headers=bearer(token)))
        assert (listed.status == 200) == ("list" in claims.get("actions", ACTIONS))

    io_loop.run_sync(compare, timeout=BOUND_S)


@pytest.mark.parametrize("anonymous", [(), ("list",), ("offer",), ("offer", "answer")])
async def test_same_is_allowed_without_a_token_over_every_protocol_and_an_invalid_one_is_refused(anonymous, protected):
    service, name = await protected(auth_anonymous=anonymous), NAMES[0]
    allowed = {action: action in anonymous for action in ACTIONS}
    for target in ("/topics", "/ice-servers"):
        assert refused(await call(service, "GET", target, token="nonsense")) == UNAUTHORIZED
    code = await published_code(service, name)
    async with open_socket(service) as client:
        for action, (method, params) in {
            "list": ("sessions", {"topic": name}),
            "offer": ("offer", {"topic": name, **OFFER}),
            "answer": ("poll", {"code": code, "side": "offerer"}),
        }.items():
            assert ("result" in await client.ask(method, **params)) == allowed[action], action
    for path in ("/y-webrtc", "/tracker", "/nostr", "/peerjs?id=a&key=k&token=t"):
        with contextlib.nullcontext() if anonymous else pytest.raises(InvalidStatus, match="401"):
            async with connect_raw(service, path):
                pass
    for target, messages, count, needs in messages_of(name, HASHES[0]):
        if anonymous and "peerjs" not in target:
            expected = all(allowed[each] for each in needs)
            assert await works(service, target, messages, count, UNAUTHORIZED[1]) == expected, messages


async def test_topics_show_only_those_covered(service):
    names = ["a", "a/1", "a/2", "a/3", "b", "ba", "c", "z\U0001f600", "é", "é%", "é_"]
    for name in names:
        await published_code(service, segment(name))
    patterns = (
        [],
        ["*"],
        ["a/*"],
        ["zz"],
        ["b", "a/*", "a/2", "nothing", "nothing*"],
        ["a*", "a/*", "z*", "é"],
        ["é*"],
    )
    for covered, prefix in itertools.product(patterns, ("", "a", "a/2", "b", "ba", "z", "é", "é%")):
        token = token_of(service, topics=covered)
        expected = [name for name in names if name.startswith(prefix) and is_allowed({"topics": covered}, "list", name)]
        for limit, page in itertools.product((2, 1000), (1, 2)):
            query = f"limit={limit}&page={page}&prefix={segment(prefix)}"
            found = (await call(service, "GET", f"/topics?{query}", token=token)).json
            shown = [topic["topic"] for topic in found["topics"]]
            assert shown == expected[(page - 1) * limit :][:limit], (covered, prefix, limit, page)
            assert found["pagination"]["total"] == len(expected)


# Invalid tokens


def encoded(value):
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def signed(header, payload, secret=SECRET):
    """Return a token of any header and payload, given as objects or as bytes, signed with HS256."""
    text = f"{encoded(header)}.{encoded(payload)}"
    return f"{text}.{encoded(hmac.digest(secret, text.encode(), hashlib.sha256))}"


HEADER = {"alg": "HS256", "typ": "JWT", "kid": "main"}


def invalid_tokens(now):
    """Yield tokens that are invalid, each with the reason in the metrics."""
    claims = {"exp": now + 600}
    head, payload, signature = make_token(claims).split(".")
    repeated = b'{"exp":%d,"topics":["a"],"topics":["*"]}' % (now + 600)
    deep = b'{"exp":%d,"x":%b}' % (now + 600, b"[" * 2000 + b"]" * 2000)
    malformed = ["a", "a.b", "a.b.c", "..", "é.é.é", "a b c", head, f"{head}.{payload}"]
    malformed += [
        signed(HEADER, text) for text in (b"[]", b"{", b"1", b"null", b"\xff", b'{"exp":NaN}', repeated, deep)
    ]
    headers = (b"[]", b"[" * 4000, HEADER | {"kid": 5}, HEADER | {"crit": ["exp"]})
    malformed += [signed(header, claims) for header in headers]
    by_reason = {
        "token malformed": malformed,
        "token too large": [make_token(claims | {"x": "y" * 8192})],
        "token with another signature": [
            f"{head}.{encoded({'exp': now + 10**6})}.{signature}",
            f"{head}.{payload}.",
            make_token(claims, b"another secret of thirty-two bytes..."),
            signed(HEADER | {"alg": "none"}, claims),
            f"{encoded({'alg': 'none', 'kid': 'main'})}.{payload}.",
            jwt.encode(claims, SECRET, "HS512", headers={"kid": "main"}),
            signed(HEADER | {"alg": "RS256"}, claims),
        ],
        "token of an unknown key": [make_token(claims, name=name) for name in ("other", "../main")],
        "token expired": [make_token({"exp": now - 26})],
        "token with exp more than ten years ahead; exp is in seconds": [make_token({"exp": 1000 * now})],
        "token not valid yet": [make_token(claims | {name: now + 61}) for name in ("nbf", "iat")],
        "token without exp": [make_token({"sub": "a"})],
    }
    wrong = {
        "topics": ["a", [1], [""], ["x" * 258], [None], {"a": 1}, None],
        "actions": ["list", ["all"], [1], [["list"]], None],
        "info": ["", "x" * 1025, 5, None],
        "origin": [5, "", ["https://a"], None],
        "sub": [5, None, ""],
        "nbf": ["soon", True, -1, None],
        "iat": [[], False],
        "exp": ["never", True, None, -5, 2**60],
    }
    for name, values in wrong.items():
        by_reason[f"token with invalid {name}"] = [signed(HEADER, claims | {name: value}) for value in values]
    for reason, tokens in by_reason.items():
        yield from ((reason, token) for token in tokens)


async def test_invalid_token_is_401_and_counted_by_its_reason(service):
    counted = service.shared.log.metrics.tokens
    async with open_socket(service) as client:
        for reason, token in invalid_tokens(int(now_s(service))):
            counted.clear()
            in_text = token.isascii() and len(token) < 8000
            if in_text:
                assert refused(await call(service, "GET", "/topics", token=token)) == UNAUTHORIZED
            assert await client.refused("authorize", token=token) == UNAUTHORIZED
            assert counted == {reason: 1 + in_text}, token
        assert await client.refused("topics") == UNAUTHORIZED
        checking = service.shared.authority
        assert (len(checking._cache), len(checking._bearers)) == (4, 1)  # only signed tokens of other times are kept
    assert service.shared.log.metrics.defects == 0


async def test_clocks_may_differ_a_little_and_a_known_token_is_checked_each_time(service):
    now = now_s(service)
    for claims in ({"exp": now - 20}, {"exp": now + 9, "nbf": now + 20}, {"exp": now + 9.5, "iat": now + 20}):
        assert await status_of(service, make_token(claims)) == 200
    service.shared.authority._cache.clear()
    token, began_ms = token_of(service, nbf=now + 100), service.clock.ms
    for ms, status in ((0, 401), (74_000, 401), (76_000, 200), (624_000, 200), (626_000, 401), (10**6, 401)):
        service.clock.ms = began_ms + ms
        assert await status_of(service, token) == status, ms
    service.clock.ms = began_ms
    assert list(service.shared.authority._cache) == [hashlib.blake2b(token.encode(), digest_size=32).digest()]


@pytest.mark.parametrize("algorithm", ["HS256", *MAKERS])
def test_signature_is_compared_as_a_whole(algorithm, keys, uncollected):
    key = SECRET
    if algorithm in MAKERS:
        key = MAKERS[algorithm]()
        (keys / "main.secret").unlink()
        (keys / "main.pem").write_bytes(public_pem(key))
    verifier = Authority(load_keys(keys), Settings())
    token = make_token({"exp": 100}, key, algorithm=algorithm)
    verifier.verify(token, ORIGIN, 0)
    head, _, signature = token.rpartition(".")

    def steps(at):
        """Return the calls of functions while a signature is verified that differs in one character."""
        changed = "A" if signature[at] != "A" else "B"
        calls = []
        sys.setprofile(lambda frame, event, arg: calls.append((event, getattr(arg, "__name__", frame.f_code.co_name))))
        try:
            with pytest.raises(Unauthorized):
                verifier.verify(f"{head}.{signature[:at]}{changed}{signature[at + 1 :]}", ORIGIN, 0)
        finally:
            sys.setprofile(None)
        return calls

    middle = steps(len(signature) // 2)
    assert steps(1) == steps(len(signature) - 3) == middle
    assert ("c_call", "compare_digest" if algorithm == "HS256" else "verify") in middle


@pytest.mark.parametrize(("claim", "setting"), [("iss", "auth_issuer"), ("aud", "auth_audience")])
async def test_issuer_and_audience(claim, setting, protected):
    service = await protected(**{setting: "us"})
    accepted = ["us", ["us"], ["them", "us"]][: 3 if claim == "aud" else 1]
    for value in (*accepted, "them", ["them"], None, 5):
        token = signed(HEADER, {"exp": now_s(service) + 60, claim: value})
        assert await status_of(service, token) == (200 if value in accepted else 401), value
    assert await status_of(service, token_of(service)) == 401


TOKENS = TESTS / "tokens"  # made by golang-jwt 4.4, and by the classes of OpenJDK 17


@pytest.mark.parametrize(("name", "token"), json.loads((TOKENS / "tokens.json").read_text()).items())
def test_tokens_of_other_languages_verify_and_public_keys_are_no_secrets(name, token):
    verifier = Authority(load_keys(TOKENS / "keys"), Settings())
    grant = verifier.verify(token, ORIGIN, 4_100_000_000)
    assert (grant.subject, grant.key.name) == ("alice", name)
    assert grant.covers("room/1")
    assert not grant.allows("answer")
    head, payload, signature = token.split(".")
    wrong = [f"{head}.{payload[:-2]}AA.{signature}"]
    if (public := TOKENS / "keys" / f"{name}.pem").exists():
        wrong += [signed({"alg": "HS256", "kid": name}, {"exp": 4_200_000_000}, public.read_bytes())]
    for each in wrong:
        with pytest.raises(Unauthorized):
            verifier.verify(each, ORIGIN, 4_100_000_000)


async def test_kid_can_be_omitted_with_a_single_key(keys, start_service):
    for paths, status in ((keys / "main.secret", 200), (write_secret(keys, "second", OTHER_SECRET), 401)):
        service = await start_service(auth_keys=paths)
        assert await status_of(service, jwt.encode({"exp": now_s(service) + 60}, SECRET, "HS256")) == status


def test_invalid_keys_are_explained(tmp_path):
    rsa = MAKERS["RS256"]()
    files = {
        "short.secret": (b"x" * 31, "must hold one line of at least 32 bytes"),
        "two.secret": (b"x" * 40 + b"\n" + b"y" * 40, "must hold one line"),
        "pem.secret": (b"-----BEGIN PUBLIC KEY-----" + b"x" * 40, "name it pem.pem"),
        "private.pem": (private_pem(rsa), "holds a private key"),
        "nonsense.pem": (b"nonsense", "no public key in PEM form"),
        "key.txt": (b"x" * 40, "ends in .secret or .pem"),
        "a b.secret": (b"x" * 40, "letters, digits"),
        "huge.secret": (b"x" * 65_537, "has more than 65536 bytes"),
        "huge.pem": (public_pem(rsa) + b"\n" * 65_536, "has more than 65536 bytes"),
    }
    refused = []
    for name, (content, text) in files.items():
        (folder := tmp_path / f"of {name}").mkdir()
        (folder / name).write_bytes(content)
        refused += [(folder, text), (folder / name, text)]
    (tmp_path / "empty" / "..data").mkdir(parents=True)
    refused += [(tmp_path / "empty", "holds no key"), (tmp_path / "none.secret", "cannot read")]
    for ending in ("secret", "pem"):
        (folder := tmp_path / f"folders of {ending}" / f"a.{ending}").mkdir(parents=True)
        (link := tmp_path / f"broken.{ending}").symlink_to(tmp_path / "nothing")
        refused += [(path, "cannot read the key") for path in (folder.parent, link)]
    (endless := tmp_path / "endless.secret").symlink_to("/dev/zero")
    twice = write_secret(tmp_path / "twice", "a")
    (twice / "a.pem").write_bytes(public_pem(rsa))
    refused += [(endless, "has more than 65536 bytes"), (twice, "two keys named a")]
    for path, text in refused:
        with pytest.raises(OperatorError, match=text):
            Authority(load_keys(path), Settings())


def test_caches_of_tokens_and_of_topics_are_bounded(keys, monkeypatch):
    verifier = Authority(load_keys(keys), Settings())
    monkeypatch.setattr(authority, "MAX_CACHED", 20)
    tokens = [make_token({"exp": 100, "sub": str(number)}) for number in range(30)]
    first = verifier.verify(tokens[0], ORIGIN, 0)
    assert verifier.verify(tokens[0], ORIGIN, 0) is first
    for token in tokens[1:]:
        verifier.verify(token, ORIGIN, 0)
    assert verifier.verify(tokens[0], ORIGIN, 0) is not first
    assert len(verifier._cache) == 20
    monkeypatch.setattr(authority, "MAX_CACHED_BYTES", 1000)
    verifier.verify(tokens[2], ORIGIN, 0)
    assert verifier._cached_bytes == sum(length for _, length in verifier._cache.values()) <= 1000
    assert tokens[2] not in repr(vars(verifier))  # a digest is kept instead
    monkeypatch.setattr(authority, "MAX_TOPICS", 3)
    codes = [b"%d" % number for number in range(5)]
    for code in codes:
        verifier.remember_topic(ORIGIN, code, f"topic of {code}")
    assert [code for code in codes if verifier.remembered_topic(ORIGIN, code)] == codes[2:]


# Live connections


async def test_connections_end_after_their_token_unless_it_is_renewed(pass_time, service):
    token = token_of(service, 10)
    query = urlencode({"token": token})
    paths = ("/y-webrtc?", "/tracker?", "/nostr?", "/peerjs?id=a&key=peerjs&")
    async with (
        contextlib.AsyncExitStack() as stack,
        authorized(service, token) as rpc,
        authorized(service, token) as renewed,
        open_socket(service) as without,
        open_stream(service.port, f"/lobby/events?{query}") as stream,
    ):
        others = [await stack.enter_async_context(connect_raw(service, path + query)) for path in paths]
        poll = asyncio.ensure_future(call(service, "GET", "/lobby/sessions?wait=60", token=token))
        for client in (rpc, renewed):
            await client.call("subscribe", topic="lobby")
        later = token_of(service, 600)
        assert await renewed.call("authorize", token=later) == {"expiresAt": service.clock.ms + 600_000}
        await until(lambda: service.shared.log.metrics.waiting["/:topic/sessions"] == 1)
        service.clock.ms += 50_000
        await pass_time(50)
        for client in (rpc, without, *others):
            reason = "no token was presented in time" if client is without else "token expired"
            assert await client.close_frame() == (1008, reason)
        assert (await asyncio.wait_for(poll, BOUND_S)).json["sessions"] == []
        assert await stream.rest() is not None
        await published_code(service, "lobby")
        assert (await renewed.event())[0] == "session"
    await until(lambda: not service.shared.authority._bearers)


def test_grant_includes_another():
    def parse(claims):
        return grants.parse_claims(json.dumps({"exp": 1} | claims).encode(), None, "", "")

    for claims, fewer in (
        *(({}, each) for each in ({"topics": ["a"]}, {"actions": ["list"]}, {"info": "me"})),
        *(({"topics": ["a*"]}, {"topics": ["a", "ab*"]}), ({"topics": ["a*", "b"]}, {"topics": ["b"]})),
        ({"info": "me"}, {"info": "me", "actions": ["offer"]}),
    ):
        wide, narrow = parse(claims), parse(fewer)
        assert (wide.includes(narrow), wide.includes(wide), narrow.includes(wide)) == (True, True, False), fewer


async def test_offer_in_progress_does_not_outlive_its_rights(protected, monkeypatch):
    service = await protected(hold_grace_ms=0)
    create, goes_on = service.store.create, asyncio.Event()

    async def create_later(*args, **options):
        await goes_on.wait()
        return await create(*args, **options)

    monkeypatch.setattr(service.store, "create", create_later)
    async with authorized(service, token_of(service)) as client:
        offering = client.send("offer", topic="lobby", hold=True, **OFFER)
        await client.call("authorize", token=token_of(service, topics=["attic"]))
        assert await client.closed() == 1008
        goes_on.set()
        with pytest.raises(ConnectionError):
            await offering
    await until(lambda: not service.shared.running and not service.shared.log.metrics.held)
    listed = await call(service, "GET", "/lobby/sessions", token=token_of(service))
    assert listed.json["sessions"] == []


async def test_batch_with_fewer_rights_extends_nothing_and_a_jump_of_the_clock_ends_what_expires(pass_time, service):
    async with authorized(service, token_of(service, 10)) as client:
        await client.call("subscribe", topic="lobby")
        narrow = {"token": token_of(service, topics=["attic"])}
        send_batch(client, [("authorize", narrow)] * 2 + [("sessions", {"topic": "attic", "wait": 60})])
        await until(lambda: service.shared.limits.waiting == 2)
        service.clock.ms += 50_000
        await pass_time(50)
        assert await client.close_frame() == (1008, "token expired")
    async with authorized(service, token_of(service, 600)) as client:
        service.clock.ms += 500_000
        await pass_time(60)
        await client.call("topics")
        service.clock.ms += 126_000
        await pass_time(60)
        assert await client.closed() == 1008


@pytest.mark.parametrize("anonymous", [("list",), ()])
async def test_client_that_has_left_before_its_wait_leaves_no_bearer(anonymous, protected):
    service = await protected(auth_anonymous=anonymous)
    headers = [] if anonymous else bearer(token_of(service))
    for _ in range(5):
        async with connected(service.port) as connection:
            connection.writer.write(request("GET", "/lobby/sessions?wait=60", headers=headers))
            connection.writer.write_eof()
            assert (await asyncio.wait_for(connection.receive("GET"), BOUND_S)).status == 200
    assert not service.shared.authority._bearers


async def test_removed_and_replaced_keys_end_their_connections(service, keys, monkeypatch):
    monkeypatch.setattr(authority, "SPREAD_S", 0.1)

    def reload_keys():
        service.shared.authority.use(load_keys(keys), service.settings)

    write_secret(keys, "second", OTHER_SECRET)
    kept = make_token({"exp": math.floor(now_s(service)) + 60}, OTHER_SECRET, name="second")
    reload_keys()
    first = token_of(service)
    async with authorized(service, first) as client, authorized(service, kept) as other:
        reload_keys()
        await client.call("topics")
        (keys / "main.secret").write_bytes(b"a replacement of at least thirty-two bytes")
        reload_keys()
        assert await client.closed() == 1008
        await other.call("topics")
        assert [await status_of(service, token) for token in (first, kept)] == [401, 200]
        (keys / "second.secret").unlink()
        reload_keys()
        assert await other.closed() == 1008
        (keys / "main.secret").unlink()
        with pytest.raises(OperatorError):
            reload_keys()


@pytest.mark.parametrize("ends_s", [0.0, math.inf], ids=["equal expiry", "removed key"])
async def test_many_bearers_end_a_few_per_iteration_unless_they_are_renewed(ends_s, keys, monkeypatch):
    monkeypatch.setattr(authority, "SPREAD_S", 0.0)
    both = load_keys(write_secret(keys, "other", OTHER_SECRET))
    checking, ended = Authority(both, Settings()), []
    grant = grants.Grant(frozenset(ACTIONS), ends_s=ends_s, key=both["main"])
    bearers = [
        checking.make_bearer(grant, lambda: authority.GRACE_S, functools.partial(ended.append, number))
        for number in range(504)
    ]

    def renew_one_and_close_another(bearer, other):
        bearer.renew(grants.Grant(frozenset(ACTIONS), key=both["other"]))
        other.close()

    if ends_s:
        checking.use({"other": both["other"]}, Settings())
    renew_one_and_close_another(*bearers[:2])
    counts, late = [0], []
    async with asyncio.timeout(BOUND_S):
        while len(ended) < 500 or checking._ending:
            await asyncio.sleep(0)
            if not late and len(checking._ending) > 1:
                late += [*checking._ending][-2:]
                renew_one_and_close_another(*late)  # which are due
            counts.append(len(ended))
    assert max(after - before for before, after in itertools.pairwise(counts)) == authority.END_STEP
    assert {bearers[number] for number in ended} == {*bearers[2:]} - {*late}
    assert checking._bearers == {bearers[0], late[0]}
    bearers[0].close()
    late[0].close()


@pytest.mark.parametrize(("ends_s", "least_s"), [(0.1, 0.3), (None, 0.2)], ids=["token", "none"])
async def test_bearer_does_not_end_before_its_grace_period(ends_s, least_s, monkeypatch):
    monkeypatch.setattr(authority, "GRACE_S", 0.2)
    monkeypatch.setattr(authority, "SPREAD_S", 0.0)
    loop = asyncio.get_running_loop()
    began_s, ended = loop.time(), loop.create_future()
    grant = None if ends_s is None else grants.Grant(frozenset(ACTIONS), ends_s=ends_s)
    Authority({}, Settings(auth_anonymous=())).make_bearer(grant, lambda: 0.0, lambda: ended.set_result(None))
    await asyncio.wait_for(ended, BOUND_S)
    assert loop.time() - began_s > least_s - 0.01


async def test_ids_of_peerjs_are_topics(service):
    token = token_of(service, topics=["room-*"])
    other, friend = [await open_peer(service.port, name, token_of(service)) for name in ("elsewhere", "room-b")]
    peer = await open_peer(service.port, "room-a", token)
    await peer.send("OFFER", "room-b", payload="x")
    assert (await friend.next())["payload"] == "x"
    listed = await service.raw(request("GET", "/peerjs/peers", headers=bearer(token)))
    assert sorted(listed.json) == ["room-a", "room-b"]
    await peer.send("OFFER", "elsewhere", payload="x")
    assert await peer.closed() == (1008, NOT_ALLOWED[1].lower())
    await other.nothing_before(("elsewhere", "marker"))
    assert refused(await call(service, "GET", "/peerjs/peers")) == UNAUTHORIZED
    for each in (friend, other):
        await each.close()


async def test_peerjs_id_is_taken_over_with_the_same_token_or_subject_only(service):
    for name, claims, other, first in (
        ("a", {"sub": "alice"}, {"sub": "mallory"}, "ID-TAKEN"),
        ("b", {"sub": "alice"}, {}, "ID-TAKEN"),
        ("c", {}, {"sub": "alice"}, "ID-TAKEN"),
        ("d", {"jti": "first"}, {"jti": "second"}, "ID-TAKEN"),
        ("e", {"sub": "alice", "jti": "first"}, {"sub": "alice", "jti": "renewed"}, "OPEN"),
    ):
        peer = await open_peer(service.port, name, token_of(service, **claims))
        later = await connect_peer(service.port, key="peerjs", id=name, token=token_of(service, **other))
        assert (await later.next())["type"] == first
        if first == "OPEN":
            assert await peer.closed() == (1000, "taken over")
        else:
            await peer.nothing_before((name, "marker"))
        for each in (peer, later):
            await each.close()


async def test_peer_of_a_tracker_is_taken_over_with_the_same_subject_only(service):
    announcement = {"action": "announce", "info_hash": HASHES[0], "peer_id": "p" * 20}
    offering = announcement | {"peer_id": "q" * 20, "offers": [{"offer": 1, "offer_id": "o" * 20}]}
    tokens = [token_of(service, sub=sub, jti=str(at)) for at, sub in enumerate(("alice", "mallory", "alice"))]
    connecting = [connect_raw(service, f"/tracker?{urlencode({'token': token})}") for token in tokens]
    async with connecting[0] as owner, connecting[1] as other, connecting[2] as renewed:
        for client, receiver in ((owner, owner), (other, owner), (renewed, renewed)):
            await client.send(announcement)
            assert (await client.receive())["incomplete"] == 1
            await other.send(offering)
            await other.receive()
            assert (await receiver.receive())["peer_id"] == "q" * 20
            await other.send(offering | {"event": "stopped"})
            await other.receive()


@pytest.mark.parametrize("log_subjects", [False, True])
async def test_log_names_the_subject_only_if_asked_and_never_a_token(log_subjects, protected, caplog, monkeypatch):
    caplog.set_level("DEBUG")
    service = await protected(access_log=True, log_subjects=log_subjects)
    tokens = [token_of(service, sub="user-7"), token_of(service, sub="user-8") + "x"]  # the second one is invalid
    queries = [urlencode({"token": token}) for token in tokens]
    caplog.clear()
    for token, query in zip(tokens, queries, strict=True):
        for path in ("/y-webrtc?", "/tracker?", "/nostr?", "/peerjs?id=a&key=k&"):
            with contextlib.suppress(InvalidStatus):
                async with connect_raw(service, path + query) as client:
                    await client.send("{}")
        await call(service, "GET", f"/nowhere?{query}", token=token)

    def fail(*args):
        raise RuntimeError("a bug")

    monkeypatch.setattr(service.store, "topics", fail)
    monkeypatch.setattr(service.store, "watch_topic", fail)
    assert await status_of(service, tokens[0]) == 500
    async with open_stream(service.port, f"/lobby/events?{queries[0]}") as stream:
        assert stream.status == 500
    async with authorized(service, tokens[0]) as client:
        assert (await client.refused("topics"))[0] == 500
    assert len([record for record in caplog.records if record.exc_info]) == 3
    written = "".join(logging.Formatter().format(each) + str(vars(each)) for each in caplog.records)
    assert ("user-7" in written) == log_subjects
    for token in tokens:
        assert not {part for part in token.split(".")[1:] if part in written}
    caplog.clear()
