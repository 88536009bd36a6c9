"""/asyncapi.json is true: of the methods, and of every message that a running server sends (contract C9)."""

import asyncio
import json

import jsonschema_rs
import pytest
from support.rpc import BOUND_S, RpcClient
from support.service import ORIGIN

from tornado_signal.api.operations import declare
from tornado_signal.settings.settings import Settings
from tornado_signal.websocket.asyncapi import make_asyncapi
from tornado_signal.websocket.connection import make_methods

DOCUMENT = make_asyncapi(declare(Settings()))
SECRET = "a secret of the offerer"


def payload(name):
    """A validator of a message."""
    return jsonschema_rs.validator_for(
        {**DOCUMENT["components"]["messages"][name]["payload"], "components": DOCUMENT["components"]}
    )


async def test_the_document_is_had_without_an_origin(service):
    assert (await service.call("GET", "/asyncapi.json", origin=None)).json == json.loads(json.dumps(DOCUMENT))


def test_the_document_has_every_method_and_nothing_else():
    methods = set(make_methods(declare(Settings())))
    assert set(DOCUMENT["operations"]) == methods | {"event"}
    assert set(DOCUMENT["components"]["messages"]) == {
        *methods,
        *(f"{each}Result" for each in methods),
        "error",
        "event",
    }


@pytest.mark.parametrize("secret", [None, SECRET])
async def test_every_message_of_a_session_is_as_the_document_says(secret, service):
    async with RpcClient(f"ws://127.0.0.1:{service.port}/ws", ORIGIN) as client:

        async def ask(method, **params):
            request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            assert payload(method).is_valid(request), request
            response = await client.ask(method, **params)
            assert payload(f"{method}Result" if "result" in response else "error").is_valid(response), response
            return response.get("result")

        for method in ("version", "health", "topics", "iceServers"):
            await ask(method)
        own = {"secret": secret} if secret else {}
        await ask("subscribe", topic="lobby")
        code = (await ask("offer", topic="lobby", info="i", offer="o", hold=True, **own))["code"]
        owner = {"code": code, "side": "offerer", **own}
        number = (await ask("subscribe", **owner))["subscription"]
        await ask("subscribe", code=code, side="answerer")
        await ask("answer", candidate="c", **owner)
        await ask("answer", code=code, side="answerer", candidates=["c", "d"])
        await ask("answer", code=code, side="answerer", answer="a")
        await ask("sessions", topic="lobby", wait=0)
        await ask("topics", page=1, limit=2)
        await ask("poll", **owner)
        await ask("poll", code=code, side="answerer", wait=0)
        await ask("poll", code="nonsense", side="answerer")
        await ask("refresh", **owner)
        await ask("hold", code=code, **own)
        await ask("unsubscribe", subscription=number)
        await ask("withdraw", **owner)
        kinds = set()
        while kinds != {None, "session", "offer", "answer", "candidate", "gone"}:
            params = await asyncio.wait_for(client.events.get(), BOUND_S)
            assert payload("event").is_valid({"jsonrpc": "2.0", "method": "event", "params": params}), params
            kinds.add(params.get("type"))
