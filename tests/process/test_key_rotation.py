"""Keys are replaced while clients work (docs/authorization.md)."""

import asyncio
import os
import signal
import time

from support.rpc import until
from support.tokens import SECRET, make_token, write_secret

from tornado_signal_client import SignalClient

SECRETS = {"main": SECRET, "next": b"another secret that is also long enough"}
CLIENTS = 6  # of each kind
LIFE_S = 2  # of a token, which is renewed at half of it


async def wait_for_reload(server):
    server.process.send_signal(signal.SIGHUP)
    line = await asyncio.to_thread(server.process.stderr.readline)
    assert "applied: keys of tokens" in line


async def test_no_request_fails_while_keys_are_rotated(start, tmp_path):
    folder = write_secret(tmp_path / "keys")
    server = start("--auth-keys", folder, "--unlimited-addresses", "127.0.0.0/8")
    names, made, used, stop = ["main"], [], [], asyncio.Event()  # names of keys: the current one, of tokens, of calls

    def token():
        made.append(names[0])
        return make_token({"exp": time.time() + LIFE_S}, SECRETS[names[0]], name=names[0])

    async def work(number, *, websocket):
        topic = f"topic-{number}"
        async with SignalClient(server.url, "https://app.example", websocket=websocket, token=token) as client:
            while not stop.is_set():
                code = await client.offer(topic, "info", "offer", hold=websocket)
                assert code in [each["code"] for each in (await client.sessions(topic, wait_s=0)).sessions]
                await client.withdraw(code, "offerer")
                used.append(names[0])

    async with asyncio.TaskGroup() as tasks:
        for number in range(2 * CLIENTS):
            tasks.create_task(work(number, websocket=number % 2 == 0))
        await until(lambda: used.count("main") >= 2 * CLIENTS)
        write_secret(folder, "next", SECRETS["next"])
        await wait_for_reload(server)
        names[0] = "next"
        await until(lambda: made.count("next") >= 2 * CLIENTS)
        await asyncio.sleep(LIFE_S / 2)  # for the WebSockets to present the new tokens
        os.remove(folder / "main.secret")
        await wait_for_reload(server)
        before = len(used)
        await until(lambda: len(used) >= before + 4 * CLIENTS)
        stop.set()
