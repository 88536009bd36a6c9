"""Real peers, each a process of its own, meet through the installed command and talk over WebRTC."""

import re
import subprocess
import sys

import pytest
from support.networks import BOUND_S
from support.paths import PEER

pytestmark = pytest.mark.needs("aiortc")


@pytest.fixture
def peer(spawn, base):
    def start_peer(topic, message, *options):
        command = [sys.executable, PEER, *options, base, topic, message]
        return spawn(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    return start_peer


def outcome(process):
    output, errors = process.communicate(timeout=BOUND_S)
    assert (process.returncode, errors) == (0, ""), output
    # It waits again if its other end has left.
    found = re.fullmatch(r"(?:waiting\n)*(offerer|answerer) of (\S+)\nheard: (.*)\n", output)
    assert found, output
    return found.groups()


def test_two_peers_exchange_messages(peer):
    topic = "a/b c%2F+?&#é😀"
    first = peer(topic, "I was here first")
    assert first.stdout.readline() == "waiting\n"
    second = peer(topic, "Hello, 世界")
    side, code, heard = outcome(second)
    assert (side, heard) == ("answerer", "I was here first")
    assert outcome(first) == ("offerer", code, "Hello, 世界")


def test_six_simultaneous_peers_pair_within_their_origins(peer):
    origins = dict.fromkeys("abcd", "https://one.example") | dict.fromkeys("ef", "https://two.example")
    crowd = {name: peer("lobby", name, "--origin", origin) for name, origin in origins.items()}
    ends = {name: outcome(process) for name, process in crowd.items()}
    heard = {name: end[2] for name, end in ends.items()}
    assert all(heard[heard[name]] == name != heard[name] for name in crowd)
    assert all(origins[heard[name]] == origins[name] for name in crowd)
    assert all(ends[heard[name]][1] == end[1] for name, end in ends.items())
    assert sorted(side for side, _, _ in ends.values()) == ["answerer"] * 3 + ["offerer"] * 3


def test_peer_whose_wait_times_out_leaves_no_session(peer, base):
    gone = peer("lobby", "hello?", "--wait", 8)
    output, errors = gone.communicate(timeout=BOUND_S)
    assert (gone.returncode, output, errors) == (1, "waiting\n", "peer: no peer came within 8 s\n")
    first, second = peer("lobby", "from A"), peer("lobby", "from B")
    assert [outcome(first)[2], outcome(second)[2]] == ["from B", "from A"]


def test_missing_server_is_an_error(spawn):
    lost = spawn(sys.executable, PEER, "http://127.0.0.1:1", "lobby", "x", stderr=subprocess.PIPE)
    _, errors = lost.communicate(timeout=BOUND_S)
    assert lost.returncode == 1
    assert re.fullmatch(r"peer: .*refused.*\n", errors)
