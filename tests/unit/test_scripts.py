"""The scripts for Redis: constants and arguments match those in Python."""

import re

import pytest

from tornado_signal.session import MIN_HELD_MS, Reason
from tornado_signal.stores.redis import permissions, scripts
from tornado_signal.stores.redis.partitions import KEY_NAMES


@pytest.mark.parametrize("name", scripts.SCRIPTS)
def test_scripts_name_their_arguments(name):
    text = scripts.SCRIPTS[name].text.decode()
    declared = next(line for line in text.splitlines() if "ARGV[1]" in line)
    body = text.partition(declared)[2]
    assert "ARGV[" not in re.sub(r"ARGV\[at( \+ 1)?\]", "", body)
    assert f"local {', '.join(KEY_NAMES)} = unpack(KEYS)\n" in text


def test_arguments_are_named_in_order_and_numbers_are_converted():
    text = scripts.SCRIPTS["withdraw"].text.decode()
    line = "local code, side, secret_hash, token, removals_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])\n"
    assert line in text
    call = scripts.call("withdraw", removals_ms=5, token=b"t", secret_hash=b"", side=b"o", code=b"c")
    assert call == (scripts.SCRIPTS["withdraw"], (b"c", b"o", b"", b"t", 5))


def test_constants_match_those_in_python():
    constants, values = scripts.SCRIPTS["create"].text.decode().splitlines()[0].removeprefix("local ").split(" = ")
    definitions = dict(zip(constants.split(", "), values.split(", "), strict=True))
    assert (definitions["MIN_HELD_MS"], definitions["EXPIRED"]) == (str(MIN_HELD_MS), str(Reason.EXPIRED.value))
    assert "CHUNK" not in definitions


def test_permission_is_checked_for_each_command_of_the_scripts_and_of_the_server():
    package = scripts.FOLDER.parents[2]
    scripted = {
        name
        for path in package.rglob("*.lua")
        for name in re.findall(r"\bredis\.p?call\s*\(?\s*['\"](\w+)", path.read_text())
    }
    sources = [path for folder in ("redis", "stores/redis", "relay") for path in package.glob(f"{folder}/*.py")]
    served = {
        name
        for path in sources
        if path.name not in ("check.py", "permissions.py")  # of commands that only read
        for name in re.findall(r'\(b"([A-Z]{3,})"', path.read_text())
    }
    assert {"HSTRLEN", "ZLEXCOUNT"} <= scripted
    assert {"HSETNX", "SSUBSCRIBE", "ZREMRANGEBYSCORE"} <= served
    checked = {*permissions.WITH_KEY, *(command[0].decode() for command in permissions.WITHOUT_KEY)}
    # These are used only if allowed, in a cluster, with Sentinels, or for the durability, which has its own check.
    optional = {"CONFIG", "CLUSTER", "ASKING", "SENTINEL", "AUTH", "MIGRATE", "WAIT", "WAITAOF"}
    assert scripted | served <= checked | optional
    assert checked <= scripted | served | {"SCRIPT"}


@pytest.mark.parametrize("names", [{"code"}, {"code", "lease", "removals_ms", "side"}, {"code", "lease", "token"}])
def test_call_with_other_arguments_is_refused(names):
    with pytest.raises(TypeError, match="arguments of renew are code, lease, removals_ms"):
        scripts.call("renew", **dict.fromkeys(names, 1))
