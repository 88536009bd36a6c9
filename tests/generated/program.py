"""Use every operation of the package that openapi-python-client generates from /openapi.json.

Arguments: the address of a server, and an origin.
"""

import asyncio
import functools
import sys
from http import HTTPStatus

from signal_api import Client, models
from signal_api.api.discovery import sessions, topic_events, topics
from signal_api.api.files import client_js, demo
from signal_api.api.service import health, ice_servers, openapi, version
from signal_api.api.signaling import answer, offer, poll, refresh, session_events, withdraw
from signal_api.types import UNSET

TOPIC = "a topic / of Ωmega"
SECRET = "a secret of 16 and more"


def code_of(published: models.Offered | models.Error | None) -> str:
    """Return the code of an accepted offer."""
    assert isinstance(published, models.Offered), published
    return published.code


def connect_two_peers(client: Client) -> None:
    """Publish, find and answer an offer, and check that each side receives the other's candidates."""
    request = models.OfferRequest(info="me", offer="an offer", ttl=60_000, secret=SECRET)
    code = code_of(offer.sync(TOPIC, client=client, body=request))
    listing = sessions.sync(TOPIC, client=client, limit=5)
    assert isinstance(listing, models.Listing)
    (session,) = listing.sessions
    assert (session.code, session.info, session.offer, session.offer_candidates) == (code, "me", "an offer", [])
    assert session.expires_at - session.created_at == 60_000
    assert listing.cursor is UNSET

    counted = topics.sync(client=client, page=1, limit=10)
    assert isinstance(counted, models.TopicPage)
    assert [(topic.topic, topic.count) for topic in counted.topics] == [(TOPIC, 1)]
    assert (counted.pagination.page, counted.pagination.total, counted.pagination.has_more) == (1, 1, False)

    sent: list[models.AnswerRequest | models.CandidateRequest | models.CandidatesRequest] = [
        models.AnswerRequest(code=code, side="answerer", answer="an answer"),
        models.CandidateRequest(code=code, side=models.Side.ANSWERER, candidate="one"),
        models.CandidatesRequest(code=code, side=models.Side.OFFERER, candidates=["two", "three"], secret=SECRET),
    ]
    for each in sent:
        assert answer.sync(client=client, body=each) == models.Success(success=True)

    poll_request = models.PollRequest(code=code, side=models.Side.OFFERER, secret=SECRET, wait=0.5)
    news = poll.sync(client=client, body=poll_request)
    assert isinstance(news, models.OffererNews)
    assert (news.answer, news.answer_candidates) == ("an answer", ["one"])
    assert isinstance(news.cursor, str)
    other = poll.sync(client=client, body=models.PollRequest(code=code, side=models.Side.ANSWERER))
    assert other == models.AnswererNews(offer="an offer", offer_candidates=["two", "three"])

    owner = models.OwnerRequest(code=code, side=models.Side.OFFERER, secret=SECRET)
    refreshed = refresh.sync(client=client, body=owner)
    assert isinstance(refreshed, models.Refreshed)
    assert refreshed.expires_at >= session.expires_at
    assert withdraw.sync(client=client, body=owner) == models.Success(success=True)
    assert refresh.sync(client=client, body=owner) == models.Error("Session not found, expired, or origin mismatch")


def be_refused(client: Client) -> None:
    """Check that each error is an `Error`, including that of an invalid code, and that a refused stream reports one."""
    no_uuid = models.PollRequest(code="no UUID", side=models.Side.OFFERER)
    response = poll.sync_detailed(client=client, body=no_uuid)
    assert response.status_code == HTTPStatus.NOT_FOUND
    assert isinstance(response.parsed, models.Error)
    assert response.headers["X-Request-Id"]
    assert session_events.sync(client=client, code="no UUID", side=models.Side.OFFERER) == response.parsed
    wrong = topic_events.sync(TOPIC, client=client, last_event_id="no id")
    assert wrong == models.Error(error="Missing or invalid required parameter: Last-Event-ID")
    assert topics.sync(client=client, page=0) == models.Error(error="Missing or invalid required parameter: page")


def ask_the_server(client: Client, anonymous: Client) -> None:
    """Read the server's own information. Files and the document need no Origin."""
    assert isinstance(version.sync(client=client), models.Version)
    state = health.sync(client=client)
    assert isinstance(state, models.Health)
    assert (state.status, state.timestamp > 0) == ("ok", True)
    servers = ice_servers.sync(client=client)
    assert isinstance(servers, models.IceConfiguration)
    assert [ice_server.urls for ice_server in servers.ice_servers] == [
        ["stun:stun.example:3478"],
        ["turn:turn.example:3478"],
    ]
    stun, turn = servers.ice_servers
    assert (stun.credential, isinstance(turn.credential, str)) == (UNSET, True)

    assert health.sync(client=anonymous) == models.Error(error="Missing or invalid required parameter: Origin")
    document = openapi.sync(client=anonymous)
    assert isinstance(document, models.OpenapiResponse200)
    assert document["openapi"] == "3.1.0"
    assert "export" in str(client_js.sync(client=anonymous))
    assert "<html" in str(demo.sync(client=anonymous))


async def wait_for_an_answer(client: Client) -> None:
    """Check that the asynchronous functions also work."""
    async with client:
        code = code_of(await offer.asyncio("lobby", client=client, body=models.OfferRequest(info="i", offer="o")))
        request = models.PollRequest(code=code, side=models.Side.OFFERER, wait=20)
        waiting = asyncio.create_task(poll.asyncio(client=client, body=request))
        body = models.AnswerRequest(code=code, side="answerer", answer="late")
        assert await answer.asyncio(client=client, body=body) == models.Success(success=True)
        news = await waiting
        assert isinstance(news, models.OffererNews)
        assert news.answer == "late"


def main(url: str, origin: str) -> None:
    """Use every operation. An operation that the document lacks raises an exception."""
    new = functools.partial(Client, base_url=url, raise_on_unexpected_status=True)
    with new(headers={"Origin": origin}) as client, new() as anonymous:
        connect_two_peers(client)
        be_refused(client)
        ask_the_server(client, anonymous)
    asyncio.run(wait_for_an_answer(new(headers={"Origin": origin})))


if __name__ == "__main__":
    main(*sys.argv[1:])
