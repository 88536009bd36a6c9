"""One address at its worst for some seconds, on what is stored and read: nobody else feels it, and nothing is left."""

import pytest

from .trial import attempt
from .verdict import QUIET_S, SECONDS, against, harm

NAMES = [
    "leave-in-listing",
    "write-then-list",
    "write-then-poll",
    "do-not-read",
    "do-not-read-streams",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_attack(name, tmp_path):
    """Honest peers are served in time, and memory, descriptors and threads are as before when it is over."""
    found = harm(name, tmp_path)
    assert not found, "; ".join(found)


@pytest.mark.needs("root")
@pytest.mark.slow
@pytest.mark.timeout(150)
def test_small_disk(tmp_path):
    """A disk that an address could fill is given back when its sessions have expired, and all goes on. Needs root."""
    outcome = attempt("fill-small-disk", SECONDS, quiet_s=QUIET_S, directory=tmp_path, disk_after_s=90)
    assert outcome.disk_level_s is not None
    found = against(outcome)
    assert not found, "; ".join(found)
