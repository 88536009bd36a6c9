"""Runs of tests: they leave nothing behind, also when they are killed, and leave out unchanged families."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest
from support import families
from support.checkout import copy_checkout, git, new_repository
from support.keeper import MARK, processes
from support.paths import ROOT, TESTS
from support.waiting import until

FORGETFUL = """
import subprocess, tempfile, threading, time

def test_forgets():
    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["sleep", "1001"], start_new_session=True, stdout=subprocess.DEVNULL)
    threading.Thread(target=time.sleep, args=(15,), name="forgotten", daemon=True).start()
    tempfile.mkdtemp(prefix="forgotten-")
    print("all started", flush=True)
"""
WAITS = "    time.sleep(1000)\n"
pytestmark = pytest.mark.slow


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a run of one test, with its temporary files in `tmp_path`."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", MARK))}
    environ |= {"PYTHONPATH": str(TESTS), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "-s", "-p", "support.runs", "-p", "no:cloudcoil"]

    def starting(text, *flags):
        (tmp_path / "test_one.py").write_text(text)
        options = {"env": environ, "cwd": tmp_path, "stdout": subprocess.PIPE, "text": True}
        return stack.enter_context(subprocess.Popen([*command, *flags, "test_one.py"], **options))

    with contextlib.ExitStack() as stack:
        yield starting


def folders(path):
    return [*path.glob("signal-*")]


@pytest.mark.parametrize("flags", [(), ("-n", "1")], ids=["alone", "with a worker"])
def test_a_run_fails_for_what_a_test_leaves_behind(start, tmp_path, flags):
    run = start(FORGETFUL, *flags)
    text, _ = run.communicate()
    assert run.returncode == 1
    *_, last = text.splitlines()
    assert "1 passed" in last
    assert "1 error" in last
    for left in ("sleep 1000 , started by test_one.py::", "sleep 1001", "thread forgotten", "/forgotten-"):
        assert left in text
    (folder,) = folders(tmp_path)
    assert processes(str(folder)) == {}


@pytest.mark.parametrize("killed", ["run", "run and keeper"])
def test_nothing_stays_of_a_killed_run(start, tmp_path, killed):
    run = start(FORGETFUL + WAITS)
    until(lambda: "all started" in run.stdout.readline())
    (folder,) = folders(tmp_path)
    assert len(processes(str(folder))) == 2
    if "keeper" in killed:
        (keeper,) = [pid for pid, text in processes(root=run.pid).items() if "keeper.py" in text]
        os.kill(keeper, signal.SIGKILL)
    run.kill()
    if "keeper" in killed:
        text, _ = start("def test_nothing(): pass").communicate()
        assert "ended 2 processes" in text
    until(lambda: not folders(tmp_path))
    assert processes(str(folder)) == {}


def test_each_pattern_of_a_family_names_files():
    for family in families.FAMILIES:
        for pattern in families.patterns_of(family):
            assert git(ROOT, "ls-files", "--", pattern), pattern
        for test in families.tests_of([family]):
            name, _, beginning = test.partition("::")
            assert f"def {beginning}" in (ROOT / name).read_text(), test


def test_family_whose_files_have_changed_is_not_left_out(tmp_path, monkeypatch):
    copy_checkout(tmp_path)
    new_repository(tmp_path)
    monkeypatch.setattr(families, "ROOT", tmp_path)
    monkeypatch.setattr(families, "PASSED", tmp_path / "tests/families.json")
    families.record_passed()
    assert families.unchanged() == {*families.FAMILIES}
    with (tmp_path / "Containerfile").open("a") as file:
        file.write("# changed\n")
    assert families.unchanged() == {*families.FAMILIES} - {"containers"}
    names = ["tests/system/test_systemd.py", "tests/system/test_systemd_real.py", "tests/system/test_deploy.py"]
    command = [sys.executable, "-m", "pytest", "--level=changed", "--collect-only", "-qq", *names]
    listing = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert [name in listing for name in names] == [True, False, True]
    (tmp_path / "tornado_signal/http/new.kind").touch()
    git(tmp_path, "add", "--all")
    assert families.unchanged() == set()
