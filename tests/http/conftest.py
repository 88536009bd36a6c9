"""Fixtures of these tests; another folder brings the shared ones with `pytest_plugins`."""

import resource

import pytest
from support.http_fixtures import service, start_service, transport  # noqa: F401
from support.tls_fixtures import pair, pairs, trusting  # noqa: F401


@pytest.fixture(scope="module", params=["uvloop", "asyncio"])
def loop(request):
    """The event loop under a server in a thread of its own."""
    return request.param


@pytest.fixture
def descriptors():
    """As many descriptors as this machine allows, for this process and those that it starts."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
