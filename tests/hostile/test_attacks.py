"""An attacking address for some seconds: other clients are not affected, and no resources stay in use."""

import pytest

from .attacks import ATTACKS
from .trial import attempt
from .verdict import QUIET_S, SECONDS, against, harm

NAMES = [
    # `mixed` also contains what fills the disk and what expires at once.
    "silent-before-handshake", "silent-connections", "go-on-after-429", "slow-bodies", "huge-heads",
    "mixed", "leave-in-listing", "write-then-list", "write-then-poll", "do-not-read", "do-not-read-streams",
    "watch-one-topic", "listen-after-withdrawals", "wake-many-polls", "bodies-behind-waits",
    "unfinished-messages", "go-on-in-batches", "do-not-read-websockets", "mixed-websockets",
    "large-waits", "flood-of-pongs", "store-in-batches",
    "claim-ids", "join-rooms", "publish-to-a-crowd", "do-not-read-in-a-crowd", "announce-in-swarms",
    "subscribe-to-topics", "publish-wrong-events", "enter-and-leave-rooms",
    "broken-messages-of-protocols", "come-without-a-token",
]  # fmt: skip
assert ATTACKS.keys() >= {*NAMES}, "a weekly test would be the first to miss it"


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if "mixed" in name else pytest.mark.weekly) for name in NAMES]
)
def test_honest_peers_are_served_and_nothing_is_kept(name, tmp_path):
    failures = harm(name, tmp_path)
    assert not failures, "; ".join(failures)


@pytest.mark.needs("root")
@pytest.mark.weekly
@pytest.mark.timeout(400)
def test_small_disk_that_is_filled_is_given_back(tmp_path):
    outcome = attempt("fill-small-disk", SECONDS, quiet_s=QUIET_S, directory=tmp_path, disk_after_s=90)
    assert outcome.disk_level_s is not None
    failures = against(outcome)
    assert not failures, "; ".join(failures)
