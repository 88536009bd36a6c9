"""Requests with Tornado's HTTP client."""

import asyncio

from tornado.httpclient import AsyncHTTPClient, HTTPRequest, HTTPResponse


async def fetch(client: AsyncHTTPClient, request: HTTPRequest) -> HTTPResponse:
    """Send a request and return the response, of any status. Raise an exception without one.

    Tornado logs an error if a request in progress is cancelled, so it continues without a caller that is cancelled.
    """
    fetching = client.fetch(request, raise_error=False)
    fetching.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(fetching)
