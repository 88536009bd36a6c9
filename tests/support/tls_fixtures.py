"""Fixtures of the tests with TLS: `pytest_plugins = ["support.tls_fixtures"]` brings them."""

import pytest

from .certificates import client_context, make_pair


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Certificates by their names: two with keys of one type, and one with another."""
    directory = tmp_path_factory.mktemp("pairs")
    return {
        "first": make_pair(directory, "first"),
        "second": make_pair(directory, "second"),
        "rsa": make_pair(directory, "rsa", kind="rsa"),
    }


@pytest.fixture
def trusting(pairs):
    """A client's context that trusts them all."""
    return client_context(*pairs.values())


@pytest.fixture
def pair(tmp_path, pairs):
    """The files that a server reads, with the first certificate in them."""
    own = type(pairs["first"])(tmp_path / "server.crt", tmp_path / "server.key")
    own.replace(pairs["first"])
    return own
