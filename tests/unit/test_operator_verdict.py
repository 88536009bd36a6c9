"""The verdict of the operator's page: its rules, and that the alert rules and the documentation have the same."""

import re

import pytest
from support.documents import table
from support.paths import SYSTEMD

from tornado_signal.metrics import Histogram
from tornado_signal.operator import verdict as rules
from tornado_signal.operator.history import MAX_POINTS, SLICE_MS, History, Point, Totals, merge
from tornado_signal.operator.verdict import LEAST_REFUSED, RULES, WINDOW, find_troubles, judge

CALM = Point(0, 100, 1, 0, 0, 0, 0, 0, 0, 0.001, 0.001, None, 0.1, 0, 0)


def after(**figures):
    """The points of an hour that is calm but for the last minute."""
    return [CALM] * 300 + [CALM._replace(**figures)] * 6


# 25 refused requests are 5 % of five minutes, and 5 or 3 are too few.
WELL = [{}, {"used": 0.8}, {"lag_s": 0.1}, {"lag_s": None}, {"refused": 25}, {"refused": 5, "requests": 5}]
WELL += [{"unconnected": 10, "connected": 90}, {"unconnected": 3}]


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        *[(figures, {}) for figures in WELL],
        *[({name: 1}, {rule: 1}) for name, rule in (("down", "store"), ("full", "full"))],
        *[({name: 1}, {name: 6}) for name in ("defects", "failed")],
        ({"used": 0.81}, {"limit": 0.81}),
        ({"lag_s": 0.2}, {"lag": 0.2}),
        ({"refused": 26}, {"refused": 156 / 3000}),
        ({"unconnected": 11, "connected": 90}, {"unconnected": 11 / 101}),
    ],
)
def test_rules(figures, expected):
    assert find_troubles(after(**figures)) == expected


def test_few_refusals_of_an_idle_server_are_no_trouble():
    idle = [CALM._replace(requests=0)] * WINDOW
    for number, troubles in ((LEAST_REFUSED, set()), (LEAST_REFUSED + 1, {"refused"})):
        assert find_troubles([*idle, CALM._replace(requests=number, refused=number)]).keys() == troubles


def test_trouble_has_its_begin_ends_and_stays_in_the_bounded_history():
    now_ms, failed = 10 * SLICE_MS, 0
    none = Histogram((1.0,))

    def read():
        return Totals((failed, 0, 0, failed, 0, 0, 0, 0), (none, none, none), 0.0, down=False, full=False)

    history = History(read, lambda: now_ms, find_troubles)
    for number in range(2 * MAX_POINTS):
        failed += number == 500
        history.rotate()
        now_ms += SLICE_MS
        if number == 510:
            assert history.troubles() == [["failed", 509 * SLICE_MS, 1]]
    assert history.troubles() == []
    points = history.points()
    assert len(points) == MAX_POINTS + 1
    (begin, *_, end) = [point.time for point in points if point.troubles]
    assert (begin, end - begin) == (509 * SLICE_MS, (WINDOW - 1) * SLICE_MS)


def test_histories_of_several_processes_are_one():
    one = [CALM._replace(time=SLICE_MS), CALM._replace(time=2 * SLICE_MS, lag_s=None, troubles=["lag"])]
    other = [CALM._replace(time=2 * SLICE_MS + 9000, used=0.5, lag_s=0.2)]
    first, second = [Point(*point) for point in merge([one, other])]
    assert first == one[0]._replace(time=SLICE_MS)
    assert second == CALM._replace(time=2 * SLICE_MS, requests=200, pairs=2, used=0.5, lag_s=0.2, troubles=("lag",))


def process(clients, **more):
    rows = [{"client": name, "refused": number} for name, number in clients.items()]
    refusals = [[400, "Origin", 900, 0, 300], [404, "session not found", 500, 0, 500], [503, "full", 9, 0, 9]]
    return {"clients": rows, "refusals": refusals, "troubles": [["refused", 5, 0.5]], "room": {}, "full": [], **more}


@pytest.mark.parametrize(
    ("clients", "who"),
    [
        ({"192.0.2.7": 297, "192.0.2.8": 3}, "99 % from 192.0.2.7"),
        ({"192.0.2.7": 297, "192.0.2.0/24": 300}, "99 % from 192.0.2.7"),
        ({"192.0.2.7": 100, "192.0.2.8": 100, "192.0.2.9": 100, "192.0.2.0/24": 300}, "100 % from 192.0.2.0/24"),
        ({"2001:db8::/64": 160, "192.0.2.8": 140}, "53 % from 2001:db8::/64"),
        ({"192.0.2.7": 100, "198.51.100.8": 100, "203.0.113.9": 100}, "from 3 clients"),
    ],
)
def test_cause_names_reason_and_client(clients, who):
    verdict = judge([process(clients)], [])
    assert (verdict["level"], verdict["since"]) == ("strained", 5)
    assert verdict["causes"][0]["text"] == f"50 % of the requests are refused, 300 in 5 minutes: no Origin; {who}"


def test_worst_rule_decides_and_earlier_versions_have_none():
    room = {"connections": (81, 100), "store": (5, 100)}
    calm = process({}, troubles=[])
    troubles = [["limit", 3, 0.81], ["failed", 7, 2], ["full", 4, 1]]
    verdict = judge([process({}, troubles=troubles, room=room, full=["disk"]), calm], [])
    assert (verdict["level"], verdict["since"]) == ("failing", 7)
    causes = [(cause["rule"], cause["since"]) for cause in verdict["causes"]]
    assert causes == [("failed", 7), ("full", 4), ("limit", 3)]
    texts = [cause["text"] for cause in verdict["causes"]]
    assert texts[0] == "2 requests of 5 minutes failed (5xx): full (503)"
    assert "disk" in texts[1]
    assert texts[2] == "81 % of the limit of connections are used"
    del calm["troubles"]
    assert judge([calm], [])["level"] == "well"
    cause = {"rule": "missing", "level": "failing", "since": None, "text": "no response from a/1"}
    assert judge([], ["a/1"]) == {"level": "failing", "since": None, "causes": [cause]}


def test_alerts_and_documentation_have_the_same_thresholds():
    alerts = (SYSTEMD / "monitoring" / "alerts.yml").read_text()
    for rule in RULES:
        for name in rule.alerts:
            rule_of = re.compile(rf"alert: TornadoSignal{name}\n +expr: (.*?)\n +(?:for|labels):", re.DOTALL)
            expression = rule_of.search(alerts)[1]
            found = re.findall(r"(==|<|>) ?([\d.]+|tornado_signal_workers)", expression)
            kinds = {"NotReady": ("==", "0"), "Full": ("==", "1"), "WorkerMissing": ("<", "tornado_signal_workers")}
            assert found[0] == kinds.get(name, (">", f"{rule.threshold:g}")), name
            if name == "Refusals":
                assert found[1] == (">", str(LEAST_REFUSED))
                assert f'reason!~"{"|".join(rules.NOT_REFUSED)}"' in expression
            assert name != "Unconnected" or f">= {rules.LEAST_REPORTED}" in expression
    rows = table("operator-page", "Verdict", "level")
    named = [", ".join(f"`TornadoSignal{name}`" for name in rule.alerts) for rule in RULES]
    assert rows == [[rule.level, rule.meaning, names] for rule, names in zip(RULES, named, strict=True)]
