"""One address at its worst for some seconds, over WebSockets: nobody else feels it, and nothing is left."""

import pytest

from .verdict import harm

NAMES = ["unfinished-messages", "go-on-in-batches", "do-not-read-websockets", "mixed-websockets"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_attack(name, tmp_path):
    """Honest peers are served in time, what breaks the rules is told so, and all is as before when it is over."""
    found = harm(name, tmp_path)
    assert not found, "; ".join(found)
