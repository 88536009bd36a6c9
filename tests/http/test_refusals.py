"""Every refusal of every operation and subscription, over HTTP with its streams and over the WebSocket.

The rows are made from the declarations. `EXAMPLES` holds a valid value of each parameter. Its invalid values are those
that its schema excludes, and each transport adds what only its texts can hold.
"""

import contextlib
import functools
import inspect
import json
import logging
from itertools import product
from operator import attrgetter
from urllib.parse import quote

import jsonschema_rs
import pytest
from support.rpc import open_socket
from support.service import (
    NO_SUCH_CODE,
    NOT_FOUND,
    ORIGIN,
    OTHER,
    allowed_origin,
    check_documented,
    check_every_response,
    invalid,
    request,
    segment,
)
from support.sse import open_stream
from support.tokens import make_token, write_secret

from tornado_signal.auth import ACTIONS, ANY
from tornado_signal.service.operations import SUBSCRIPTIONS, Operation, declare
from tornado_signal.service.parameters import CODE, SECRET
from tornado_signal.service.schemas import SCHEMAS
from tornado_signal.settings.settings import Settings
from tornado_signal.stores.leveldb.store import LevelDBStore
from tornado_signal.system.lifecycle import DRAINING
from tornado_signal.websocket.connection import make_methods

MAX_TEXT = 64  # of an offer, an answer and a candidate in these tests
LIMITED = {"offer", "answer", "candidate", "candidates"}
OPERATIONS = declare(Settings(max_offer=MAX_TEXT))
HOLD = Operation("hold", "", "", "", "", {}, lambda: b"", (CODE, SECRET), writes=True, action="offer")
EXAMPLES = {
    **{"topic": "lobby", "info": "i", "offer": "o", "ttl": 60_000, "hold": False, "code": NO_SUCH_CODE},
    **{"answer": "a", "candidate": "c", "candidates": ["c", "d"], "side": "answerer", "secret": "a secret of a side"},
    **{"wait": 0, "since": None, "page": 1, "limit": 10, "prefix": "lob"},
    **{"outcome": "connected", "local": "host", "remote": "srflx", "transport": "udp", "ms": 100},
}
SECRETS = {"offerer": "the secret of the offerer", "answerer": "the answerer's secret 😀"}
MISSING = object()
MALFORMED_CURSORS = ["x", "1.00000000", "0.0.00000000", "f" * 5000, "😀"]
MALFORMED_CODES = [
    *("x", " ", "😀", "\0", "x" * 1000, "0" * 36, "-" * 36, "0" * 32, "{" + NO_SUCH_CODE + "}"),
    *("urn:uuid:" + NO_SUCH_CODE, NO_SUCH_CODE[:-1], NO_SUCH_CODE + "0", NO_SUCH_CODE[:-1] + "g"),
    *(NO_SUCH_CODE[:-2] + "  ", NO_SUCH_CODE[:-1] + "٣"),
]
INVALID_TOPICS = ["", "a" * 257, "%F0%9F%98%80" * 257, "%", "%2", "%zz", "a%", "%ff", "%C3%28", "%ED%A0%80", "%u0041"]
INVALID_TOPICS += ["%C0%80", "%F4%90%80%80", "%+1"]
INVALID_NUMBERS = ["", "-1", "x", "+1", "%201", "%D9%A3", "%00", "%ff", "NaN", "1e99", "9" * 5000]
INVALID_NUMBERS += ["1%20", "1e", "0x1", ".5", "1.", "1_0", "1%0A", "1,5", "%C2%B2", "inf", "1e999", "1" * 40]

OK = (200, None)
UNAUTHORIZED = (401, "Missing or invalid token")
NOT_ALLOWED = (403, "Not allowed by the token")
MISSING_SESSION = (404, NOT_FOUND)
TOO_MANY = (429, "Too many requests")
DEFECT = (500, "Internal server error")
UNAVAILABLE = (503, "Service unavailable")


class Raw(str):
    """A text that goes into a path or a query as it is."""


def is_stream(declared):
    return declared in SUBSCRIPTIONS


class Transport(contextlib.AsyncExitStack):
    def __init__(self, service):
        super().__init__()
        self.service = service


class Http(Transport):
    """Asks over HTTP, and checks the form of each refusal."""

    declared = (*OPERATIONS, *SUBSCRIPTIONS)

    @staticmethod
    def parameters(declared):
        return [parameter for parameter in declared.parameters if parameter.place != "websocket"]

    @staticmethod
    def cursor_name(declared):
        return "Last-Event-ID" if is_stream(declared) else "since"

    @staticmethod
    def wrong_values(declared, parameter):
        if parameter.place == "path":
            return [*map(Raw, INVALID_TOPICS), Raw("%zz")]
        return wrong_texts(parameter) if method_of(declared) == "GET" else wrong_values(parameter)

    async def __aenter__(self):
        self._connection = await self.enter_async_context(self.service.connect())
        return self

    async def ask(self, declared, params, *, origin=ORIGIN, token="", in_query=False):
        """Return the status and the error, or None in its place."""
        fields = {name: value for name, value in params.items() if name != "topic"}
        cursor = fields.pop("since", None) if is_stream(declared) else None
        headers = [("Last-Event-ID", cursor)] if cursor is not None else []
        target = declared.path.replace("{topic}", as_text(params.get("topic", "")))
        body = None
        if in_query:
            fields["token"] = token
        elif token:
            headers.append(("Authorization", f"Bearer {token}"))
        if method_of(declared) == "POST":
            body = fields
        elif query := "&".join(f"{name}={as_text(value)}" for name, value in fields.items() if value is not None):
            target += f"?{query}"
        if is_stream(declared):
            async with open_stream(self.service.port, target, origin=origin, headers=headers) as stream:
                if stream.status == 200:
                    return OK
        await self._connection.send(request(method_of(declared), target, body, origin, headers))
        response = await self._connection.receive()
        check_every_response(response, method_of(declared))
        check_documented(response, method_of(declared), target)
        if response.status in (200, 204):
            self.result = response.json if response.body else None
            return OK
        error, kinds = response.json["error"], {401: "invalid_token", 403: "insufficient_scope"}
        assert allowed_origin(response) == origin
        assert ("Retry-After" in response.headers) == (response.status in (429, 503))
        assert int(response.headers.get("Retry-After", 1)) > 0
        kind = f'Bearer error="{kinds[response.status]}"' if response.status in kinds else None
        assert response.headers.get("WWW-Authenticate") == kind
        varying = ("Date", "X-Request-Id", "Access-Control-Allow-Origin")
        self.form = (response.body, *(pair for pair in sorted(response.headers.get_all()) if pair[0] not in varying))
        return response.status, error


class WebSocket(Transport):
    """Asks over a WebSocket, and checks the form of each refusal."""

    declared = (*OPERATIONS, HOLD, *SUBSCRIPTIONS)
    parameters = attrgetter("parameters")

    def __init__(self, service):
        super().__init__(service)
        self._clients = {}

    @staticmethod
    def cursor_name(declared):
        return "since"

    @staticmethod
    def wrong_values(declared, parameter):
        return wrong_values(parameter)

    async def ask(self, declared, params, *, origin=ORIGIN, token="", in_query=False):
        """Return the status and the error, or None in its place."""
        if (client := self._clients.get((origin, token))) is None:
            client = self._clients[origin, token] = await self.enter_async_context(open_socket(self.service, origin))
        responses = [await client.ask("authorize", token=token)] if token else []
        responses.append(await client.ask("subscribe" if is_stream(declared) else declared.name, **params))
        for response in responses:
            if "error" in response and declared.action:
                self.form = json.dumps(response["error"])
                code, message, data = (response["error"].get(key) for key in ("code", "message", "data"))
                assert (data is not None) == (code in (429, 503))
                assert data is None or data.keys() == {"retryAfter"}
                assert data is None or data["retryAfter"] > 0
                return code, message
        self.result = response.get("result")
        if is_stream(declared):
            await client.call("unsubscribe", **self.result)
            assert await client.refused("unsubscribe", **self.result) == (400, invalid("subscription"))
        return (response["error"]["code"], response["error"]["message"]) if "error" in response else OK


TRANSPORTS = {"http": Http, "websocket": WebSocket}


@pytest.fixture
def start_service(start_service):
    return functools.partial(start_service, connection_reports=True)


@pytest.fixture(params=TRANSPORTS)
def over(request):
    """The class that asks over a transport."""
    return TRANSPORTS[request.param]


def method_of(declared):
    return "GET" if is_stream(declared) else declared.method


def as_text(value):
    """Return a value as a part of a path or a query."""
    return value if isinstance(value, Raw) else segment(value if isinstance(value, str) else json.dumps(value))


def good(declared, **more):
    """Return valid parameters, of the first of several alternatives."""
    first = [(parameter.alternatives or [parameter])[0].name for parameter in declared.parameters]
    return {name: EXAMPLES[name] for name in first} | {k: v for k, v in more.items() if k in EXAMPLES and k in first}


def variants(declared, **more):
    """Yield valid parameters for each of several alternatives, with each kind of side."""
    params = good(declared, **more)
    names = [each.name for parameter in declared.parameters for each in parameter.alternatives]
    for name in names or [None]:
        rest = {key: value for key, value in params.items() if key not in names}
        yield rest | ({name: EXAMPLES[name]} if name else {})


def resolved(schema):
    return SCHEMAS[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def values(parameter):
    """Return JSON values at the bounds of a parameter's schema and of other types: those it accepts, and the others.

    The last of the others is of a type that no parameter accepts.
    """
    schema = resolved(parameter.schema)
    items = resolved(schema.get("items", schema))
    if parameter.name in LIMITED:
        items = items | {"maxLength": MAX_TEXT}
    pool = ["", "x", "1", 0, 1, -1, 1.5, 2**60, -(2**60), 1e300, True, False, [], ["x"], {"0": "x"}, [{}]]
    for value in items.get("enum", ()):
        pool += [value, value.upper(), f"{value} ", f"{value}\0"]
    pool += [bound + by for bound in map(schema.get, ("minimum", "maximum")) if bound for by in (-1, -0.5, 0, 0.5, 1)]
    for bound in filter(None, map(items.get, ("minLength", "maxLength"))):
        pool += [letter * (bound + by) for letter in "x😀" for by in (-1, 0, 1)]
    if schema["type"] == "array":
        pool += [["x", value] for value in pool] + [["x"] * (schema["maxItems"] + by) for by in (0, 1)]
        schema = schema | {"items": items}
    else:
        schema = items
    if schema["type"] == "integer":
        pool = [value for value in pool if type(value) is not float or not value.is_integer()]
    validator = jsonschema_rs.validator_for(schema)
    right = [value for value in pool if validator.is_valid(value)]
    wrong = [value for value in pool if not validator.is_valid(value)]
    wrong += {"string": ["\ud800", "x\udfff"], "array": [["x", "\ud800"]], "number": [10**400]}.get(schema["type"], [])
    return right, [*([MISSING, None] if parameter.required else []), *wrong, {}]


def wrong_values(parameter):
    return values(parameter)[1]


def wrong_texts(parameter):
    """Return the texts in a query that a parameter does not allow, the last of them a repeated one."""
    schema = resolved(parameter.schema)
    if schema["type"] == "string":
        wrong = [Raw(quote(value)) for value in wrong_values(parameter) if type(value) is str and value.isprintable()]
    else:
        wrong = [Raw(text) for text in [*INVALID_NUMBERS, schema["maximum"] + 1]]
        wrong += [Raw("1.0"), Raw("0")] if schema["type"] == "integer" else [Raw(f"{schema['maximum']}.001")]
    example = as_text(EXAMPLES[parameter.name])
    return [*([MISSING] if parameter.required else []), *wrong, Raw(f"{example}&{parameter.name}={example}")]


def changed(params, name, value):
    return {each: old for each, old in params.items() if each != name} | ({} if value is MISSING else {name: value})


def wrong_requests(transport, declared, code):
    """Yield parameters of which one is wrong, and the name in the error."""
    of_stream = is_stream(declared) and transport is WebSocket  # the parameters say which subscription it is
    for params in variants(declared, code=code):
        for parameter in transport.parameters(declared):
            alternatives = [each for each in parameter.alternatives if each.name in params] or [parameter]
            for each in alternatives:
                for value in transport.wrong_values(declared, each):
                    absent = value is None or value is MISSING
                    name = "answer or candidate" if absent and parameter.alternatives else each.name
                    yield changed(params, each.name, value), "topic" if of_stream and absent and each is CODE else name
                for name, schema in each.narrows.items():
                    narrow = jsonschema_rs.validator_for(schema)
                    for value in resolved(SCHEMAS[name.title()])["enum"]:
                        if not narrow.is_valid(value):
                            yield params | {name: value}, name
            for more in parameter.alternatives:
                if more.name not in params:
                    for value in (EXAMPLES[more.name], "", 0):
                        yield params | {more.name: value}, "answer or candidate"
    params, name = good(declared, code=code), transport.cursor_name(declared)
    if is_stream(declared) or "since" in params:
        for value in MALFORMED_CURSORS:
            if value.isascii() or name == "since":
                yield params | {"since": value}, name
    if of_stream:
        for value in (value for value in wrong_values(CODE) if value is not MISSING and value is not None):
            yield params | {"since": value}, "since"


async def state(service, code, **secrets):
    """Return what a refused request must not change."""
    polls = [
        await service.post("/poll", code=code, side=side, **({"secret": secrets[side]} if secrets else {}))
        for side in SECRETS
    ]
    return polls, await service.sessions(), await service.topics()


async def cursor_of(service, kind, params):
    """Return a current cursor of a session, of the listing `sessions`, or of the stream `topicEvents`."""
    if kind == "session":
        return (await service.post("/poll", **params, wait=0))["cursor"]
    if kind == "sessions":
        return (await service.get(f"/{params['topic']}/sessions?wait=0"))["cursor"]
    async with open_stream(service.port, f"/{params['topic']}/events") as stream:
        await stream.listing()
        return stream.last


def test_declarations_are_those_of_the_specification():
    assert {each.name: (each.action, " ".join(name.name for name in each.parameters)) for each in Http.declared} == {
        "version": ("", ""),
        "health": ("", ""),
        "iceServers": (ANY, ""),
        "nearby": (ANY, ""),
        "report": (ANY, "outcome local remote transport ms"),
        "topics": ("list", "page limit prefix"),
        "sessions": ("list", "topic wait since limit"),
        "offer": ("offer", "topic info offer ttl secret hold"),
        "answer": ("answer", "code sent side secret"),
        "poll": ("answer", "code side wait since secret"),
        "withdraw": ("answer", "code side secret"),
        "refresh": ("answer", "code side secret"),
        "topicEvents": ("list", "topic"),
        "sessionEvents": ("answer", "code side secret"),
    }
    bounds = {"minimum", "maximum", "minLength", "maxLength", "maxItems"}
    found = {
        each.name: [resolved(each.schema)[bound] for bound in sorted(bounds & {*resolved(each.schema)})]
        for declared in Http.declared
        for parameter in declared.parameters
        for each in parameter.alternatives or [parameter]
    }
    most = 2**53
    assert {name: numbers for name, numbers in found.items() if numbers not in ([], [1])} == {
        **{"topic": [256, 1], "info": [1024, 1], "secret": [256, 16], "candidates": [100]},
        **{"wait": [60, 0], "ttl": [300_000, 1000], "page": [most, 1], "limit": [most, 1], "prefix": [256]},
        "ms": [3_600_000, 0],
    }


async def test_examples_and_values_at_the_bounds_are_accepted(over, start_service):
    service = await start_service(max_offer=MAX_TEXT)
    assert set(make_methods(OPERATIONS)) == {each.name for each in (*OPERATIONS, HOLD)} | {
        *("authorize", "cancel", "subscribe", "unsubscribe")
    }
    async with over(service) as transport:
        for declared in over.declared:
            for params in variants(declared):
                if "code" in params:
                    params["code"] = await service.offer()
                assert await transport.ask(declared, params) == OK, declared.name
                if "since" in params:
                    cursor = transport.result["cursor"]
                    assert await transport.ask(declared, params | {"since": cursor}) == OK, declared.name
            for parameter in transport.parameters(declared):
                for each in parameter.alternatives or [parameter]:
                    for value in [] if each.name in ("code", "since") else values(each)[0]:
                        *_, params = variants(declared, code=await service.offer())
                        for other in parameter.alternatives:
                            params.pop(other.name, None)
                        refusal = await transport.ask(declared, params | {each.name: value})
                        assert refusal == OK, (declared.name, each.name, value)


async def test_wrong_parameter_is_400_with_its_name_and_changes_nothing(over, start_service):
    service = await start_service(max_offer=MAX_TEXT)
    code = await service.offer()
    before, rows = await state(service, code), 0
    async with over(service) as transport:
        for declared in over.declared:
            for params, name in wrong_requests(over, declared, code):
                assert await transport.ask(declared, params) == (400, invalid(name)), (declared.name, params)
                rows += 1
            params = good(declared)  # parameters are checked in their order, and before the session
            for parameter in reversed(transport.parameters(declared)):
                each = (parameter.alternatives or [parameter])[0]
                params = params | {each.name: transport.wrong_values(declared, each)[-1]}
                assert await transport.ask(declared, params) == (400, invalid(each.name)), (declared.name, params)
    assert await state(service, code) == before
    assert rows > 400


async def test_cursor_of_another_session_side_topic_or_origin_is_400(over, start_service):
    service = await start_service()
    codes = [await service.offer() for _ in range(2)]
    kinds = {kind: [{"topic": "lobby"}, {"topic": "attic"}] for kind in ("sessions", "topicEvents")}
    kinds["session"] = [{"code": each, "side": side} for each in codes for side in SECRETS]
    places = [(kind, params) for kind, each in kinds.items() for params in each]
    cursors = [(place, await cursor_of(service, *place)) for place in places]
    async with over(service) as transport:
        for declared in over.declared:
            name = transport.cursor_name(declared)
            if not is_stream(declared) and "since" not in good(declared):
                continue
            kind = "session" if CODE in declared.parameters else declared.name
            for params, (place, since), origin in product(kinds[kind][:2], cursors, (ORIGIN, OTHER)):
                expected = OK if (place, origin) == ((kind, params), ORIGIN) else (400, invalid(name))
                asked = {key: value.upper() if key == "code" else value for key, value in params.items()}
                refusal = await transport.ask(declared, asked | {"since": since}, origin=origin)
                assert refusal == expected, (declared.name, params, place)


FLOW = [
    *(("version", {}), ("health", {}), ("iceServers", {}), ("offer", {"topic": "a/é", "info": "é😀", "offer": "o"})),
    *(("answer", {"side": "offerer", "candidates": ["1", "2"]}), ("answer", {"side": "answerer", "candidate": "3"})),
    *(("topics", {"page": 1, "limit": 2}), ("sessions", {"topic": "a/é"}), ("sessions", {"topic": "a/é", "wait": 0})),
    *(("answer", {"side": "answerer", "answer": "a"}), ("poll", {"side": "offerer"}), ("topics", {})),
    *(("poll", {"side": "answerer", "wait": 0}), ("refresh", {"side": "answerer"}), ("withdraw", {"side": "offerer"})),
]


async def test_results_are_the_same_over_every_transport(start_service):
    results = []
    for over in TRANSPORTS.values():
        service = await start_service(codes="content")
        async with over(service) as transport:
            found, of_session = {}, {}
            for at, (name, params) in enumerate(FLOW):
                declared = next(each for each in OPERATIONS if each.name == name)
                more = of_session if CODE in declared.parameters else {}
                assert await transport.ask(declared, params | more) == OK, name
                found[at] = {key: value for key, value in transport.result.items() if key != "cursor"}
                of_session = found[at] if name == "offer" else of_session
            results.append(json.dumps(found))
    assert results[0] == results[1]


async def test_session_that_is_missing_foreign_or_of_another_secret_is_404(over, start_service):
    service = await start_service()

    async def published(origin=ORIGIN):
        offer = {"info": "i", "offer": "o", "secret": SECRETS["offerer"]}
        code = (await service.post("/lobby/offer", origin=origin, **offer))["code"]
        answer = {"code": code, "side": "answerer", "secret": SECRETS["answerer"]}
        await service.post("/answer", origin=origin, answer="the answer", **answer)
        return code

    expired = await published()
    service.clock.ms += service.settings.session_timeout_ms
    withdrawn, foreign, code = await published(), await published(OTHER), await published()
    await service.post("/withdraw", code=withdrawn, side="offerer", secret=SECRETS["offerer"])
    before = await state(service, code, **SECRETS)
    async with over(service) as transport:
        for declared in over.declared:
            if CODE not in declared.parameters:
                continue
            forms = set()
            for params in (params for side in SECRETS for params in variants(declared, side=side)):
                side = params.get("side", "offerer")
                if "answer" in params and side == "offerer":
                    continue
                other = SECRETS["answerer" if side == "offerer" else "offerer"]
                shifted = [code.replace("-", ""), f" {code}", code[1:] + code[0]]
                rows = [(each, SECRETS[side]) for each in (*MALFORMED_CODES, *shifted, expired, withdrawn, foreign)]
                rows += [(code, secret) for secret in (None, SECRETS[side] + "!", SECRETS[side].upper(), other)]
                for each, secret in [(NO_SUCH_CODE, SECRETS[side]), *rows]:
                    refusal = await transport.ask(declared, params | {"code": each, "secret": secret})
                    assert refusal == MISSING_SESSION, (declared.name, each, secret)
                    forms.add(transport.form)
                if declared is not HOLD:
                    accepted = params | {"code": await published(), "secret": SECRETS[side]}
                    expected = (409, "Session already answered") if "answer" in params else OK
                    assert await transport.ask(declared, accepted) == expected
            assert len(forms) == 1, declared.name
            assert await state(service, code, **SECRETS) == before


async def test_token_is_required_and_must_allow_the_request(over, start_service, tmp_path):
    service = await start_service(auth_keys=write_secret(tmp_path / "keys"), max_offer=MAX_TEXT)
    now_s = service.clock.ms / 1000

    def token(life_s=600, **claims):
        return make_token({"exp": now_s + life_s, **claims})

    full = [("Authorization", f"Bearer {token()}")]
    body = {"info": "i", "offer": "o"}
    code = (await service.call("POST", "/theirs/offer", body, headers=full)).json["code"]
    async with over(service) as transport:
        for declared in over.declared:
            params = good(declared, code=code)
            if not declared.action:
                for nonsense in ("", "nonsense"):
                    assert await transport.ask(declared, params, token=nonsense) == OK
                continue
            rows = [(each, UNAUTHORIZED) for each in ("", "nonsense", token(-26), token(origin=OTHER))]
            if declared.action != ANY:
                rows.append((token(actions=[each for each in ACTIONS if each != declared.action]), NOT_ALLOWED))
            if {"topic", "code"} & params.keys():
                rows.append((token(topics=["mine"]), NOT_ALLOWED))
            if "info" in params:
                rows.append((token(info="another"), NOT_ALLOWED))
            for each, expected in rows:
                for in_query in {False, is_stream(declared) and bool(each)}:
                    refusal = await transport.ask(declared, params, token=each, in_query=in_query)
                    assert refusal == expected, (declared.name, each)
            assert (
                await transport.ask(declared, {name: params[name] for name in params if name == "topic"}) == rows[0][1]
            )
            assert await transport.ask(declared, params, token=token(topics=["lobby", "theirs"])) in (
                OK,
                MISSING_SESSION,
            )
            code = (await service.call("POST", "/theirs/offer", body, headers=full)).json["code"]


def use_up_rate(service, monkeypatch):
    client, now_ms = service.shared.limits.client("127.0.0.1"), service.clock.ms
    for units in (1000, 1):
        while not service.shared.limits.charge_request(client, now_ms, units):
            pass


def drain(service, monkeypatch):
    service.shared.lifecycle.reach(DRAINING)


def break_store(service, monkeypatch):
    def fail(*arguments, **options):
        raise ZeroDivisionError

    for name in vars(LevelDBStore):
        if inspect.iscoroutinefunction(getattr(LevelDBStore, name)) or name.startswith("watch_"):
            monkeypatch.setattr(service.store, name, fail)


@pytest.mark.parametrize(
    ("arrange", "expected"),
    [(use_up_rate, TOO_MANY), (drain, UNAVAILABLE), (None, UNAVAILABLE), (break_store, DEFECT)],
    ids=["rate", "draining", "store closed", "defect"],
)
async def test_everything_is_refused_alike(arrange, expected, over, start_service, caplog, monkeypatch):
    service = await start_service(unlimited_addresses=(), rate_per_address=1000)
    hidden = {"topic": "hidden-topic", "info": "hidden-info", "offer": "hidden-offer", "answer": "hidden-answer"}
    hidden |= {"code": "5ec1e700-0000-4000-8000-000000000000", "secret": "a hidden secret of a side"}
    needs_store = [each for each in over.declared if each.action not in ("", ANY) or each.name == "nearby"]
    async with over(service) as transport:
        await transport.ask(OPERATIONS[0], {})  # a connection is admitted before
        if arrange is None:
            await service.close_store()
        with monkeypatch.context() as patches:
            if arrange:
                arrange(service, patches)
            for declared in over.declared:
                refused = arrange in (use_up_rate, drain) or declared in needs_store
                if arrange is None and declared.name == "topicEvents":
                    continue  # it has begun before it needs the store
                assert await transport.ask(declared, good(declared, **hidden)) == (expected if refused else OK), (
                    declared
                )
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    if arrange is break_store:
        metrics = service.shared.log.metrics
        assert metrics.defects == len(errors) >= len(needs_store)
        assert not metrics.refusals
        assert all(record.exc_info[0] is ZeroDivisionError for record in errors)
        assert not [word for word in ("hidden", "5ec1e7") if word in caplog.text.lower()]
        caplog.clear()


@pytest.mark.parametrize(
    ("setting", "expected"), [("max_connections_per_address", TOO_MANY), ("max_connections", UNAVAILABLE)]
)
async def test_wait_beyond_the_limit_is_refused(setting, expected, over, start_service):
    service = await start_service(unlimited_addresses=(), **{setting: 5})
    code = await service.offer()
    waiting = [declared for declared in over.declared if is_stream(declared) or "wait" in good(declared)]
    for _ in range(5):
        service.shared.limits.acquire_wait(service.shared.limits.client("127.0.0.1"))
    async with over(service) as transport:
        for declared in waiting:
            params = good(declared, code=code, side="offerer", topic="empty", wait=60) | {"secret": None}
            assert await transport.ask(declared, params) == expected, declared.name
    assert service.shared.limits.waiting == 5
