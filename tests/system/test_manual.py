"""Completion in real shells, and a manual page that those who check such pages find nothing wrong with."""

import re
import subprocess

import pytest
from support.command import BOUND_S, COMMAND, environment, run
from support.needs import require
from support.terminal import Terminal

from tornado_signal.__main__ import make_parser
from tornado_signal.cli.manual import escape
from tornado_signal.settings.settings import SETTINGS


@pytest.fixture
def shell_environment(tmp_path):
    path = f"{COMMAND.parent}:/usr/bin:/bin"
    return environment(HOME=str(tmp_path), ZDOTDIR=str(tmp_path), PATH=path, TERM="dumb", PS1="$ ")


def printed(program, *arguments, **options):
    """Return the output of a program that must succeed."""
    require(program)
    options = {"stdout": subprocess.PIPE, "text": True, "timeout": BOUND_S, "check": True, **options}
    return subprocess.run([program, *arguments], **options).stdout


# Input before the command, in each shell.
BEGIN = {
    "bash --norc --noprofile -i": "bind 'set enable-bracketed-paste off'; eval \"$(tornado-signal completion bash)\"",
    "zsh -f -i": 'autoload -U compinit; compinit -u; eval "$(tornado-signal completion zsh)"',
}


@pytest.mark.parametrize("shell", BEGIN)
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("tornado-signal sess", "sessions"),
        ("tornado-signal watch --or", "--origin"),
        ("tornado-signal serve --tls-k", "--tls-key"),
        ("tornado-signal completion f", "fish"),
    ],
)
def test_tab_completes_commands_in_a_shell(shell, typed, completed, shell_environment):
    require(*{"zsh"} & {*shell.split()})
    with Terminal(*shell.split(), env=shell_environment) as terminal:
        terminal.type(BEGIN[shell] + "; echo rea''dy\n")
        terminal.until("\nready\n")
        terminal.type(f"{typed}\t")
        terminal.until(completed)  # on the line, or below it with what it means


def test_fish_completes(shell_environment):
    script = "tornado-signal completion fish | source; for each in 'sess' 'watch --or' 'completion f'; "
    script += 'complete -C "tornado-signal $each"; end'
    found = printed("fish", "--no-config", "-c", script, env=shell_environment)
    assert [line.split("\t")[0] for line in found.splitlines()] == ["sessions", "--origin", "fish"]


@pytest.mark.parametrize("check", [["mandoc", "-Tlint"], ["groff", "-man", "-ww", "-z", "-Tutf8"]])
def test_manual_page_has_no_formatting_errors(check):
    page = run("man")
    assert (page.returncode, page.stderr) == (0, "")
    assert printed(*check, input=page.stdout, stderr=subprocess.STDOUT) == ""


def test_manual_page_matches_help():
    text = printed("mandoc", "-Tutf8", "-Owidth=400", input=run("man").stdout)
    shown = " ".join(re.sub(".\b", "", text).split())  # bold and underlined by overstriking
    for command in make_parser().commands:
        assert f"tornado-signal {command}" in shown
    for each in SETTINGS:
        assert re.search(rf"{each.flag} \S+ {re.escape(' '.join(each.help.split()))}", shown)
    for text in ("SIGNAL_URL", "SIGNAL_ORIGIN", "--candidate TEXT", "0 clean stop, 1 an error to fix"):
        assert text in shown


def test_text_that_looks_like_troff_requests_is_escaped():
    text = ".so 'x' \\fB -- a-b"
    page = f".TH X 1 2020-01-01\n.SH NAME\nx \\- y\n.SH X\n{escape(text)}\n"
    assert text in printed("mandoc", "-Tascii", input=page)
