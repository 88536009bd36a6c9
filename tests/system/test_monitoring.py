"""The alert rules and the dashboard: sound by Prometheus' own tools, and true of a server that Prometheus watches."""

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
import uuid
from pathlib import Path

import pytest
from support.certificates import make_pair
from support.command import BOUND_S, ORIGIN
from support.disks import injected
from support.documents import blocks, pages
from support.needs import require
from support.paths import SYSTEMD
from support.redis_servers import RedisCluster, RedisServer, fixture, free_port
from support.redis_traffic import PARTITIONS
from support.scraping import scrape
from support.tokens import write_secret
from support.traffic import offer, request, traffic
from support.waiting import run_command, until
from support.webhooks import Receiver, status
from support.webhooks import write_secret as webhook_secret

MONITORING = SYSTEMD / "monitoring"
ALERTS = MONITORING / "alerts.yml"
CASES = Path(__file__).with_name("alerts.yml")
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
METRIC = re.compile(r"\b(?:tornado_signal|process|python)_[a-z_]+\b")
VARIABLES = {"$job": "tornado-signal", "$instance": ".+", "$__rate_interval": "30s"}


def promtool(*arguments):
    require("promtool")
    done = run_command("promtool", *arguments)
    return done.returncode == 0, done.stdout + done.stderr


def queries():
    targets = [(panel["title"], target) for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [(title, target["expr"], target["legendFormat"]) for title, target in targets]


def expressions():
    rules = re.split(r"^ +- alert: ", ALERTS.read_text(), flags=re.MULTILINE)[1:]
    return {rule.split("\n")[0]: re.search(r"expr: (.*?)\n +(?:for|labels):", rule, re.DOTALL)[1] for rule in rules}


def test_promtool_accepts_every_rule():
    sound, said = promtool("check", "rules", ALERTS)
    assert sound, said
    assert f"{len(expressions())} rules found" in said
    assert len(expressions()) == 23
    descriptions = re.findall(r"description: (.*(?:\n {12}.*)*)", ALERTS.read_text())
    assert len(descriptions) == len(expressions())
    assert "{{" not in "".join(descriptions)


def test_alerts_fire_only_under_their_conditions(tmp_path):
    rules, descriptions = re.subn(r"\n {10}description: .*(?:\n {12}.*)*", "", ALERTS.read_text())
    assert descriptions == len(expressions())
    cases = CASES.read_text()
    assert set(re.findall(r"alertname: (\w+), eval_time: \w+, exp_alerts", cases)) == expressions().keys()
    (tmp_path / "alerts.yml").write_text(rules)
    (tmp_path / "cases.yml").write_text(cases.replace("RULES", "alerts.yml"))
    sound, said = promtool("test", "rules", tmp_path / "cases.yml")
    assert sound, said


def test_dashboard_queries_existing_metrics():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [tuple(panel["gridPos"][name] for name in "xywh") for panel in panels]
    taken = [place for x, y, w, h in places for place in itertools.product(range(x, x + w), range(y, y + h))]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24
    assert all(panel["title"] and panel["description"] for panel in panels)
    names = {"$" + variable["name"] for variable in DASHBOARD["templating"]["list"]} | {"$__rate_interval"}
    for _, query, _ in queries():
        assert set(re.findall(r"\$\w+", query)) <= names


redis = fixture(RedisServer, "redis")


@pytest.fixture
def servers(redis, start, tmp_path):
    """A server on LevelDB, and one of two processes on Redis, both with a receiver of webhooks."""
    with Receiver() as receiver:
        flags = ("--admin-port", "0", "--allowed-origins", f"{ORIGIN},https://hidden.example")
        flags += ("--webhook-url", receiver.url, *webhook_secret(tmp_path))
        one, several = start(*flags), start(*flags, "--durability", "os", "--workers", "2", redis=redis)
        yield one, several
        several.stop()  # a killed one would leave the folder that its processes share


def test_every_documented_metric_is_exported(servers, redis, start, tmp_path):
    named = set(METRIC.findall(ALERTS.read_text()))
    named |= {metric for _, query, _ in queries() for metric in METRIC.findall(query)}
    named |= {metric for page in pages().values() for metric in METRIC.findall(page)}
    named -= {"tornado_signal_client", "process_frame"}  # the Python client, and a signal of Godot
    samples = set()
    redis.ask("SCRIPT FLUSH")  # and something has to be tried again
    for server in servers:
        _, code = traffic(server)
        request(server, "POST", "/poll", {"code": code, "side": "offerer", "wait": 0.1})
    protected = start("--admin-port", "0", "--auth-keys", write_secret(tmp_path / "keys"), data="protected")
    protected.exchange("/topics", token="nonsense")
    flags = ("--webhook-url", "http://127.0.0.1:1", *webhook_secret(tmp_path), "--connection-reports")
    flags += ("--turn-provider", "http://127.0.0.1:1")
    secret = {"TORNADO_SIGNAL_TURN_PROVIDER_SECRET": "the secret of a provider"}
    hooked = start("--admin-port", "0", *flags, data="hooked", **secret)
    assert hooked.exchange("/report", {"outcome": "failed", "ms": 1})[0] == 204
    for server in (*servers, protected, hooked):
        families = scrape(server.admin_url).families
        samples |= {sample.name for family in families.values() for sample in family.samples}
        samples |= families.keys()  # of a histogram
    secure = start("--admin-port", "0", *make_pair(tmp_path).flags, data="secure")
    samples |= scrape(secure.admin_url).families.keys()
    assert named - samples == set()
    assert len(named) > 25


class Prometheus(contextlib.AbstractContextManager):
    def __init__(self, folder, targets, alerts):
        self.url = f"http://127.0.0.1:{free_port()}"
        # The text of the page without addresses and intervals.
        (block,) = blocks("monitoring", "Alerts and dashboard", "yaml")
        config = block.replace('"127.0.0.1:3001"', ", ".join(map(json.dumps, targets))).replace("/etc/prometheus/", "")
        intervals = "{scrape_interval: 3s, scrape_timeout: 3s, evaluation_interval: 1s}"
        (folder / "prometheus.yml").write_text(f"global: {intervals}\n{config}")
        (folder / "tornado-signal.yml").write_text(alerts)
        sound, said = promtool("check", "config", folder / "prometheus.yml")
        assert sound, said
        assert "1 rule files found" in said
        flags = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
        flags.append(f"--web.listen-address={self.url.removeprefix('http://')}")
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(["prometheus", *flags], **quiet)

    def ask(self, path, **parameters):
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=BOUND_S) as response:
            return json.load(response)["data"]

    def query(self, expression):
        return self.ask("query", query=expression)["result"]

    def until(self, wanted):
        def reached():
            with contextlib.suppress(OSError):
                return wanted()

        return until(reached)

    def firing(self):
        """Return the firing alerts: their names without prefix, and their servers."""
        labels = [alert["labels"] for alert in self.ask("alerts")["alerts"] if alert["state"] == "firing"]
        return {(each["alertname"].removeprefix("TornadoSignal"), each.get("instance")) for each in labels}

    def fires(self, wanted, provoke):
        """Wait until the wanted alerts have fired, and provoke them meanwhile. Return all that have fired."""
        seen = set()
        with contextlib.suppress(AssertionError):
            self.until(lambda: provoke() or seen.update(self.firing()) or wanted <= seen)
        assert wanted - seen == set()
        return seen

    def __exit__(self, *exc):
        self.process.kill()
        self.process.wait()


def instance(server):
    return server.admin_url.removeprefix("http://")


@contextlib.contextmanager
def work(servers, redis):
    over = threading.Event()

    def working():
        while not over.wait(0.2):
            redis.ask("SCRIPT FLUSH")
            for server in servers:
                _, code = traffic(server)
                request(server, "POST", "/poll", {"code": code, "side": "offerer", "wait": 0.1})
                offer(server)

    thread = threading.Thread(target=working)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def impatient():
    return re.sub(r"for: \d+m", "for: 1s", ALERTS.read_text())


@pytest.fixture
def prometheus(servers, tmp_path):
    with Prometheus(tmp_path, map(instance, servers), impatient()) as prometheus:
        yield prometheus


@pytest.mark.slow
def test_prometheus_scrapes_a_server_and_alerts_when_it_is_down(servers, redis, prometheus, subtests):
    with work(servers, redis):
        enough = "count(count_over_time(tornado_signal_ready[1m]) > 2) == 3"  # one process, and two
        prometheus.until(lambda: prometheus.query(enough))
        targets = prometheus.ask("targets")["activeTargets"]
        assert [(target["health"], target["lastError"]) for target in targets] == [("up", "")] * 2
        assert {target["scrapeUrl"] for target in targets} == {f"{server.admin_url}/metrics" for server in servers}

        def rules():
            (group,) = prometheus.until(lambda: prometheus.ask("rules")["groups"])
            return group["rules"]

        healths = [(rule["health"], rule.get("lastError", "")) for rule in rules()]
        assert healths == [("ok", "")] * len(expressions())
        # A machine that runs tests can be busy, Redis forgets its scripts all the time, and `traffic` is also refused.
        usual = {"TornadoSignalLoopLag", "TornadoSignalSlowDisk", "TornadoSignalSlowRedis", "TornadoSignalRedisRetries"}
        usual.add("TornadoSignalRefusals")
        prometheus.until(lambda: {rule["name"] for rule in rules() if rule["state"] != "inactive"} <= usual)
        for title, query, legend in queries():
            with subtests.test(title, query=query):
                for name, value in VARIABLES.items():
                    query = query.replace(name, value)
                assert "$" not in query
                if "compaction" in query:  # there was none, so there is no average
                    query = query.split(" / ")[0]
                found = prometheus.until(lambda query=query: prometheus.query(query))
                assert len(found) == 1 or "{{" in legend, found
    server, _ = servers
    server.process.kill()

    def alerts():
        return [alert for alert in prometheus.ask("alerts")["alerts"] if alert["state"] == "firing"]

    (alert,) = prometheus.until(lambda: [each for each in alerts() if each["labels"]["alertname"].endswith("Down")])
    labels = {"alertname": "TornadoSignalDown", "severity": "critical", "job": "tornado-signal"}
    assert alert["labels"] == labels | {"instance": instance(server)}
    assert alert["annotations"]["summary"] == f"tornado-signal on {instance(server)} does not respond."


@pytest.mark.slow
@pytest.mark.needs("strace")
def test_alerts_fire_in_prometheus_when_their_conditions_occur(redis, start, tmp_path):
    (tmp_path / "signal.toml").write_text("max_offer = 100\n")
    certificate, offered = make_pair(tmp_path).flags, {"info": "i", "offer": "o"}
    with Receiver() as receiver, RedisCluster("redis", 1, 1) as cluster, contextlib.ExitStack() as stack:
        receiver.behaviour = status(500)

        def serve(name, *flags, **options):
            return start("--admin-port", "0", *flags, data=name, **options)

        workers = ("--durability", "os", "--workers", "2")
        reloaded = serve("reloaded", "--config", tmp_path / "signal.toml", "--max-connections", "3")
        secure, small = serve("secure", *certificate), serve("small", "--max-store-bytes", "1000000")
        hooked = serve("hooked", "--webhook-url", receiver.url, *webhook_secret(tmp_path))
        slow, broken = serve("slow"), serve("broken")
        limited = serve("limited", "--max-sessions-per-origin", "1")
        alone, several = serve(None, *workers, redis=redis), serve(None, *workers, redis=cluster)
        code = several.offer()
        session = PARTITIONS.of_code(ORIGIN, uuid.UUID(code).bytes).session(uuid.UUID(code).bytes)
        cluster.primaries[0].ask("HSET", session, "k", "damaged")
        watched = (reloaded, secure, small, hooked, slow, broken, limited, alone, several)
        prometheus = stack.enter_context(Prometheus(tmp_path, map(instance, watched), impatient()))
        (tmp_path / "alone").mkdir()
        without = stack.enter_context(Prometheus(tmp_path / "alone", [], impatient()))
        prometheus.until(lambda: prometheus.query("count(count_over_time(tornado_signal_ready[1m]) > 2) == 11"))

        cluster.replicas[0].ask("CLUSTER", "FAILOVER")
        stack.enter_context(injected(slow.process, "delay_enter=300000"))
        stack.enter_context(injected(broken.process, "error=EIO"))
        for _ in range(5):
            redis.ask("CLIENT", "PAUSE", "300")
            alone.exchange("/lobby/offer", offered)
            redis.ask("SCRIPT", "FLUSH")
        while small.exchange("/lobby/offer", {"info": "i", "offer": "o" * 100_000})[0] == 200:
            pass
        while not scrape(hooked.admin_url).one("webhook_dropped", "full"):
            for _ in range(100):
                hooked.exchange(f"/{'t' * 256}/offer", offered)
        (tmp_path / "signal.toml").write_text("max_offer = 'much'\n")
        reloaded.process.send_signal(signal.SIGHUP)
        port = reloaded.port
        for _ in range(3):
            stream = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            stream.sendall(f"GET /lobby/events HTTP/1.1\r\nHost: localhost\r\nOrigin: {ORIGIN}\r\n\r\n".encode())
            assert stream.recv(65536).startswith(b"HTTP/1.1 200")
        redis.kill()
        os.kill(children(alone)[0], signal.SIGKILL)  # without Redis no other process takes its place

        def provoke():
            for number in (signal.SIGSTOP, signal.SIGCONT):  # its event loop is late
                secure.process.send_signal(number)
                time.sleep(0.3)
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
            several.exchange("/poll", {"code": code, "side": "answerer"})
            for server in (alone, hooked, slow, broken, *[limited] * 50):
                server.exchange("/lobby/offer", offered)

        wanted = {(name, instance(hooked)) for name in ("WebhooksFail", "WebhooksDropped")}
        wanted |= {(name, instance(alone)) for name in ("NotReady", "RedisFails", "Errors")}
        wanted |= {(name, instance(alone)) for name in ("SlowRedis", "RedisRetries", "WorkerMissing")}
        wanted |= {(name, instance(reloaded)) for name in ("Full", "Connections", "ReloadFailed")}
        wanted |= {(name, instance(secure)) for name in ("Certificate", "LoopLag")}
        wanted |= {(name, instance(small)) for name in ("Full", "StoreSize")}
        wanted |= {("SlowDisk", instance(slow)), ("WritesFail", instance(broken)), ("Refusals", instance(limited))}
        wanted |= {("Defect", instance(several)), ("RedisFailover", None)}
        seen = prometheus.fires(wanted, provoke)
        # On a busy machine the loop and the disk can be slow as well.
        others = {name for name, where in seen if where == instance(hooked)} - {"LoopLag", "SlowDisk"}
        assert others == {"WebhooksFail", "WebhooksDropped"}
        killed = []
        starts = f'max(changes(process_start_time_seconds{{instance="{instance(several)}"}}[1h]))'

        def restart():
            if int(prometheus.query(starts)[0]["value"][1]) == len(killed):
                killed.append(os.kill(children(several)[-1], signal.SIGKILL))

        prometheus.fires({("Restarts", instance(several))}, restart)
        assert without.fires({("Absent", None)}, lambda: None) == {("Absent", None)}


def children(server):
    pid = server.process.pid
    return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
