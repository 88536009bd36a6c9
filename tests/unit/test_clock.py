"""The time of the server follows the wall clock, never goes backwards and never stands still."""

from hypothesis import given
from hypothesis import strategies as st

from tornado_signal.system.clock import Clock, ClockWarning

SECOND_NS = 10**9


class FakeMachine:
    def __init__(self, wall_ns=1_700_000_000 * SECOND_NS, monotonic_ns=12_345):
        self.wall_ns, self.monotonic_ns = wall_ns, monotonic_ns

    def clock(self, floor_ms=0):
        clock = Clock(lambda: self.wall_ns, lambda: self.monotonic_ns)
        clock.advance_to(floor_ms)
        return clock

    def pass_ns(self, ns, jump_ns=0):
        self.monotonic_ns += ns
        self.wall_ns += ns + jump_ns


def test_follows_the_wall_clock_including_jumps_forward_and_continues_at_its_pace_after_a_jump_back():
    machine = FakeMachine()
    clock = machine.clock()
    began_ms = clock.now_ms()
    assert began_ms == 1_700_000_000_000
    steps = [(999_999, 0, 0), (1, 0, 1), (0, 3600, 3_600_001), (0, -10, 3_600_001), (SECOND_NS, 0, 3_601_001)]
    for passed_ns, jump_s, shown_ms in [*steps, (8 * SECOND_NS, 0, 3_609_001), (0, 20, 3_619_001)]:
        machine.pass_ns(passed_ns, jump_s * SECOND_NS)
        assert clock.now_ms() - began_ms == shown_ms
    assert clock.now_ms() == machine.wall_ns // 10**6


def test_pause_between_reading_both_clocks_has_no_lasting_effect():
    machine = FakeMachine()
    pauses_ns = iter([0, 0, 0, 50_000_000, 50_000_000, 0, 0])  # the first one is in the constructor

    def read_clock(name):
        machine.pass_ns(next(pauses_ns))
        return getattr(machine, name)

    clock = Clock(lambda: read_clock("wall_ns"), lambda: read_clock("monotonic_ns"))
    for _ in range(2):
        began_ms = machine.wall_ns // 10**6
        assert began_ms <= clock.now_ms() <= machine.wall_ns // 10**6
    assert clock.now_ms() == machine.wall_ns // 10**6


def test_difference_from_the_store_is_logged_at_its_begin_and_its_end(caplog):
    caplog.set_level("INFO")
    ahead_s = 0.0
    warning = ClockWarning(lambda: ahead_s)
    for ahead_s in (0.0, 59.0, 3600.0, 3600.0, 60.0, 0.0, 0.0, -61.0, -70.0):  # noqa: B007 (read above)
        warning.check()
    logged = [(record.levelname, record.getMessage().partition(":")[0]) for record in caplog.records]
    assert logged == [
        ("WARNING", "the time of the store is 3600 s ahead of this machine's clock"),
        ("INFO", "the time of the store agrees with this machine's clock again"),
        ("WARNING", "the time of the store is 61 s behind this machine's clock"),
    ]


@given(
    floor_ms=st.integers(1_600_000_000_000, 2**41),
    moves=st.lists(st.tuples(st.integers(0, 10**12), st.integers(-(10**15), 10**15)), max_size=20),
)
def test_never_goes_backwards_nor_stands_still(floor_ms, moves):
    machine = FakeMachine()
    clock = machine.clock(floor_ms)
    shown_ms = clock.now_ms()
    assert shown_ms >= floor_ms
    for passed_ns, jump_ns in moves:
        machine.pass_ns(passed_ns, jump_ns)
        now_ms = clock.now_ms()
        assert now_ms >= shown_ms + passed_ns // 10**6
        assert now_ms >= machine.wall_ns // 10**6
        shown_ms = now_ms
