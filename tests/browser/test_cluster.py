"""Members of rooms, pages and programs, publish again when their server has lost its data."""

import pytest
from support.browsers import listed, until
from support.members import Program, enter, forking
from support.waiting import end_all

pytestmark = pytest.mark.slow


@pytest.mark.needs("aiortc")
def test_members_of_rooms_publish_again_when_redis_was_emptied(redis_server, site, connect_page, tmp_path, start):
    redis = redis_server()
    server = start("--durability", "os", redis=redis)
    until(lambda: redis.ask("KEYS", "*:probe:*"))

    def beacons():
        found = [until(lambda name=name: listed(server, site.origin, f"room~{name}")) for name in ("pages", "programs")]
        return [(each["info"], each["code"]) for (each,) in found]

    with forking() as template, end_all(Program, Program.end) as run:
        enter(connect_page(server), "Ada", "pages")
        enter(run(template, [server.url], site.origin, "Bob", tmp_path), "Bob", "programs")
        before = beacons()
        redis.ask("FLUSHALL")
        after = beacons()
        assert [info for info, _ in after] == ["Ada", "Bob"]
        assert not {*before} & {*after}
    assert server.stop() == 0
