"""Fixtures of the tests of the installed command."""

import pytest
from support.command import Server


@pytest.fixture
def start(tmp_path):
    """Return a function that starts the command in an empty directory, with its data in `data`."""
    started = []

    def starting(*arguments, **options):
        started.append(Server(*arguments, **{"cwd": tmp_path, **options}))
        return started[-1]

    yield starting
    for server in started:
        server.end()
