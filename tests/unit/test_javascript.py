"""Unit tests of the browser module, run by Node.js with a fake RTCPeerConnection."""

from pathlib import Path

import pytest
from support.waiting import run_command

TESTS = sorted((Path(__file__).parent / "javascript").glob("*.test.js"))

pytestmark = pytest.mark.needs("node")


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem.removesuffix(".test"))
def test_unit_tests_of_the_browser_module(file):
    completed = run_command("node", "--test", file)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "MaxListeners" not in completed.stdout  # more than ten listeners of one signal
