"""The event loop of asynchronous unit tests."""

import pytest
import uvloop
from tornado.ioloop import IOLoop


@pytest.fixture
def io_loop(request):
    """The loop that the service runs on, or that of a function given as an indirect parameter."""
    new_loop = getattr(request, "param", uvloop.new_event_loop)
    loop = IOLoop(asyncio_loop=new_loop(), make_current=False)
    yield loop
    loop.close(all_fds=True)
