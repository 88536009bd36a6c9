"""Damaged directories: refused or moved aside, by the installed commands."""

import os
import re
import shutil
import uuid

import pytest
from support.command import run
from support.maintenance import LONG_MS, SECRETS, fill, names, run_ok, write_tables
from support.redis_traffic import Follower, in_background, until
from support.scraping import scrape

from tornado_signal.stores.leveldb import layout
from tornado_signal.stores.leveldb.binding import plyvel


def spoil_tables(path, begin=0.0, end=1.0, step=500):
    """Invert every `step`th byte of a part of each table, except its footer."""
    for table in path.glob("*.ldb"):
        size = table.stat().st_size
        with table.open("r+b") as file:
            for at in range(int(begin * size), int(end * (size - 48)), step):
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 0xFF]))


def test_damage_is_refused_and_reported_and_only_serve_moves_it_aside(start, tmp_path):
    data = tmp_path / "data"
    fill(data, 1000, offer=lambda: os.urandom(3000).hex())
    write_tables(data)
    spoil_tables(data)
    damaged = {table.name: table.read_bytes() for table in data.glob("*.ldb")}
    for command, advice in (
        (["serve", "--port", 0], "stop the server and move the directory away, or serve with --start-empty-if-damaged"),
        (["check"], "move (the directory|it) away"),
    ):
        ended = run(*command, "--data-dir", data)
        assert (ended.returncode, "Traceback" in ended.stderr) == (1, False)
        said = ended.stderr.splitlines()[-1]
        assert re.match(rf"tornado-signal: (the database in )?{data} is (damaged|not sound) \(.*\); .*{advice}", said)
    assert {table.name: table.read_bytes() for table in data.glob("*.ldb")}.items() >= damaged.items()
    arguments = ("--data-dir", data, "--start-empty-if-damaged")
    checked = run("serve", "--check", "--port", 0, *arguments)
    assert checked.returncode == 0
    assert "is damaged" in checked.stderr
    assert "the server will move it aside and start empty" in checked.stderr
    assert "move the directory away" not in checked.stderr
    assert names(tmp_path) == ["data"]
    server = start(*arguments)
    code = server.offer()
    assert server.codes() == [code]
    assert server.call("/topics")[1]["pagination"]["total"] == 1
    assert server.stop() == 0
    (kept,) = set(names(tmp_path)) - {"data"}
    (line,) = [line for line in server.log if "ERROR" in line]
    assert f"it is kept in {tmp_path / kept}, and the service starts empty" in line
    assert f"{data} is sound\n" == run_ok("check", "--data-dir", data)
    assert "is damaged" in run("serve", "--check", "--port", 0, "--data-dir", tmp_path / kept).stderr
    again = start(*arguments)
    assert again.codes() == [code]
    assert again.stop() == 0


def test_check_lists_all_problems(tmp_path):
    data = tmp_path / "data"
    fill(data, 10)
    with plyvel.DB(str(data)) as db:
        offers = [key for key in db.iterator(include_value=False) if key[:1] == b"S" and key.endswith(layout.OFFER)]
        for key in offers[:3]:
            db.delete(key)
    ended = run("check", "--data-dir", data)
    assert ended.returncode == 1
    assert len(ended.stdout.splitlines()) == 3
    assert all(re.fullmatch("session [0-9a-f]{32} has no offer", line) for line in ended.stdout.splitlines())
    assert f"{data} is not sound (listed above: 3); move it away to start empty\n" in ended.stderr


def test_damage_read_by_a_running_server_is_503_and_logged_once(start, tmp_path):
    data = tmp_path / "data"
    codes = fill(data, 400, offer=lambda: "their offer " * 300)
    write_tables(data)
    server = start("--admin-port", 0, "--session-timeout-ms", LONG_MS, "--sweep-interval-ms", 100)
    # Sessions alone: what comes before them is read in scans, and what comes behind them has been read already.
    spoil_tables(data, 0.5, 0.9, step=10)
    unanswered = sorted(each for number, each in enumerate(codes) if number % 3)
    origin, code = unanswered[int(0.6 * len(unanswered))]
    poll = {"code": str(uuid.UUID(bytes=code)), "side": "answerer"}
    for waiting in ({"wait": 60}, {}):
        assert server.call("/poll", poll | waiting, origin=origin) == (503, {"error": "Service unavailable"})
    until(lambda: server.call("/topics")[0] == 503)
    for _ in range(20):
        status, found = server.call("/readyz", base=server.admin_url)
        assert (status, found["status"]) == (503, "unavailable")
        assert server.call("/lobby/offer", {"info": "i", "offer": "o"})[0] == 503
    assert server.stop() == 0
    log = "".join(server.log)
    assert "Traceback" not in log
    assert log.count("a read of data failed (") == log.count("move the directory away") == 1
    assert not any(word in log for word in SECRETS.values())
    assert names(tmp_path) == ["data"]


@pytest.mark.parametrize("what", ["directory", "files"])
def test_removed_data_is_logged_and_its_sessions_are_gone_for_their_clients(what, start, tmp_path):
    server = start("--admin-port", 0)
    code = server.offer()
    waited = in_background(lambda: server.call("/poll", {"code": code, "side": "offerer", "wait": 60}))
    until(lambda: scrape(server.admin_url).one("waiting_requests", "/poll"))
    stream = Follower(server, "lobby")
    stream.read_until(lambda: stream.known)
    shutil.rmtree(tmp_path / "data")
    if what == "files":
        (tmp_path / "data").mkdir()
    assert waited()[0] in (404, 503)
    stream.read_until(lambda: not stream.known)
    until(lambda: server.ask_admin("/readyz")[0] == 200)
    until(lambda: server.codes() == [])
    code = until(
        lambda: (found := server.call("/lobby/offer", {"info": "i", "offer": "o"}))[0] == 200 and found[1]["code"]
    )
    assert server.codes() == [code]
    stream.read_until(lambda: stream.known == {code})
    stream.close()
    assert server.stop() == 0
    # An attempt to reopen it can meet a directory that is only half removed.
    lines = [line for line in server.log if " ERROR " in line and "still refusing requests" not in line]
    assert "somebody has removed its files" in lines[0]
    assert "a new database replaces the earlier one, whose sessions are lost; clients publish them again" in lines[1]
    assert len(lines) == 2
