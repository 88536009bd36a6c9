"""Fixtures for tests with TLS. Load them with `pytest_plugins = ["support.tls_fixtures"]`."""

import pytest

from .certificates import client_context, make_pair


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pairs")
    return {
        name: make_pair(directory, name, kind) for name, kind in (("first", "ec"), ("second", "ec"), ("rsa", "rsa"))
    }


@pytest.fixture
def trusting(pairs):
    return client_context(*pairs.values())


@pytest.fixture
def pair(tmp_path, pairs):
    """Certificate and key files for a server, with the first certificate."""
    own = type(pairs["first"])(tmp_path / "server.crt", tmp_path / "server.key")
    own.replace(pairs["first"])
    return own
