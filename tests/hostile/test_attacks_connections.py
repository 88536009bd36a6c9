"""One address at its worst for some seconds, on connections and requests: nobody else feels it, and nothing is left."""

import pytest

from .verdict import harm

NAMES = [
    "silent-before-handshake",
    "silent-connections",
    "go-on-after-429",
    "draw-codes",
    "slow-bodies",
    "huge-heads",
    "mixed",  # also of what fills the disk and of what expires together
]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_attack(name, tmp_path):
    """Honest peers are served in time, and memory, descriptors and threads are as before when it is over."""
    found = harm(name, tmp_path)
    assert not found, "; ".join(found)
