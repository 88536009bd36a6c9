"""The ICE servers that clients get."""

import base64
import hashlib
import hmac
import re
import subprocess

import pytest
from support.browsers import TURN_SECRET as SECRET
from support.service import NOW_MS

from tornado_signal.errors import OperatorError
from tornado_signal.service.ice import IceServers, read_ice_servers
from tornado_signal.settings.settings import Settings

pytest_plugins = ["support.browser_fixtures"]

STUN = ("stun:stun.example:3478", "stun:[2001:db8::1]")
TURN = ("turn:turn.example:3478?transport=udp", "turns:turn.example")


async def test_stun_servers_are_offered_by_default(service):
    (servers,) = (await service.get("/ice-servers"))["iceServers"]
    assert servers == {"urls": ["stun:stun.cloudflare.com:3478", "stun:stun.l.google.com:19302"]}


async def test_response_without_servers_has_an_expiry(start_service):
    service = await start_service(stun_servers=())
    assert await service.get("/ice-servers") == {"iceServers": [], "expiresAt": NOW_MS + 86_400_000}


async def test_turn_servers_come_with_timed_passwords(start_service, secret_file):
    service = await start_service(stun_servers=STUN, turn_servers=TURN, turn_secret_file=secret_file, turn_ttl_s=600)
    service.clock.ms += 999
    response = await service.call("GET", "/ice-servers")
    assert response.headers["Cache-Control"] == "no-store"
    username = response.json["iceServers"][1]["username"]
    assert re.fullmatch(f"{NOW_MS // 1000 + 600}:[0-9a-f]{{16}}", username)
    credential = base64.b64encode(hmac.new(SECRET.encode(), username.encode(), hashlib.sha1).digest()).decode()
    turn = {"urls": list(TURN), "username": username, "credential": credential}
    assert response.json == {"iceServers": [{"urls": list(STUN)}, turn], "expiresAt": NOW_MS + 600_000}
    service.clock.ms += 1
    names = {(await service.get("/ice-servers"))["iceServers"][1]["username"] for _ in range(10)}
    assert {name.partition(":")[0] for name in names} == {str(NOW_MS // 1000 + 601)}
    assert len(names) == 10  # a TURN server counts what each of them uses


async def test_passwords_expire_by_the_wall_clock_although_the_store_is_ahead(start_service, secret_file, monkeypatch):
    """A clock that was ahead once must not sign passwords that are valid for longer."""
    service = await start_service(turn_servers=TURN, turn_secret_file=secret_file, turn_ttl_s=600)
    monkeypatch.setattr(service.clock, "wall_s", lambda: NOW_MS / 1000)
    service.clock.ms += 30 * 86_400_000
    response = await service.get("/ice-servers")
    assert response["expiresAt"] == NOW_MS + 600_000
    assert response["iceServers"][1]["username"].startswith(f"{NOW_MS // 1000 + 600}:")


@pytest.mark.needs("openssl")
def test_password_equals_that_of_openssl():
    turn = IceServers((), TURN, b"north", 86_400).turn(1_433_895_918_506)
    made = f"printf {turn.username} | openssl dgst -sha1 -hmac north -binary | base64"
    assert turn.username.startswith("1433982318:")
    said = subprocess.run(made, shell=True, capture_output=True, text=True, check=True).stdout
    assert turn.credential == said.strip()


@pytest.mark.parametrize("text", ["", "\n", "too short", "one line of sixteen\nand another"])
def test_unusable_secret_is_refused_and_not_shown(text, secret_file):
    secret_file.write_text(text)
    with pytest.raises(OperatorError, match="must hold one line") as caught:
        read_ice_servers(Settings(turn_servers=TURN, turn_secret_file=secret_file))
    assert not text.strip() or text not in str(caught.value)


def test_servers_and_secret_need_each_other(secret_file, tmp_path):
    missing = tmp_path / "nowhere"
    for servers, secret, named in (
        (TURN, None, "--turn-secret"),
        ((), secret_file, "--turn-servers"),
        (TURN, missing, "nowhere"),
    ):
        with pytest.raises(OperatorError, match=named):
            read_ice_servers(Settings(turn_servers=servers, turn_secret_file=secret))
