"""Tornado's own tests, of its installed package, against our transport: each difference is known and has a reason."""

import json
import subprocess
import sys

import pytest
from support.paths import TESTS

MODULES = ("web_test", "httpserver_test", "simple_httpclient_test", "routing_test")
LEAST_TESTS = 490  # of these modules in Tornado 6.6.1

# The tests that fail, by the reason.
DIFFERENCES = {
    "The transport has no option decompress_request of HTTPServer.": [
        "httpserver_test.GzipMemoryTest.test_gzip_bomb",
        "httpserver_test.GzipTest.test_gzip",
        "httpserver_test.GzipTest.test_gzip_case_insensitive",
        "httpserver_test.GzipTest.test_gzip_concatenated",
        "httpserver_test.GzipTest.test_gzip_invalid",
        "httpserver_test.GzipTest.test_size_limit",
    ],
    "It has no option chunk_size: a piece of a body is as long as what was read.": [
        "httpserver_test.StreamingChunkSizeTest.test_chunked_body",
        "httpserver_test.StreamingChunkSizeTest.test_chunked_compressed",
        "httpserver_test.StreamingChunkSizeTest.test_compressed_body",
        "httpserver_test.StreamingChunkSizeTest.test_regular_body",
        "web_test.DecoratedStreamingRequestFlowControlTest.test_flow_control_chunked_body",
        "web_test.DecoratedStreamingRequestFlowControlTest.test_flow_control_compressed_body",
        "web_test.DecoratedStreamingRequestFlowControlTest.test_flow_control_fixed_body",
        "web_test.NativeStreamingRequestFlowControlTest.test_flow_control_chunked_body",
        "web_test.NativeStreamingRequestFlowControlTest.test_flow_control_compressed_body",
        "web_test.NativeStreamingRequestFlowControlTest.test_flow_control_fixed_body",
    ],
    "It has no options idle_connection_timeout, max_header_size and protocol, but fixed limits.": [
        "httpserver_test.IdleTimeoutTest.test_idle_after_use",
        "httpserver_test.IdleTimeoutTest.test_unused_connection",
        "httpserver_test.MaxHeaderSizeTest.test_large_headers",
        "httpserver_test.ManualProtocolTest.test_manual_protocol",
    ],
    "It has no option xheaders. Applications read these headers themselves.": [
        "httpserver_test.SSLXHeaderTest.test_request_without_xprotocol",
        "httpserver_test.XHeaderTest.test_ip_headers",
        "httpserver_test.XHeaderTest.test_scheme_headers",
        "httpserver_test.XHeaderTest.test_trusted_downstream",
    ],
    "The test uses a private member of Tornado's connection: `stream`.": [
        "simple_httpclient_test.HTTP100ContinueTestCase.test_100_continue",
        "web_test.ClientCloseTest.test_client_close",
    ],
    "The status is 413 in place of 400, or 408 in place of a close, and no line is in Tornado's log.": [
        "httpserver_test.BodyLimitsTest.test_body_size_override_reset",
        "httpserver_test.BodyLimitsTest.test_large_body_buffered",
        "httpserver_test.BodyLimitsTest.test_large_body_buffered_chunked",
        "httpserver_test.BodyLimitsTest.test_large_body_streaming",
        "httpserver_test.BodyLimitsTest.test_large_body_streaming_chunked",
        "httpserver_test.BodyLimitsTest.test_timeout",
    ],
    "The request is refused, but without a line in Tornado's log, which clients could fill.": [
        "httpserver_test.HTTPServerRawTest.test_chunked_request_body_duplicate_header",
        "httpserver_test.HTTPServerRawTest.test_chunked_request_body_invalid_size",
        "httpserver_test.HTTPServerRawTest.test_chunked_request_body_transfer_encoding_and_content_length",
        "httpserver_test.HTTPServerRawTest.test_chunked_request_body_unsupported_transfer_encoding",
        "httpserver_test.HTTPServerRawTest.test_content_length_list_whitespace",
        "httpserver_test.HTTPServerRawTest.test_invalid_content_length",
        "httpserver_test.HTTPServerRawTest.test_invalid_host_header_with_whitespace",
        "httpserver_test.HTTPServerRawTest.test_invalid_methods",
        "httpserver_test.HTTPServerRawTest.test_malformed_first_line_log",
        "httpserver_test.HTTPServerRawTest.test_malformed_first_line_response",
        "httpserver_test.HTTPServerRawTest.test_malformed_headers",
        "httpserver_test.UnixSocketTestAbstract.test_unix_socket_bad_request",
        "httpserver_test.UnixSocketTestFile.test_unix_socket_bad_request",
    ],
    "HTTP at a port for TLS gets a 400 that says so, and a line in the log.": [
        "httpserver_test.SSLTest.test_error_logging",
        "httpserver_test.SSLTest.test_non_ssl_request",
    ],
    "A line feed alone ends no line, and HTTP/1.0 has no chunks: proxies interpret them differently.": [
        "httpserver_test.HTTPConnectionTest.test_newlines",
        "httpserver_test.KeepAliveTest.test_keepalive_chunked",
    ],
    "HTTP/1.0 also gets `Connection: close`, and `keep-alive` is in lower case.": [
        "httpserver_test.KeepAliveTest.test_http10",
        "httpserver_test.KeepAliveTest.test_http10_keepalive",
        "httpserver_test.KeepAliveTest.test_http10_keepalive_extra_crlf",
    ],
    "The Transfer-Encoding of a handler is not sent, so that the response has one length.": [
        "simple_httpclient_test.ChunkedWithContentLengthTest.test_chunked_with_content_length"
    ],
}


@pytest.mark.weekly
@pytest.mark.timeout(900)
def test_tornados_own_tests_differ_only_as_listed():
    command = [sys.executable, "-m", "support.tornado_suite", "own", *MODULES]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, check=True, timeout=800)
    found = json.loads(done.stdout)
    expected = {name for names in DIFFERENCES.values() for name in names}
    unexpected = {name: end for name, end in found["failed"].items() if name not in expected}
    assert (unexpected, expected - found["failed"].keys()) == ({}, set())
    assert found["run"] >= LEAST_TESTS
