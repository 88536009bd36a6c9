"""Units and installer pass their checkers, and the environment file matches the settings."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.command import load_settings
from support.documents import blocks
from support.paths import SYSTEMD
from support.searches import some
from support.waiting import run_command

from tornado_signal.process import draining, supervisor
from tornado_signal.settings import settings
from tornado_signal.stores import watches

pytestmark = pytest.mark.needs("systemd-analyze")

UNIT = SYSTEMD / "tornado-signal.service"
SOCKET = SYSTEMD / "tornado-signal.socket"
INSTALLED = "/opt/tornado-signal/bin/tornado-signal"
# The exposure level of `systemd-analyze security`, times ten. The rest is unavoidable: a server has a network, and its
# peers can be anywhere. One tenth is the group of the files with secrets.
EXPOSURE = 13


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_command("systemd-analyze", *arguments, stderr=subprocess.STDOUT)


def environment() -> dict[str, str]:
    """Return the settings of the environment file with all of its lines enabled."""
    text = (SYSTEMD / "tornado-signal.env").read_text()
    return dict(re.findall(r"^#?([A-Z_]+)=(.*)$", text, re.MULTILINE))


def verify(unit: Path) -> subprocess.CompletedProcess[str]:
    return analyze("verify", "--man=no", "--recursive-errors=yes", unit, unit.with_name(SOCKET.name))


def test_systemd_verify_accepts_the_units_and_documented_additions(tmp_path):
    installed_unit, here = tmp_path / UNIT.name, Path(sys.executable).with_name("tornado-signal")
    installed_unit.write_text(UNIT.read_text().replace(INSTALLED, str(here)))
    (tmp_path / SOCKET.name).write_text(SOCKET.read_text())
    done = verify(installed_unit)
    assert (done.returncode, done.stdout) == (0, "")
    pages = (("turn", "STUN and TURN"), ("deploy", "STUN and TURN"), ("scaling", "From one server to three"))
    text = "".join(block for page in pages for block in blocks(*page, "ini"))
    for name, lines in some(re.findall(r"^# systemctl edit (\S+)\n((?:[^#].*\n)+)", text, re.MULTILINE)):
        unit = installed_unit.with_name(name if "." in name else f"{name}.service")
        unit.write_text(unit.read_text() + lines)
    done = verify(installed_unit)
    assert (done.returncode, done.stdout) == (0, "")


def test_systemd_exposure_does_not_grow():
    done = analyze("security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager", UNIT)
    assert done.returncode == 0, done.stdout


def test_units_name_the_command_its_settings_and_the_default_address():
    lines, default = UNIT.read_text().splitlines(), settings.Settings()
    assert f"ExecStart={INSTALLED} serve" in lines
    assert "EnvironmentFile=-/etc/tornado-signal/tornado-signal.env" in lines
    assert f"ListenStream={default.address[0]}:{default.port}" in SOCKET.read_text().splitlines()


def test_stop_timeout_covers_all_stages_of_the_stop():
    (limit_s,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert watches.END_S < draining.DRAIN_LIMIT_S
    assert sum(draining.LIMITS_S.values()) <= supervisor.STOP_S
    assert int(limit_s) > supervisor.STOP_S + 2 * draining.CLOSE_LIMIT_S


@pytest.mark.parametrize("name", ["install", "remove"])
def test_installation_requires_root(name):
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    with (SYSTEMD / name).open() as text:  # the checkout can be private to its owner
        done = subprocess.run([*nobody, "bash", "/dev/stdin"], stdin=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(f"; try: sudo systemd/{name}\n")


def test_environment_file_names_every_setting_and_its_valid_default_in_comments():
    lines = (SYSTEMD / "tornado-signal.env").read_text().splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == []
    expected = [(f"TORNADO_SIGNAL_{each.name.upper()}", str(each.default)) for each in settings.SETTINGS]
    assert list(environment().items()) == expected
    assert load_settings(env=environment()) == load_settings()
