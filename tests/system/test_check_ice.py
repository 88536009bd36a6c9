"""`check-ice` with a real coturn."""

import json
import socket

import pytest
from support.browsers import TURN_SECRET
from support.command import CLIENT, run

pytestmark = pytest.mark.needs("aiortc")


def check_ice(server, **variables):
    done = run("check-ice", "--url", server.url, command=CLIENT, **variables)
    return done, [json.loads(line) for line in done.stdout.splitlines()]


def test_stun_and_turn_work_over_every_transport_of_the_printed_file(start, coturn, secret_file, tmp_path):
    """The file of `turn-config` serves UDP, TCP and TLS."""
    port, log = coturn
    host = "127.0.0.1"
    urls = [f"stun:{host}:{port}", f"turn:{host}:{port}", f"turn:{host}:{port}?transport=tcp"]
    urls.append(f"turns:{host}:{port + 1}")
    turn = ("--turn-servers", ",".join(urls[1:]), "--turn-secret-file", secret_file)
    server = start("--stun-servers", urls[0], *turn)
    done, results = check_ice(server, SSL_CERT_FILE=str(tmp_path / "turn.crt"))
    assert (done.returncode, done.stderr) == (0, "")
    assert [(result["url"], result["result"]) for result in results] == [(url, "ok") for url in urls]
    assert results[1]["detail"].startswith("127.0.0.1:")
    assert "ALLOCATE processed, success" in log()


def test_what_does_not_work_is_explained(start, coturn, tmp_path):
    (tmp_path / "other").write_text("another secret of thirty characters")
    turn = f"turn:127.0.0.1:{coturn[0]}"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        stun = f"stun:127.0.0.1:{silent.getsockname()[1]}"
        flags = ("--turn-servers", turn, "--turn-secret-file", tmp_path / "other")
        done, results = check_ice(start("--stun-servers", stun, *flags))
    assert done.returncode == 1
    assert f"these ICE servers do not work: {stun}, {turn}" in done.stderr
    assert "check the name, the port and the firewall" in results[0]["detail"]
    assert "the secret of both servers" in results[1]["detail"]
    assert TURN_SECRET not in done.stdout + done.stderr
    done, results = check_ice(start(data="without"))
    assert (done.returncode, results) == (1, [])
    assert "--stun-servers" in done.stderr
