"""The command line: what it prints, and how every way to end becomes an exit status."""

import logging
import os
import re
import subprocess
import sys

import pytest
from support.command import COMMAND, environment, run

from tornado_signal import COMMIT, __version__, errors
from tornado_signal.__main__ import guarded, main, make_parser
from tornado_signal.settings import settings
from tornado_signal.settings import sources as config

VERSION = f"{__version__} ({COMMIT})\n"


def test_version():
    """`--version` prints the version, and the commit that the package was built from."""
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, VERSION, "")


@pytest.mark.parametrize("arguments", [["--help"], ["-h"]])
def test_help(arguments):
    """`--help` names the command `serve` and what each exit status means."""
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    shown = " ".join(done.stdout.split())
    assert "serve run the server" in shown
    assert "Exit status: 0 clean stop, 1 something to mend on this machine, 2 wrong usage, 3 a defect." in shown


def test_help_of_serve():
    """`serve --help` names every flag, its default and its environment variable."""
    done = run("serve", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    shown = "".join(done.stdout.split())
    for each in settings.SETTINGS:
        assert each.flag in done.stdout
        assert "".join(f"default: {each.default}; environment: {each.variable}".split()) in shown


def test_as_a_module():
    """`python -m tornado_signal` is the same command."""
    module = [sys.executable, "-m", "tornado_signal", "--version"]
    done = subprocess.run(module, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, VERSION)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "COMMAND"),
        (["start"], "start"),
        (["serve", "now"], "now"),
        (["serve", "--prot", "1"], "--prot"),
        (["serve", "--session-timeout", "1000"], "--session-timeout"),
        (["serve", "--port"], "--port"),
        (["serve", "--port", "http"], "argument --port: 'http': expected a whole number"),
        (["serve", "--port", "65536"], "argument --port: '65536': expected a whole number"),
        (["serve", "--durability", "none"], "argument --durability: 'none': expected fsync or os"),
        (["serve", "--codes", ""], "argument --codes: '': expected random or content"),
        (["serve", "--allowed-origins", "*"], "argument --allowed-origins: '*': expected any, or an origin"),
        (["serve", "--trusted-proxies", "10.0.0.1/8"], "argument --trusted-proxies: '10.0.0.1/8'"),
        (["serve", "--session-timeout-ms", "5m"], "argument --session-timeout-ms: '5m'"),
    ],
)
def test_wrong_usage(arguments, reason, tmp_path):
    """A wrong command line is exit status 2 and a line that says what was wrong."""
    done = run(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert reason in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("variables", "toml", "reason"),
    [
        ({"TORNADO_SIGNAL_PORT": "x"}, None, "environment variable TORNADO_SIGNAL_PORT = 'x': expected a whole"),
        ({"TORNADO_SIGNAL_PROT": "1"}, None, "environment variable TORNADO_SIGNAL_PROT = '1': expected the name"),
        ({"TORNADO_SIGNAL_CONFIG": "missing.toml"}, None, "environment variable TORNADO_SIGNAL_CONFIG = 'missing"),
        ({}, "port = true", "file signal.toml, key port = True: expected a whole number"),
        ({}, "prot = 1", "file signal.toml, key prot = 1: expected the name of a setting such as port"),
        ({}, "port: 1", "--config = 'signal.toml': expected a TOML file"),
    ],
)
@pytest.mark.parametrize("check", [True, False])
def test_wrong_settings(variables, toml, reason, check, tmp_path):
    """A wrong setting is exit status 2 whatever its source, with one line that names source and value."""
    arguments = ["--check"] if check else []
    if toml:
        (tmp_path / "signal.toml").write_text(toml)
        arguments += ["--config", "signal.toml"]
    done = run("serve", *arguments, cwd=tmp_path, **variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tornado-signal: " + reason)
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_a_defect_that_reaches_the_boundary(caplog):
    """Anything unforeseen is exit status 3, and its traceback is in the log."""

    def broken():
        raise ZeroDivisionError("unforeseen")

    assert guarded(broken) == 3
    (record,) = caplog.records
    assert (record.levelno, record.exc_info[0]) == (logging.ERROR, ZeroDivisionError)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, 0),
        (errors.OperatorError("the disk is full; make room"), 1),
        (errors.DatabaseError("the database is damaged; move it away"), 1),
        (config.ConfigError("environment variable X", "1", "something else"), 2),
    ],
)
def test_exit_statuses(error, status, capsys, caplog):
    """A clean end says nothing; what somebody can mend is one line and no traceback."""

    def command():
        if error:
            raise error

    assert guarded(command) == status
    assert capsys.readouterr().err == (f"tornado-signal: {error}\n" if error else "")
    assert caplog.records == []


def test_a_defect_of_the_installed_command(tmp_path):
    """A defect of the running command is exit status 3 with a traceback on standard error."""
    broken = tmp_path / "broken"
    broken.mkdir()
    # Python imports this before the command begins.
    (broken / "sitecustomize.py").write_text(
        "import tornado_signal.server\n"
        "async def serve(settings, read): raise ZeroDivisionError('unforeseen')\n"
        "tornado_signal.server.serve = serve\n"
    )
    done = run("serve", "--port", 0, cwd=tmp_path, PYTHONPATH=str(broken))
    assert done.returncode == 3
    assert "ERROR tornado_signal.__main__: this is a defect\nTraceback (most recent call last):" in done.stderr
    assert done.stderr.endswith("ZeroDivisionError: unforeseen\n")


def test_main_returns_the_status(monkeypatch, capsys):
    """`main` takes arguments and returns the status, and reads the environment of the process."""
    monkeypatch.setenv("TORNADO_SIGNAL_PORT", "x")
    monkeypatch.setattr(os, "umask", lambda mask: None)  # that of later tests stays
    assert main(["serve", "--check"]) == 2
    assert "TORNADO_SIGNAL_PORT" in capsys.readouterr().err


def test_the_parser_says_the_name_of_the_command():
    """However it is started, the command calls itself by its name."""
    assert make_parser().prog == COMMAND.name == "tornado-signal"
    assert re.match("usage: tornado-signal ", make_parser().format_usage())
