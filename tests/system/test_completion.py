"""Completion of both commands in real shells."""

import pytest
from support.command import COMMAND, environment
from support.needs import require
from support.terminal import Terminal
from support.waiting import output, run_command


@pytest.fixture
def shell_environment(tmp_path):
    path = f"{COMMAND.parent}:/usr/bin:/bin"
    return environment(HOME=str(tmp_path), ZDOTDIR=str(tmp_path), PATH=path, TERM="dumb", PS1="$ ")


# Input before the command, in each shell.
BEGIN = {
    "bash --norc --noprofile -i": "bind 'set enable-bracketed-paste off'; eval \"$({} completion bash)\"",
    "zsh -f -i": 'autoload -U compinit; compinit -u; eval "$({} completion zsh)"',
}


@pytest.mark.parametrize("shell", BEGIN)
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("tornado-signal tok", "token"),
        ("tornado-signal serve --tls-k", "--tls-key"),
        ("tornado-signal-client sess", "sessions"),
        ("tornado-signal-client watch --or", "--origin"),
        ("tornado-signal-client completion f", "fish"),
    ],
)
def test_tab_completes_commands_in_a_shell(shell, typed, completed, shell_environment):
    require(*{"zsh"} & {*shell.split()})
    with Terminal(*shell.split(), env=shell_environment) as terminal:
        terminal.type(BEGIN[shell].format(typed.split()[0]) + "; echo rea''dy\n")
        terminal.until("\nready\n")
        terminal.type(f"{typed}\t")
        terminal.until(completed)  # on the line, or below it with what it means


@pytest.mark.needs("fish")
def test_fish_completes(shell_environment):
    script = "tornado-signal-client completion fish | source; for each in 'sess' 'watch --or' 'completion f'; "
    script += 'complete -C "tornado-signal-client $each"; end'
    found = output(run_command("fish", "--no-config", "-c", script, env=shell_environment))
    assert [line.split("\t")[0] for line in found.splitlines()] == ["sessions", "--origin", "fish"]
