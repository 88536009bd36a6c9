"""A mix of attacks for some seconds: other clients are not affected, and no resources stay in use.

The weekly run has each attack alone, for a minute (`tests/hostile/run`).
"""

import pytest

from .trial import against, attempt


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["mixed", "mixed-websockets"])
def test_honest_peers_are_served_and_nothing_is_kept(name):
    assert against(attempt(name, 2.5, quiet_s=1, disk_recovery_s=0), busy=True) == {}
