"""What tests of stores share."""

import pytest


@pytest.fixture
def one(store, under):
    """The store as one origin sees it."""
    return under(store)
