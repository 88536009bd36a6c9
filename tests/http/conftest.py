"""Fixtures of these tests. Another folder imports the shared ones with `pytest_plugins`."""

import resource

import pytest
from support.http_fixtures import service, start_service, transport  # noqa: F401
from support.tls_fixtures import pair, pairs, trusting  # noqa: F401


@pytest.fixture(scope="module", params=["uvloop", "asyncio"])
def loop(request):
    """The event loop of a server that runs in its own thread."""
    return request.param


@pytest.fixture
def descriptors():
    """Raise the limit of open files to the machine's maximum, for this process and its children."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
