"""One address at its worst for some seconds, on waits and streams: nobody else feels it, and nothing is left."""

import pytest

from .verdict import harm

NAMES = [
    "watch-one-topic",
    "listen-after-withdrawals",
    "wake-many-polls",
    "bodies-behind-waits",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_attack(name, tmp_path):
    """Honest peers are served in time, and memory, descriptors and threads are as before when it is over."""
    found = harm(name, tmp_path)
    assert not found, "; ".join(found)
