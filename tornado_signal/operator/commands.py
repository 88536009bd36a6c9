"""The operator's commands: admin, check, completion, health, token and turn-config.

Their modules are imported when a command runs, so that other commands start fast.
"""

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import OperatorError
from ..settings.command_line import CommandLine, add_settings, flag_reader
from ..settings.settings import SETTINGS
from ..settings.value_types import ACTION, DURATION, ORIGIN, TEXT, URL, ValueType, converted, matching
from ..system import terminal

LISTENER = ("admin_port", "admin_address", "admin_token_file")
ACTIONS = ("status", "disconnect", "block", "unblock", "withdraw", "drain", "log-level")
SHELLS = ("bash", "zsh", "fish")
# Encoding raises a ValueError if the argument was not UTF-8.
TOPIC, INFO = (
    converted(lambda text: text.encode().decode(), matching(f"(?s).{{1,{longest}}}", allowed))
    for longest, allowed in ((256, "a topic of 1 to 256 characters"), (1024, "1 to 1024 characters"))
)
REDIS = ("store", *(setting.name for setting in SETTINGS if setting.name.startswith("redis_")))


def add_commands(commands: CommandLine) -> None:
    check = "check the integrity of the data of a stopped server, or of the data on Redis"
    _add(commands, "check", check, "data_dir", *REDIS)
    parser = _add(commands, "admin", "show the state of a running server, or act on it", *LISTENER)
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help=", ".join(ACTIONS))
    _add_flags(
        parser,
        ("--address", TEXT, "ADDRESS", "an IP address or a network, for disconnect, block and unblock"),
        ("--origin", ORIGIN, "ORIGIN", "an origin, for disconnect and withdraw"),
        ("--topic", TEXT, "TOPIC", "a topic of the origin, for disconnect and withdraw"),
        ("--code", TEXT, "CODE", "the code of a session of the origin, for disconnect and withdraw"),
        ("--subject", TEXT, "SUB", "the claim sub of a token, for disconnect"),
        ("--for", DURATION, "TIME", "how long to block, such as 90s, 15m, 1h or 7d"),
        ("--level", TEXT, "LEVEL", "debug, info, warning or error, for log-level"),
    )
    parser.add_argument("--json", action="store_true", help="print JSON, also on a terminal")
    meaning = "URL of the running server's admin listener, unless it is at --admin-port of this machine"
    _add_flags(parser, ("--admin-url", URL, "URL", meaning))
    health = "check whether the server with these settings is healthy"
    _add(commands, "health", health, "address", "port", "tls_certificate", "tls_key", "allowed_origins")
    turn_config = "print the file turnserver.conf of coturn for these settings"
    _add(commands, "turn-config", turn_config, "turn_servers", "turn_secret_file", "tls_certificate", "tls_key")
    _add_token(commands)
    completion = commands.add_command(
        "completion",
        lambda arguments: _complete(commands, arguments.shell),
        "print completion for a shell",
        'Print completion for a shell. For bash: eval "$(tornado-signal completion bash)"',
    )
    completion.add_argument("shell", choices=SHELLS)


def _add_token(commands: CommandLine) -> None:
    token = commands.add_command(
        "token",
        _lazy("token"),
        "make a token, or explain one",
        "Make a token for clients of a server with --auth-keys, and print it. With --check, read a token from standard "
        "input, verify and explain it. The exit status is 1 if the server would refuse it.",
    )
    token.add_argument(
        "--key",
        type=Path,
        required=True,
        metavar="FILE",
        help="NAME.secret, or NAME.pem with a private key; with --check a public key, or a directory of keys",
    )
    token.add_argument("--check", action="store_true", help="verify and explain the token on standard input")
    topics = "a topic, or a prefix that ends in *; may be repeated (default: all topics)"
    _add_flags(token, ("--topic", TOPIC, "TOPIC", topics), action="append")
    actions = "list, offer or answer; may be repeated (default: all)"
    _add_flags(token, ("--action", ACTION, "ACTION", actions), action="append")
    ttl = "time until it expires, such as 90s, 15m, 1h or 7d (default: %(default)s)"
    _add_flags(token, ("--ttl", DURATION, "TIME", ttl), default="1h")
    _add_flags(
        token,
        ("--sub", INFO, "TEXT", "the subject: who it is"),
        ("--info", INFO, "TEXT", "the only info of its bearer's offers"),
        ("--origin", ORIGIN, "ORIGIN", "the only origin that may use it"),
        ("--issuer", TEXT, "TEXT", "the issuer; with --check: required"),
        ("--audience", TEXT, "TEXT", "the audience; with --check: required"),
    )


def _add_flags(parser: CommandLine, *flags: tuple[str, ValueType[Any], str, str], **options: Any) -> None:
    """Add flags: name, type, the placeholder of its value, and meaning."""
    for flag, value_type, metavar, meaning in flags:
        parser.add_argument(flag, type=flag_reader(value_type), metavar=metavar, help=meaning, **options)


def _add(commands: CommandLine, name: str, meaning: str, *settings: str) -> CommandLine:
    parser = commands.add_command(
        name,
        _lazy(name.replace("-", "_")),
        meaning,
        f"{meaning.capitalize()}. Settings are read in the same way as for `serve`.",
    )
    add_settings(parser, settings)
    return parser


def _lazy(module: str) -> Callable[[argparse.Namespace], None]:
    def run(arguments: argparse.Namespace) -> None:
        with terminal.output_may_be_closed():
            importlib.import_module(f".{module}", __package__).run(arguments)

    return run


def _complete(commands: CommandLine, shell: str) -> None:
    try:
        import shtab
    except ModuleNotFoundError as error:
        raise OperatorError("completion needs shtab; in the checkout: pip install '.[completion]'") from error
    with terminal.output_may_be_closed():
        print(shtab.complete(commands, shell))
