"""Tornado's own tests, of its installed package, against our transport: each difference is known and has a reason."""

import json
import re
import subprocess
import sys

import pytest
from support.paths import TESTS

MODULES = ("web_test", "httpserver_test", "simple_httpclient_test", "routing_test")
LEAST_TESTS = 490  # of these modules in Tornado 6.6.1

# The reasons, and the tests that fail, without `test_`, by their class.
DIFFERENCES = """
The transport has no option decompress_request of HTTPServer.
    httpserver_test.GzipMemoryTest: gzip_bomb
    httpserver_test.GzipTest: gzip gzip_case_insensitive gzip_concatenated gzip_invalid size_limit
It has no option chunk_size: a piece of a body is as long as what was read.
    httpserver_test.StreamingChunkSizeTest: chunked_body chunked_compressed compressed_body regular_body
    web_test.DecoratedStreamingRequestFlowControlTest: flow_control_chunked_body flow_control_compressed_body
        flow_control_fixed_body
    web_test.NativeStreamingRequestFlowControlTest: flow_control_chunked_body flow_control_compressed_body
        flow_control_fixed_body
It has no options idle_connection_timeout, max_header_size and protocol, but fixed limits.
    httpserver_test.IdleTimeoutTest: idle_after_use unused_connection
    httpserver_test.MaxHeaderSizeTest: large_headers
    httpserver_test.ManualProtocolTest: manual_protocol
It has no option xheaders. Applications read these headers themselves.
    httpserver_test.SSLXHeaderTest: request_without_xprotocol
    httpserver_test.XHeaderTest: ip_headers scheme_headers trusted_downstream
The test uses a private member of Tornado's connection: `stream`.
    simple_httpclient_test.HTTP100ContinueTestCase: 100_continue
    web_test.ClientCloseTest: client_close
The status is 413 in place of 400, or 408 in place of a close, and no line is in Tornado's log.
    httpserver_test.BodyLimitsTest: body_size_override_reset large_body_buffered large_body_buffered_chunked
        large_body_streaming large_body_streaming_chunked timeout
The request is refused, but without a line in Tornado's log, which clients could fill.
    httpserver_test.HTTPServerRawTest: chunked_request_body_duplicate_header chunked_request_body_invalid_size
        chunked_request_body_transfer_encoding_and_content_length
        chunked_request_body_unsupported_transfer_encoding content_length_list_whitespace invalid_content_length
        invalid_host_header_with_whitespace invalid_methods malformed_first_line_log
        malformed_first_line_response malformed_headers
    httpserver_test.UnixSocketTestAbstract: unix_socket_bad_request
    httpserver_test.UnixSocketTestFile: unix_socket_bad_request
HTTP at a port for TLS gets a 400 that says so, and a line in the log.
    httpserver_test.SSLTest: error_logging non_ssl_request
A line feed alone ends no line, and HTTP/1.0 has no chunks: proxies interpret them differently.
    httpserver_test.HTTPConnectionTest: newlines
    httpserver_test.KeepAliveTest: keepalive_chunked
HTTP/1.0 also gets `Connection: close`, and `keep-alive` is in lower case.
    httpserver_test.KeepAliveTest: http10 http10_keepalive http10_keepalive_extra_crlf
The Transfer-Encoding of a handler is not sent, so that the response has one length.
    simple_httpclient_test.ChunkedWithContentLengthTest: chunked_with_content_length
"""


@pytest.mark.weekly
@pytest.mark.timeout(900)
@pytest.mark.slow
def test_tornados_own_tests_differ_only_as_listed():
    command = [sys.executable, "-m", "support.tornado_suite", *MODULES]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, check=True, timeout=800)
    found = json.loads(done.stdout)
    classes = [part.split(":") for part in re.sub(r"\n {8}", " ", DIFFERENCES).splitlines() if part.startswith(" ")]
    expected = {f"{name.strip()}.test_{test}" for name, tests in classes for test in tests.split()}
    unexpected = {name: end for name, end in found["failed"].items() if name not in expected}
    assert (unexpected, expected - found["failed"].keys()) == ({}, set())
    assert found["run"] >= LEAST_TESTS
