import pytest
import uvloop
from tornado.ioloop import IOLoop


@pytest.fixture
def io_loop(request):
    """The event loop of the service, or of a loop factory given as an indirect parameter."""
    new_loop = getattr(request, "param", uvloop.new_event_loop)
    loop = IOLoop(asyncio_loop=new_loop(), make_current=False)
    yield loop
    loop.close(all_fds=True)
