"""The service under a real systemd, on a machine of its own: installed, watched, restarted under load, removed.

One test takes all steps, in one machine: each leaves the service running for the next one.
"""

import contextlib
import faulthandler
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.checkout import copy_checkout, new_repository
from support.documents import blocks
from support.paths import TESTS
from support.pythons import download
from support.waiting import output, run_command, until

ORIGIN = "https://app.example"
ADMIN = "Environment=TORNADO_SIGNAL_ADMIN_PORT=3001"
BOUND_S = 30
STEP_S = 900
SOURCE = "/srv/tornado-signal"
SERVICE, SOCKET = "tornado-signal.service", "tornado-signal.socket"
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/srv/wheels"}
INSTALL, STATUS, RESTART, RELOAD, LOG, *SECRETS, REMOVE = (
    line.removeprefix("sudo ") for text in blocks("systemd", "systemd", "sh") for line in text.splitlines()
)
LOCK = """
import fcntl, sys
with open("/var/lib/tornado-signal/data/LOCK", "r+") as lock:
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("locked", flush=True)
    sys.stdin.read()
"""
# Wrong usage, a file that the service may not read, and a unit that cannot run at all.
WRONG = {
    "Environment=TORNADO_SIGNAL_CODES=none": "TORNADO_SIGNAL_CODES = 'none'",
    "Environment=TORNADO_SIGNAL_ADMIN_TOKEN_FILE=/etc/shadow": "Permission denied",
    "EnvironmentFile=/nowhere": "Failed to load environment files",
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
pytestmark.append(pytest.mark.needs("root", "systemd-nspawn", "git", "curl", "ps", "redis-server"))
COMMAND_S = 400  # of a command; an installation while other tests run takes minutes

# $1: an empty directory, $2: a name, $3: files to copy into the machine's root.
BOOT = """
mount --make-rprivate /
mount -t tmpfs machine "$1"
mkdir "$1/upper" "$1/work" "$1/tree"
mount -t overlay machine -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/tree"
rm -rf "$1"/tree/etc/systemd/system/* "$1"/tree/etc/init.d/* "$1"/tree/var/log/journal
cp -r "$3/." "$1/tree"
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
# Those of machines whose run was killed.
find /sys/fs/cgroup -depth -mmin +60 -path '*/machine-*' -type d -exec rmdir {} + 2>/dev/null || true
mkdir "/sys/fs/cgroup/$2"
echo $$ >"/sys/fs/cgroup/$2/cgroup.procs"
exec systemd-nspawn --quiet --register=no --keep-unit --private-network --link-journal=no --notify-ready=yes \
    --console=pipe --machine="$2" --directory="$1/tree" --boot systemd.unit=basic.target
"""
# The machine's control groups outlive the namespace.
CLEAR = """
mount --make-rprivate /
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for _ in $(seq 100); do # its last processes may still be on their way out
    [ -e "/sys/fs/cgroup/$1" ] || exit 0
    find "/sys/fs/cgroup/$1" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
done
exit 1
"""
# It is turned off when this process dies, in any way.
BEFORE = ["setpriv", "--pdeathsig=TERM", "unshare", "--mount", "bash", "-euc", BOOT, "boot"]


class Machine(contextlib.AbstractContextManager):
    """A container for installing services: a real systemd with separate processes, network (loopback only) and /tmp.

    It boots from a copy-on-write view of this machine's files, without its services, and stops with the test. It has
    booted when the constructor returns.

    `files` are copied to its root directory. `room` is created for its own files.
    """

    def __init__(self, room: Path, files: Path) -> None:
        self.name = f"machine-{os.urandom(4).hex()}"
        self.log = room.with_suffix(".log")
        room.mkdir()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify_socket, self.log.open("w") as log:
            notify_socket.bind(f"\0{self.name}")
            notify_socket.settimeout(1)
            self._nspawn = subprocess.Popen(
                [*BEFORE, room, self.name, files],
                env={"PATH": os.environ["PATH"], "NOTIFY_SOCKET": f"@{self.name}"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            state: dict[str, str] = {}
            deadline_s = time.monotonic() + COMMAND_S
            while state.get("READY") != "1":
                with contextlib.suppress(TimeoutError):
                    state |= dict(line.split("=", 1) for line in notify_socket.recv(4096).decode().splitlines())
                if self._nspawn.poll() is not None or time.monotonic() > deadline_s:
                    self.stop()
                    raise AssertionError(f"no machine: {self.log.read_text()}")
        self._enter = ["nsenter", "--target", state["X_NSPAWN_LEADER_PID"]]

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def command(self, *command: str | Path, only: str = "--all") -> list[str | Path]:
        """Return the command that runs another one inside the machine, or with `--net` only in its network."""
        return [*self._enter, only, "--", *command]

    def run(self, script: str, *, bound_s: float = COMMAND_S, **variables: str) -> subprocess.CompletedProcess[str]:
        command = self.command("bash", "-euo", "pipefail", "-c", script)
        environ = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **variables}
        return run_command(*command, env=environ, cwd="/", stderr=subprocess.STDOUT, timeout=bound_s)

    def do(self, script: str, **variables: str) -> str:
        return output(self.run(script, **variables)).rstrip("\n")

    def stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            self._nspawn.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._nspawn.wait(0.5 if number == signal.SIGTERM else COMMAND_S)
                break
        subprocess.run(["unshare", "--mount", "bash", "-euc", CLEAR, "clear", self.name], check=True)


@pytest.fixture
def machine(tmp_path):
    """A machine with a checkout, and what that needs from PyPI, but no network."""
    source = tmp_path / "files" / SOURCE.strip("/")
    copy_checkout(source)
    new_repository(source)
    shutil.copy(TESTS / "support/probe.py", source.parent)
    download(source.parent / "wheels")
    with Machine(tmp_path / "room", tmp_path / "files") as machine:
        yield machine


def show(machine, *names, unit=SERVICE):
    lines = machine.do(f"systemctl show --property {','.join(names)} {unit}").splitlines()
    return dict(line.split("=", 1) for line in lines)


def active(machine):
    return show(machine, "ActiveState")["ActiveState"] == "active"


def curl(machine, path, body=None):
    """Return the command for a request from inside the machine."""
    data = [] if body is None else ["--data", json.dumps(body)]
    command = ["curl", "--silent", "--fail", "--max-time", str(BOUND_S), "--header", f"Origin: {ORIGIN}", *data]
    return machine.command(*command, f"http://127.0.0.1:3000{path}", only="--net")


def ask(machine, path, body=None):
    return json.loads(subprocess.run(curl(machine, path, body), stdout=subprocess.PIPE, check=True).stdout)


def offer(machine, topic="lobby"):
    return ask(machine, f"/{topic}/offer", {"info": "i", "offer": "o"})["code"]


def codes(machine, topic="lobby"):
    return [each["code"] for each in ask(machine, f"/{topic}/sessions")["sessions"]]


def admin(machine, path):
    return machine.do(f"curl --silent http://127.0.0.1:3001{path}")


def ready(machine):
    return machine.run("curl --silent --fail http://127.0.0.1:3001/readyz").returncode == 0


def metrics(machine):
    return "\n" + admin(machine, "/metrics") + "\n"


def page_log(machine):
    """Return the log of the only process, as the page of the operator shows it."""
    (process,) = json.loads(admin(machine, "/status"))["processes"]
    return [line["message"] for line in process["log"]]


def override(machine, text, unit=SERVICE):
    """Change a unit until the next start of the machine. An empty text reverts the change."""
    place, section = f"/run/systemd/system/{unit}.d", unit.split(".")[1].title()
    machine.do(f"mkdir -p {place} && printf '[{section}]\\n%s\\n' \"$TEXT\" >{place}/test.conf", TEXT=text)
    machine.do("systemctl daemon-reload")


@contextlib.contextmanager
def overridden(machine, text):
    override(machine, text)
    machine.do(RESTART)
    try:
        yield
    finally:
        override(machine, "")
        machine.do(RESTART)


def install(machine):
    said = machine.do(f"cd {SOURCE} && {INSTALL}", **OFFLINE)
    assert ask(machine, "/health")["status"] == "ok"
    commit = machine.do(f"git -C {SOURCE} rev-parse HEAD")
    assert ask(machine, "/") == {"version": commit}
    listening = "is listening on http://127.0.0.1:3000, 0 sessions listed\n"
    assert re.match(rf"tornado-signal \S+ \({commit}\) {listening}", said)
    assert machine.do(f"systemctl is-enabled {SERVICE} {SOCKET}") == "enabled\nenabled"
    assert 'Status: "listening on http://127.0.0.1:3000, 0 sessions listed"' in machine.do(STATUS)
    assert "listening on http://127.0.0.1:3000\n" in machine.do(LOG)
    assert machine.do(f"git -C {SOURCE} status --short --ignored") == "", "something is left in the checkout"
    user, pid = machine.do("ps -o user=,pid= -C tornado-signal").split()
    assert (user, pid) != ("root", show(machine, "MainPID")["MainPID"])
    assert machine.do("stat -c %a /etc/tornado-signal/tornado-signal.env") == "600"


def ready_when_the_store_is_open(machine):
    code = offer(machine)
    machine.do(f"systemctl stop {SERVICE}")
    lock = machine.command("/usr/bin/python3", "-c", LOCK)
    with subprocess.Popen(lock, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as locker:
        assert locker.stdout.readline() == "locked\n"
        with subprocess.Popen(curl(machine, "/lobby/sessions"), stdout=subprocess.PIPE) as early:
            states = set()

            def tried_again():
                found = show(machine, "ActiveState", "NRestarts")
                states.add(found["ActiveState"])
                return int(found["NRestarts"]) >= 2

            until(tried_again)
            assert states <= {"activating", "inactive"}
            assert early.poll() is None
            locker.communicate("")
            until(lambda: active(machine))
            assert code in early.communicate(timeout=BOUND_S)[0].decode()
    assert "data is in use by another process" in machine.do(LOG)


def secrets(machine):
    settings = "/etc/tornado-signal/tornado-signal.env"
    (lines,) = blocks("systemd", "Secrets", "ini")
    for command in SECRETS:
        machine.do(command.replace("sudo ", ""))
    text = f"{lines}TORNADO_SIGNAL_ADMIN_PORT=3001"
    machine.do(f'cp {settings} /srv/kept && echo "$TEXT" >>{settings}', TEXT=text)
    machine.do(RESTART)
    refusing = "curl --silent --output /dev/null --write-out '%{http_code}'"
    assert machine.do(f"{refusing} http://127.0.0.1:3001/status") == "401"
    token = "/etc/tornado-signal/secrets/admin"
    asking = f'{refusing} --header "Authorization: Bearer $(cat {token})" http://127.0.0.1:3001/status'
    assert machine.do(asking) == "200"
    assert machine.do(f"{refusing} --header 'Origin: {ORIGIN}' http://127.0.0.1:3000/topics") == "401"
    machine.do(f"{SECRETS[-1].replace('sudo ', '')}.new.secret && {RELOAD}")
    until(lambda: "settings reloaded, applied: keys of tokens" in machine.do(LOG))
    assert "every user of this machine can read it" not in machine.do(LOG)
    nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups"
    assert machine.run(f"{nobody} ls {Path(token).parent}").returncode != 0
    machine.do(f"rm -r {Path(token).parent}/* && cp /srv/kept {settings} && {RESTART}")


def a_wrong_setting(machine):
    # The start is tried for ever, also by clients, and succeeds at once when the setting is corrected.
    for wrong, reason in WRONG.items():
        override(machine, f"{wrong}\nRestartSec=10ms")
        machine.do(f"systemctl reset-failed {SERVICE}")  # its count of restarts is that of the step before
        machine.run(f"{RESTART} --no-block")
        with subprocess.Popen(curl(machine, "/health"), stdout=subprocess.PIPE) as early:
            restarts = 12 if "/nowhere" in wrong else 2  # without a process the attempts are fast
            until(lambda restarts=restarts: int(show(machine, "NRestarts")["NRestarts"]) >= restarts)
            assert show(machine, "ActiveState", unit=SOCKET) == {"ActiveState": "active"}
            override(machine, "")
            machine.do(RESTART)
            assert json.loads(early.communicate(timeout=BOUND_S)[0])["status"] == "ok"
        until(lambda reason=reason: reason in machine.do(LOG))


def a_wrong_setting_on_reload(machine):
    settings = "/etc/tornado-signal/tornado-signal.env"
    with overridden(machine, ADMIN):
        machine.do(f"cp {settings} /srv/kept && echo TORNADO_SIGNAL_MAX_OFFER=no >>{settings}")
        assert machine.run(RELOAD).returncode == 1
        assert "keeping the previous settings: environment variable TORNADO_SIGNAL_MAX_OFFER" in machine.do(STATUS)
        assert any("environment variable TORNADO_SIGNAL_MAX_OFFER" in line for line in page_log(machine))
        assert "\ntornado_signal_last_reload_successful 0.0\n" in metrics(machine)
        assert ask(machine, "/health")["status"] == "ok"
        machine.do(f"cp /srv/kept {settings} && {RELOAD}")
        assert "keeping" not in show(machine, "StatusText")["StatusText"]
        assert "\ntornado_signal_last_reload_successful 1.0\n" in metrics(machine)


def the_log_and_the_numbers(machine):
    with overridden(machine, f"{ADMIN} TORNADO_SIGNAL_ACCESS_LOG=true"):
        offer(machine, "hidden")
        line = "INFO tornado_signal.requests: request method=POST endpoint=/:topic/offer status=200 "

        def read():
            machine.do("journalctl --sync")
            said = machine.do(f"journalctl --unit {SERVICE} --output json --output-fields MESSAGE,PRIORITY")
            found = [(each["PRIORITY"], each["MESSAGE"]) for each in map(json.loads, said.splitlines())]
            return found if any(message.startswith(line) for _, message in found) else None

        lines = until(read)
        assert {priority for priority, message in lines if message.startswith(line)} == {"6"}
        assert {priority for priority, message in lines if "TORNADO_SIGNAL_CODES = 'none'" in message} == {"3"}
        assert [message for _, message in lines if "hidden" in message or "<6>" in message] == []
        wrong = machine.do("journalctl -u tornado-signal -p warning --output cat")
        assert "TORNADO_SIGNAL_CODES = 'none'" in wrong
        assert "listening" not in wrong
        numbers = metrics(machine)
        for name in ("tornado_signal_ready", "process_start_time_seconds", "process_open_fds", "process_max_fds"):
            assert re.search(f"^{name} [1-9]", numbers, re.MULTILINE), name


def feed_often(machine):
    fed = set()

    def often():
        fed.add(show(machine, "WatchdogTimestampMonotonic")["WatchdogTimestampMonotonic"])
        return len(fed) > 2

    until(often)


def watchdog(machine):
    # Enough for a busy machine: a process that is alive may be late by half of it.
    with overridden(machine, "WatchdogSec=10"):
        code = offer(machine)
        feed_often(machine)
        before = show(machine, "MainPID", "NRestarts")
        assert before["NRestarts"] == "0"
        machine.do(f"kill -STOP {before['MainPID']}")
        until(lambda: show(machine, "NRestarts")["NRestarts"] == "1" and active(machine))
        assert show(machine, "MainPID") != {"MainPID": before["MainPID"]}
        assert code in codes(machine)
        log = machine.do(LOG)
        assert "Watchdog timeout" in log
        assert "Fatal Python error: Aborted" in log
        # The journal can lag behind the process. The trace ends with the loop.
        until(lambda: "uvloop" in machine.do(LOG).split("Fatal Python error")[1])
        assert "code=killed, status=6/ABRT" in log, "its memory was dumped"


REDIS = "systemd-run --quiet --unit test-redis redis-server --save '' --dir /run"
ON_REDIS = f"{ADMIN} TORNADO_SIGNAL_STORE=redis TORNADO_SIGNAL_DURABILITY=os"


def workers(machine):
    machine.do(REDIS)
    override(machine, f"{ON_REDIS} TORNADO_SIGNAL_WORKERS=2")
    machine.do(RESTART)
    until(lambda: show(machine, "StatusText")["StatusText"].startswith("listening on http://127.0.0.1:3000, 2 workers"))
    code = offer(machine)
    before = show(machine, "MainPID", "NRestarts")

    def workers():
        return machine.do(f"pgrep --parent {before['MainPID']}").split()

    stuck, other = workers()
    machine.do(f"kill -STOP {stuck}")
    until(lambda: len(now := workers()) == 2 and stuck not in now)
    assert other in workers()
    assert code in codes(machine)
    numbers = ""
    while "tornado_signal_workers_serving 2.0" not in numbers:
        numbers = metrics(machine)
    assert show(machine, "MainPID", "NRestarts") == before
    override(machine, "")
    machine.do(f"{RESTART} && systemctl stop test-redis")


def sandbox(machine):
    machine.do(f"systemctl stop {SERVICE}")
    place = "/run/found.json"
    command = "ExecStart=\nExecStart=/usr/bin/python3 /srv/probe.py"
    override(machine, f"Type=oneshot\nRestart=no\nWatchdogSec=0\nStandardOutput=file:{place}\n{command}")
    machine.do(f"systemctl start {SERVICE}")
    found = json.loads(machine.do(f"cat {place}"))
    override(machine, "")
    machine.do(f"systemctl start {SERVICE}")
    home = "/var/lib/private/tornado-signal"
    assert found["user"] >= 61184, "not a dynamic user"
    assert (found["home"], machine.do(f"cat {home}/probed")) == (home, "here")
    assert set(found["writable"]) <= {home, "/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue"}
    assert not found["runs"], "it can run what it has written"
    search = "find /tmp /var/tmp -ignore_readdir_race -name probed -not -path '*/systemd-private-*'"
    assert machine.do(search) == "", "its /tmp is another's"


@contextlib.contextmanager
def load(machine):
    """Let peers meet. Yield a function that ends this and returns the results."""
    command = machine.command(sys.executable, "-m", "support.pairs", "3000", only="--net")
    with subprocess.Popen(command, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield lambda: json.loads(process.communicate("", timeout=BOUND_S * 2)[0])
        finally:
            process.kill()


def restarts_under_load(machine):
    settings = "/etc/tornado-signal/tornado-signal.env"
    machine.do(f"echo TORNADO_SIGNAL_SESSION_TIMEOUT_MS=200000 >>{settings}")
    machine.do(f"echo '# new' >>{SOURCE}/systemd/tornado-signal.env")
    machine.do(f"cd {SOURCE} && git -c user.name=T -c user.email=t@example.invalid commit --all --quiet --message next")
    pids = set()
    with load(machine) as ended:
        for _ in range(3):
            machine.do(RESTART)
            pid = show(machine, "MainPID")
            machine.do(f"echo TORNADO_SIGNAL_MAX_OFFER={1000 + len(pids)} >>{settings}")
            machine.do(RELOAD)
            time.sleep(0.5)  # the load's, to do its work
            assert show(machine, "MainPID", "NRestarts") == pid | {"NRestarts": "0"}
            assert active(machine)
            pids.add(pid["MainPID"])
        assert machine.do(LOG).count("settings reloaded, applied: --max-offer") == 3
        said = machine.do(f"cd {SOURCE} && {INSTALL}", **OFFLINE)
        pids.add(show(machine, "MainPID")["MainPID"])
        found = ended()
    assert found["failures"] == []
    assert len(pids) == 4
    assert found["met"] >= 100, found
    assert found["streams"] >= 2, found
    # The upgrade.
    assert ask(machine, "/")["version"] == machine.do(f"git -C {SOURCE} rev-parse HEAD")
    assert len(machine.do("ls -d /opt/tornado-signal/2*").splitlines()) == 1
    assert f"{settings}.new" in said
    assert machine.do(f"cat {settings} {settings}.new").count("TORNADO_SIGNAL_SESSION_TIMEOUT_MS=200000") == 1
    session = ask(machine, "/later/offer", {"info": "i", "offer": "o"})
    (listed,) = ask(machine, "/later/sessions")["sessions"]
    assert (listed["code"], listed["expiresAt"] - listed["createdAt"]) == (session["code"], 200_000)


def a_unix_socket(machine):
    path = "/run/tornado-signal/signal.sock"
    override(machine, f"ListenStream=\nListenStream={path}", SOCKET)
    machine.do(f"systemctl restart {SOCKET}")
    nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups"
    asking = f"{nobody} curl --silent --fail --unix-socket {path} --header 'Origin: {ORIGIN}' http://x/health"
    for _ in range(2):
        assert json.loads(machine.do(asking))["status"] == "ok"
        # It serves before systemd has read its status.
        until(lambda: show(machine, "StatusText")["StatusText"].startswith(f"listening on unix:{path}, "))
        machine.do(RESTART)
    override(machine, "", SOCKET)
    machine.do(f"systemctl restart {SOCKET} && rm -r {Path(path).parent}")
    until(lambda: active(machine))
    assert ask(machine, "/health")["status"] == "ok"


def look_after_it(machine):
    running, stopped, damaged = (text.replace("sudo ", "") for text in blocks("maintenance", "Maintenance", "sh"))
    machine.do(SECRETS[0].replace("sudo ", ""))
    override(machine, f"{ADMIN} TORNADO_SIGNAL_ADMIN_TOKEN_FILE=/etc/tornado-signal/secrets/admin")
    machine.do(RESTART)
    code = offer(machine, "care")
    machine.do(running)
    said = machine.do(stopped)
    assert "/var/lib/tornado-signal/data is sound" in said.splitlines()
    assert codes(machine, "care") == [code]
    owners = "find /var/lib/tornado-signal/ -printf '%U %G\\n' | sort -u"
    assert len(machine.do(owners).splitlines()) == 1

    machine.do(f"systemctl stop {SOCKET} {SERVICE} && echo nonsense >/var/lib/tornado-signal/data/CURRENT")
    assert machine.run(f"systemctl start {SERVICE}").returncode != 0
    assert "stop the server and move the directory away" in machine.do(LOG)
    machine.do(f"systemctl stop {SOCKET} {SERVICE} && systemctl reset-failed {SERVICE}")
    machine.do(damaged)
    assert codes(machine, "care") == []
    assert len(machine.do(owners).splitlines()) == 1
    machine.do("rm -r /var/lib/tornado-signal/data.damaged /etc/tornado-signal/secrets/admin")
    override(machine, "")
    machine.do(RESTART)


def stop(machine):
    code = offer(machine)
    with subprocess.Popen(
        curl(machine, "/poll", {"code": code, "side": "offerer", "wait": 60}), stdout=subprocess.PIPE
    ) as waiting:
        until(lambda: machine.run("ss -Htn state established sport = :3000").stdout.strip())
        machine.do(f"systemctl stop {SOCKET}")
        assert json.loads(waiting.communicate(timeout=BOUND_S)[0])["answer"] is None
    ended = {"ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0"}
    assert show(machine, *ended) == ended
    assert subprocess.run(curl(machine, "/health"), check=False).returncode == 7, "somebody listens"
    machine.do(f"systemctl start {SOCKET}")
    assert code in codes(machine), "the first connection starts it"
    assert active(machine)


def remove(machine):
    traces = "find /etc /opt /usr/local /var /run -path /var/log -prune -o -name '*tornado-signal*' -print"
    said = machine.do(f"cd {SOURCE} && {REMOVE}")
    assert machine.do("ps ax -o args").count("tornado-signal serve") == 0
    assert machine.run(f"systemctl cat {SERVICE}").returncode != 0
    assert subprocess.run(curl(machine, "/health"), check=False).returncode == 7, "somebody listens"
    kept = {path for path in machine.do(traces).splitlines() if not path.startswith("/run/systemd")}
    settings = {f"/etc/tornado-signal{name}" for name in ("", "/tornado-signal.env", "/tornado-signal.env.new")}
    assert kept == settings | {"/var/lib/private/tornado-signal", "/var/lib/tornado-signal"}
    assert "/var/lib/tornado-signal" in said
    assert machine.do("ls /var/lib/tornado-signal/data/CURRENT")
    machine.do(f"{SOURCE}/{REMOVE} --purge")
    assert [path for path in machine.do(traces).splitlines() if not path.startswith("/run/systemd")] == []
    assert machine.run(f"{SOURCE}/{REMOVE} --all").returncode == 1


STEPS = [install, ready_when_the_store_is_open, a_wrong_setting, a_wrong_setting_on_reload, secrets]
STEPS += [the_log_and_the_numbers, watchdog, workers, sandbox, restarts_under_load, a_unix_socket, look_after_it]
STEPS += [stop, remove]


def test_life_of_the_service(machine):
    for step in STEPS:
        faulthandler.dump_traceback_later(STEP_S, exit=True)  # each step has the time of a test on a busy machine
        step(machine)
