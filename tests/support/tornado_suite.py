"""A program that runs test modules of Tornado's installed package against our transport.

    python -m support.tornado_suite MODULE...

It prints a JSON object: the number of tests, and the end of the traceback of each failed test. A failed test is run
again, because some have deadlines of tenths of a second.
"""

import asyncio
import importlib
import io
import json
import logging
import os
import ssl
import sys
import unittest
from collections import Counter

from tornado import httpserver, httputil, netutil, testing
from tornado.ioloop import IOLoop

from tornado_signal import transport
from tornado_signal.limits.per_address import AdminConnectionLimiter
from tornado_signal.transport import ServerState


class OwnServer(httpserver.HTTPServer):
    """Tornado's HTTPServer, whose connections are those of our transport."""

    def add_sockets(self, sockets):
        loop = IOLoop.current()
        if loop.asyncio_loop.is_running():
            self._starting = asyncio.ensure_future(self._accept(sockets))
        else:
            loop.run_sync(lambda: self._accept(sockets))

    async def _accept(self, sockets):
        tls = self.ssl_options
        if tls is not None and not isinstance(tls, ssl.SSLContext):
            tls = netutil.ssl_options_to_context(tls, server_side=True)
        limiter = AdminConnectionLimiter(Counter())
        self._server = transport.Server(ServerState(self, lambda *_: (httputil.HTTPHeaders(), b""), limiter, tls))
        await self._server.start(sockets)

    def start_request(self, server_conn, request_conn):
        options = self.conn_params
        if options.max_body_size is not None:
            request_conn.set_max_body_size(options.max_body_size)
        return super().start_request(server_conn, request_conn)

    def stop(self):
        self._server.stop()

    async def close_all_connections(self):
        await self._server.close(1.0)


def run(tests):
    """Run tests. Return the result, and the failed tests with the end of their tracebacks."""
    result = unittest.TextTestRunner(stream=io.StringIO()).run(unittest.TestSuite(tests))
    traces = [*result.errors, *result.failures]
    # The first one can be a subtest.
    return result, {getattr(test, "test_case", test): trace.strip().splitlines()[-1] for test, trace in traces}


def main(*names):
    os.environ |= {"ASYNC_TEST_TIMEOUT": "10", "EMULATION": "1"}  # for slow machines
    logging.getLogger("tornado.access").setLevel(logging.CRITICAL)  # as Tornado's own program does
    modules = [importlib.import_module(f"tornado.test.{name}") for name in names]
    for module in (testing, *modules):
        if hasattr(module, "HTTPServer"):
            module.HTTPServer = OwnServer
    result, failed = run(map(unittest.defaultTestLoader.loadTestsFromModule, modules))
    again = [type(test)(test.id().rpartition(".")[2]) for test in failed]
    _, failed = run(again)
    ends = {test.id().removeprefix("tornado.test."): end for test, end in failed.items()}
    json.dump({"run": result.testsRun - len(result.skipped), "failed": ends}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
