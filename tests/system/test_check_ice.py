"""`check-ice` with a real coturn."""

import json
import socket

import pytest
from support.browsers import TURN_SECRET
from support.command import CLIENT, run

pytestmark = pytest.mark.needs("aiortc")


def check_ice(server):
    done = run("check-ice", "--url", server.url, command=CLIENT)
    return done, [json.loads(line) for line in done.stdout.splitlines()]


def test_working_stun_and_turn_servers(start, coturn, secret_file):
    stun, turn = f"stun:127.0.0.1:{coturn[0]}", f"turn:127.0.0.1:{coturn[0]}"
    server = start("--stun-servers", stun, "--turn-servers", turn, "--turn-secret-file", secret_file)
    done, results = check_ice(server)
    assert (done.returncode, done.stderr) == (0, "")
    assert [(result["url"], result["result"]) for result in results] == [(stun, "ok"), (turn, "ok")]
    assert results[1]["detail"].startswith("127.0.0.1:")
    assert "ALLOCATE processed, success" in coturn[1]()


def test_every_transport_of_the_printed_file(start, coturn, secret_file, tmp_path):
    """The file of `turn-config` serves UDP, TCP and TLS."""
    host = "127.0.0.1"
    urls = [f"turn:{host}:{coturn[0]}", f"turn:{host}:{coturn[0]}?transport=tcp", f"turns:{host}:{coturn[0] + 1}"]
    server = start("--turn-servers", ",".join(urls), "--turn-secret-file", secret_file)
    trusted = {"SSL_CERT_FILE": str(tmp_path / "turn.crt")}
    done = run("check-ice", "--url", server.url, command=CLIENT, **trusted)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(result["url"], result["result"]) for result in results] == [(url, "ok") for url in urls]


def test_wrong_turn_secret(start, coturn, tmp_path):
    (tmp_path / "other").write_text("another secret of thirty characters")
    turn = f"turn:127.0.0.1:{coturn[0]}"
    done, results = check_ice(start("--turn-servers", turn, "--turn-secret-file", tmp_path / "other"))
    assert done.returncode == 1
    assert f"these ICE servers do not work: {turn}" in done.stderr
    assert "the secret of both servers" in results[0]["detail"]
    assert TURN_SECRET not in done.stdout + done.stderr


def test_stun_server_without_a_response(start):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        done, results = check_ice(start("--stun-servers", f"stun:127.0.0.1:{silent.getsockname()[1]}"))
    assert done.returncode == 1
    assert "check the name, the port and the firewall" in results[0]["detail"]


def test_no_ice_servers(start):
    done, results = check_ice(start())
    assert (done.returncode, results) == (1, [])
    assert "--stun-servers" in done.stderr
