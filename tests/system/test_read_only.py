"""A data directory that becomes read-only under a running server: honest refusals, nothing lost, service afterwards."""

import os
import subprocess

from support.browsers import until
from support.command import Server
from support.full_disks import check, publish_until, wait_until_ready

# Root may write everywhere; without this capability it is a user like others, of directories of its own.
AS_A_USER = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


def remount(path, how):
    """Mount anew; to `ro` the kernel does only while no file is open for writing: between two tries to reopen."""
    command = ["mount", "-o", f"remount,{how}", str(path)]
    until(lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0)


def test_refuses_while_read_only_and_loses_nothing(small_disk, start):
    data = small_disk / "data"
    server = Server("--data-dir", data, "--admin-port", 0, prefix=AS_A_USER)
    kept = {}
    try:
        publish_until(server, kept, lambda status: len(kept) == 20)
        data.chmod(0o555)
        # What is open can still be written: it ends when LevelDB needs its next file.
        headers = publish_until(server, kept, lambda status: status == 503)
        assert int(headers["Retry-After"]) >= 1
        assert headers["Access-Control-Allow-Origin"].startswith("https://")
        remount(small_disk, "ro")
        for _ in range(3):
            publish_until(server, kept, lambda status: status == 503, limit=1)
        assert server.call("/readyz", base=server.admin_url, origin=None)[0] == 503
        assert server.call("/healthz", base=server.admin_url, origin=None)[0] == 200
        assert server.call("/health")[0] == 200
        remount(small_disk, "rw")
        publish_until(server, kept, lambda status: status == 503, limit=1)
        data.chmod(0o755)
        wait_until_ready(server)
        before = len(kept)
        publish_until(server, kept, lambda status: len(kept) == before + 20)
        check(server, kept)
        assert server.stop() == 0
        assert any("still refusing requests" in line for line in server.log)
    finally:
        server.end()
    again = start(data=data)
    check(again, kept)
    assert again.stop() == 0
