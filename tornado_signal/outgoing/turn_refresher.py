"""Regular requests to the provider of TURN servers."""

import asyncio
import logging
import random
from typing import Final

from ..service.ice import ProvidedServers
from ..service.service import Service
from .endpoint import RequestFailed
from .turn_provider import Provider

log = logging.getLogger(__name__)

FIRST_RETRY_S: Final = 5.0
MAX_RETRY_S: Final = 300.0
MAX_RETRY_AFTER_S: Final = 3600.0

ADVICE: Final = {
    401: "check --turn-provider-secret-file and --turn-provider",
    403: "check --turn-provider-secret-file and --turn-provider",
    404: "check --turn-provider",
    429: "the provider limits requests; start fewer servers, or raise its limit",
}
"""Advice for the operator, by the status of the response."""


class Refresher:
    """The requests of one process to the provider. Needs a running event loop.

    Servers are requested again after half of their lifetime, and used until they expire.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._provider: Provider | None = None
        self._task: asyncio.Task[None] | None = None

    def use(self, provider: Provider | None) -> None:
        """Request servers from another provider, with another secret, or from none. A failed request is repeated."""
        provided = self._service.provided
        if self._provider is not None and provider is not None and provider.key == self._provider.key:
            if not provided.problem:
                return
        else:
            self._service.provided = ProvidedServers(provider.name if provider else "")
        if self._task is not None:
            self._task.cancel()
        self._provider = provider
        self._task = None if provider is None else asyncio.create_task(self._run(provider))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self, provider: Provider) -> None:
        retry_s = FIRST_RETRY_S
        while True:
            least_s = retry_s
            try:
                least_s = await self._request(provider)
                retry_s = FIRST_RETRY_S
            except (RequestFailed, ValueError) as error:
                self._failed(provider, error)
                retry_after_s = error.retry_after_s if isinstance(error, RequestFailed) else 0.0
                least_s = max(retry_s, min(retry_after_s, MAX_RETRY_AFTER_S))
                retry_s = min(2 * retry_s, MAX_RETRY_S)
            except Exception as error:
                log.exception("unhandled exception; please report this bug")
                self._failed(provider, error)
            await asyncio.sleep(least_s * random.uniform(1.0, 1.1))

    async def _request(self, provider: Provider) -> float:
        """Request the servers. Return the seconds after which they should be requested again."""
        provided, clock = self._service.provided, self._service.clock
        now_ms = int(clock.wall_s() * 1000)
        provided.servers, lifetime_s = await provider.request(now_ms)
        provided.expires_ms = now_ms + int(lifetime_s * 1000)
        provided.succeeded += 1
        if provided.problem:
            log.warning("the TURN provider %s works again", provider.name)
        provided.problem = ""
        return lifetime_s / 2

    def _failed(self, provider: Provider, error: Exception) -> None:
        provided = self._service.provided
        provided.failed += 1
        problem = describe(provider, error)
        if not provided.problem:
            left_s = provided.expires_ms / 1000 - self._service.clock.wall_s()
            peers = f"peers get its last servers for {left_s:.0f} s" if left_s > 0 else "peers get no servers of it"
            log.warning("the TURN provider %s fails: %s. Until then %s", provider.name, problem, peers)
        provided.problem = problem


def describe(provider: Provider, error: Exception) -> str:
    """Return what is wrong and what to do, without the secret."""
    advice = ADVICE.get(error.status if isinstance(error, RequestFailed) else 0, "trying again")
    return f"{error}; {advice}".replace(provider.key[1].decode(), "…")


async def check_provider(provider: Provider, now_ms: int) -> str:
    """Request the servers once. Return what came of it."""
    try:
        servers, lifetime_s = await provider.request(now_ms)
    except (RequestFailed, ValueError) as error:
        log.warning("the TURN provider %s fails: %s", provider.name, describe(provider, error))
        return f"{provider.name}, which fails"
    return f"{provider.name}, {len(servers)} servers, valid for {lifetime_s:.0f} s"
