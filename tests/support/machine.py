"""A container for installing services: a real systemd with separate processes, network (loopback only) and /tmp.

It boots from a copy-on-write view of this machine's files, without its services, and stops with the test.
"""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from pathlib import Path

from .waiting import output, run_command

BOUND_S = 400  # of a command; an installation while other tests run takes minutes

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
    """A machine that has booted when the constructor returns.

    `files` are copied to its root directory. `room` is created for its own files.
    """

    def __init__(self, room: Path, files: Path) -> None:
        self.name = f"machine-{secrets.token_hex(4)}"
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
            deadline_s = time.monotonic() + BOUND_S
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

    def run(self, script: str, *, bound_s: float = BOUND_S, **variables: str) -> subprocess.CompletedProcess[str]:
        command = self.command("bash", "-euo", "pipefail", "-c", script)
        environ = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **variables}
        return run_command(*command, env=environ, cwd="/", stderr=subprocess.STDOUT, timeout=bound_s)

    def do(self, script: str, **variables: str) -> str:
        return output(self.run(script, **variables)).rstrip("\n")

    def stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            self._nspawn.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._nspawn.wait(0.5 if number == signal.SIGTERM else BOUND_S)
                break
        subprocess.run(["unshare", "--mount", "bash", "-euc", CLEAR, "clear", self.name], check=True)
