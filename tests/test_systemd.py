"""systemd accepts the unit, and the environment file tells the truth about the settings."""

import argparse
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tornado_signal import config, settings

SYSTEMD = Path(__file__).parent.parent / "systemd"
UNIT = SYSTEMD / "tornado-signal.service"
INSTALLED = "/opt/tornado-signal/bin/tornado-signal"
# What `systemd-analyze security` reaches, times ten. What is left: a server has a network, and its peers are
# anywhere.
EXPOSURE = 12


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run systemd-analyze, its two streams in one."""
    command = ["systemd-analyze", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


@pytest.fixture
def installed_unit(tmp_path):
    """The unit as it would be installed, with the command at the place where it is here."""
    unit = tmp_path / UNIT.name
    here = Path(sys.executable).with_name("tornado-signal")
    unit.write_text(UNIT.read_text().replace(INSTALLED, str(here)))
    return unit


def environment() -> dict[str, str]:
    """What the environment file would set, were every line of it in use."""
    text = (SYSTEMD / "tornado-signal.env").read_text()
    return dict(re.findall(r"^#?([A-Z_]+)=(.*)$", text, re.MULTILINE))


def test_verify_accepts_the_unit(installed_unit):
    """`systemd-analyze verify` has nothing to say about the unit."""
    done = analyze("verify", "--man=no", "--recursive-errors=yes", installed_unit)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("LimitNOFILE=", "LimitNOFILES="), ("Restart=on-failure", "Restart=sometimes"), ("bin/python", "bin/no")],
)
def test_verify_would_see_a_mistake(installed_unit, right, wrong):
    """An unknown key, a wrong value or a missing program fails the verification, so passing it says something."""
    text = installed_unit.read_text().replace("bin/tornado-signal", "bin/python")
    assert right in text
    installed_unit.write_text(text.replace(right, wrong))
    done = analyze("verify", "--man=no", "--recursive-errors=yes", installed_unit)
    assert done.returncode != 0


def test_exposure_does_not_grow():
    """The sandbox stays as tight as it is; the exposure is printed."""
    done = analyze("security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager", UNIT)
    print(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout


def test_checked_before_it_starts():
    """The check runs with the same command and settings as the service."""
    lines = UNIT.read_text().splitlines()
    assert f"ExecStart={INSTALLED} serve" in lines
    assert f"ExecStartPre={INSTALLED} serve --check" in lines
    assert "EnvironmentFile=-/etc/tornado-signal/tornado-signal.env" in lines


def test_the_environment_file_changes_nothing_as_it_comes():
    """Every line of the environment file is a comment until somebody uncomments it."""
    lines = (SYSTEMD / "tornado-signal.env").read_text().splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == []


def test_the_environment_file_names_every_setting_and_its_default():
    """The environment file names exactly the settings there are, in their order, each with its default."""
    expected = [(f"TORNADO_SIGNAL_{each.name.upper()}", str(each.default)) for each in settings.SETTINGS]
    assert list(environment().items()) == expected


def test_the_environment_file_is_understood_when_uncommented():
    """What the environment file shows can be set as it stands, and is the default."""
    nothing = argparse.Namespace(config=None)
    assert config.load(nothing, environment()) == config.load(nothing, {})
