"""Settings from every source, precedence of sources, invalid values, and the output of `--help`."""

import dataclasses
import ipaddress
import json
from pathlib import Path

import pytest
from support.command import PARSER, load_settings

from tornado_signal.errors import OperatorError
from tornado_signal.settings.origins import AllowedOrigins
from tornado_signal.settings.settings import REPLACED, SETTINGS, Settings
from tornado_signal.settings.sources import CONFIG_VARIABLE, NEEDS, ConfigError, load
from tornado_signal.system.secrets import admin_token, redis_passwords

SECRETS = "admin_token_file redis_password_file redis_sentinel_password_file turn_secret_file "
SECRETS += "turn_provider_secret_file webhook_secret_file"
SECRET_VARIABLES = {name: f"TORNADO_SIGNAL_{name.upper().removesuffix('_FILE')}" for name in SECRETS.split()}
SECRET_VARIABLES["auth_keys"] = "TORNADO_SIGNAL_AUTH_SECRET"

DEFAULTS = {"--address": ("127.0.0.1",), "--port": 3000, "--socket-mode": 0o660, "--admin-port": None}
DEFAULTS |= {"--tls-certificate": None, "--tls-key": None, "--data-dir": Path("data"), "--codes": "random"}
DEFAULTS |= {"--session-timeout-ms": 300_000, "--sweep-interval-ms": 1000, "--durability": "fsync"}
DEFAULTS |= {"--allowed-origins": None, "--trusted-proxies": (), "--start-empty-if-damaged": False}

# Other settings that a setting requires.
REQUIRED_WITH = {
    "tls_certificate": {"tls_key": Path("beside")},
    "tls_key": {"tls_certificate": Path("beside")},
    "store": {"durability": "os"},
    "durability": {"store": "redis"},
    "workers": {"store": "redis", "durability": "os"},
    "admin_address": {"admin_port": 3001},
    **{name: {"auth_keys": Path("beside")} for name in ("auth_issuer", "auth_audience", "auth_anonymous")},
    **{name: {"redis_sentinel": "beside"} for name in ("redis_sentinel_user", "redis_sentinel_password_file")},
    "turn_servers": {"turn_secret_file": Path("beside")},
    "turn_secret_file": {"turn_servers": ("turn:beside",)},
    "turn_provider": {"turn_provider_secret_file": Path("beside")},
    "turn_provider_secret_file": {"turn_provider": "twilio:beside"},
    "webhook_url": {"webhook_secret_file": Path("beside")},
    "webhook_secret_file": {"webhook_url": "http://beside"},
}

TABLE = {}
"""The valid texts of each setting with their values, and its invalid texts."""


def add(names, values, refused):
    """Add settings of one type to the table. Valid texts without values are their own."""
    for name in names.split():
        known, refused_before = TABLE.get(name, ({}, []))
        values = values if isinstance(values, dict) else {text: text for text in values}
        TABLE[name] = (known | values, [*refused_before, *refused])


def lists(*texts):
    return {text: tuple(item.strip() for item in text.split(",")) for text in texts}


PROXIES = (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("::1/128"))
NETWORKS = {"none": (), "10.0.0.0/8,::1": PROXIES, "10.0.0.0/8 , ::1": PROXIES}
URLS = ["", "a", "ftp://a", "https://u:p@a", "http://a b", "https://a b"]
UNIX = "unix:" + "é" * 53

add("address", lists("::", "signal.example", "unix:/run/a b.sock", UNIX, "0.0.0.0, ::,unix:a"), ["unix:", "unix:a\0"])
add("address", {}, ["", " ", "a b", "127.0.0.1:80", "[::1]", "http://a", "-a", UNIX + "é", "::,a b"])
add("port", {}, [" 80", "80\n", "1" * 5000, "80.0", "1_0", "+80", "8e1", "٣", "any"])
add("socket_mode", {"600": 0o600, "000": 0}, ["", "0", "66", "0660", "0o660", "668", "-60", "rw-rw----"])
add("data_dir", {"/var/lib/a b,c": Path("/var/lib/a b,c")}, ["", "a\0b"])
FILES = f"{SECRETS} auth_keys tls_certificate tls_key redis_ca"
add(FILES, {"none": None, "/etc/a b.pem": Path("/etc/a b.pem")}, ["", "a\0b"])
add("workers", {"auto": "auto"}, ["all"])
add("admin_port", {"off": None}, ["none", "true"])
NODES = {"redis.example:6379": (("redis.example", 6379),), "10.0.0.1:1, [::1]:65535": (("10.0.0.1", 1), ("::1", 65535))}
add("redis_nodes", NODES, ["", "none", "a", "a:0", "a:65536", "a:1,", "::1:1", "redis://a:1", "a:1:2"])
NAMES = "redis_sentinel redis_user redis_sentinel_user"
add(NAMES, {"none": "", "my-primary.1": "my-primary.1"}, ["", "a b", "a:1", "a" * 129])
add("redis_prefix", ["a|b~:"], ["", "{a}", "a b", "a" * 65, "é"])
ORIGINS = {
    "HTTPS://B.example": {"https://b.example"},
    "http://[::A]:80": {"http://[::a]"},
    "https://b:80,file://": {"https://b:80", "file://"},
    "https://*.A.b:443": {"https://*.a.b"},
    "http://a:1, null": {"http://a:1", "null"},
    "app://x/,http://b": {"app://x/", "http://b"},
    "https://*.a.b:1": {"https://*.a.b:1"},
    "http://*.localhost": {"http://*.localhost"},
}
add(
    "allowed_origins",
    {"any": None} | {text: AllowedOrigins(frozenset(entries)) for text, entries in ORIGINS.items()},
    [
        *["", ",", "http://a,", "*", "http://a/", "http://a b", "http://é", "x" * 513],
        *["*.a.example", "app://*.a.example", "http://ok,https://*", "https://*", "https://*.", "https://*.a"],
        *["a.example", "localhost:3000", "//a.example", "https://a.example:port", "https://u@a.example", "https://a?b"],
        *["https://*a.example", "https://a*.b.example", "https://a.*.example"],
        *["https://*.*.example", "https://*.a..example", "https://*.a.example/", "https://*.a.example:port"],
    ],
)
add("trusted_proxies unlimited_addresses", NETWORKS, ["", "none,::1", "10.0.0.1/8", "10.0.0.0/33", "host", "::1,", "5"])
add("trusted_proxies", {"10.0.0.0/8,unix": (PROXIES[0], "unix")}, ["unix:", "unix:/run/a", "none,unix"])
add("admin_address", ["10.0.0.1", "::"], ["", "unix:/run/admin.sock", "10.0.0.1:9000"])
HOSTS = {"none": (), "Signal,a.example": ("signal", "a.example")}
add("admin_hosts", HOSTS, ["", "a:1", "http://a", "a b", "*.example"])
add("stun_servers turn_servers", {"none": ()}, ["", "a:1"])
STUN = ["stun:a b", "stun:", "turn:a", "stun:a?transport=udp", "stun:a:1,", "stun://a"]
add("stun_servers", lists("stun:a:1, stuns:[::1]"), STUN)
TURN = ["turn:", "stun:a", "turn:a?transport=sctp", "turn:u@a", "turn://a", "turn:a?x"]
add("turn_servers", lists("turn:a?transport=udp", "turns:a.b:443?transport=tcp"), TURN)
SWITCHES = "redis_tls demo readable_module nearby start_empty_if_damaged access_log log_subjects peerjs_discovery "
SWITCHES += "admin_topics connection_reports"
add(SWITCHES, {"true": True, "false": False}, ["", "yes", "True", "1", "on"])
add("access_log", ["addresses"], [])
PROTOCOLS = {"none": (), **lists("tracker, peerjs", "y-webrtc")}
add("protocols shared_protocols", PROTOCOLS, ["", "PeerJS", "peerjs,", "any", "peerjs none"])
add("auth_anonymous", {"none": (), **lists("list, offer", "answer")}, ["", "all", "list,", "poll"])
EVENTS = lists("session.created", "session.expired, connection.closed")
add("webhook_events", EVENTS, ["", "none", "created", "session.created,", "session.*"])
add("auth_issuer auth_audience", {"none": "", "https://app.example": "https://app.example"}, ["", "a b", "é"])
HOOKS = [*URLS, "https://", "https://a/#b", "https://a/b c", "https://a:65536", "https://[1"]
add("webhook_url", {"none": None}, HOOKS)
add("webhook_url", ["http://a", "https://[::1]:1/a?b=%20"], [])
add("turn_provider", {"none": None}, [*URLS, "cloudflare:", "twilio:a/b", "aws:a", "metered", "http://localhost.a"])
add("turn_provider", ["cloudflare:0a", "https://a/b?c", "http://127.0.0.1:80"], ["http://a"])
add("otlp_endpoint", {"none": ""}, [*URLS, "off", "localhost:4318", "grpc://a:4317", "http://", "http://a?b"])
add("otlp_endpoint", ["http://127.0.0.1:4318", "https://[::1]/otlp/v1.0/"], ["http://a//b"])
for name, words in {
    "store": ["leveldb", "redis"],
    "durability": ["fsync", "os", "replicated"],
    "codes": ["random", "content"],
    "log_level": ["debug", "info", "warning", "error"],
    "log_format": ["text", "json"],
}.items():
    add(name, words, ["", "none", "10", words[0].upper(), words[1].title()])
for name, (least, greatest) in {
    "port": (0, 65_535),
    "workers": (1, 512),
    "redis_timeout_ms": (50, 60_000),
    "redis_replicas": (0, 10),
    "redis_partitions": (1, 1024),
    "session_timeout_ms": (100, 604_800_000),
    "drain_delay_ms": (0, 5000),
    "sweep_interval_ms": (10, 3_600_000),
    "min_free_bytes": (0, 2**53),
    "keep_alive_s": (1, 86_400),
    "hold_grace_ms": (0, 300_000),
    "admin_port": (0, 65_535),
    "turn_ttl_s": (120, 2_592_000),
    **{each.name: (2000, 2000) for each in SETTINGS if each.name.startswith(("max_", "rate_"))},
}.items():
    beyond = ["0", "-1", "9007199254740993"] if least == greatest else [str(least - 1), str(greatest + 1)]
    add(name, {str(least): least, str(greatest): greatest}, ["", "many", "1.5", "5m", *beyond])

# The invalid items of the lists in these texts.
INVALID_ITEM = {"http://ok,https://*": "https://*", "none,::1": "none", "none,unix": "none", "::,a b": "a b"}


def toml_forms(setting, text, value):
    """Return a value in each form that a TOML file can have."""
    forms = [json.dumps(text, ensure_ascii=False)]
    if is_list(setting) and value:
        forms.append(json.dumps([item.strip() for item in text.split(",")], ensure_ascii=False))
    if is_number(setting) and text.isdecimal():
        forms.append(f"{value:_}")
    return [*forms, text] if type(value) is bool else forms


def is_list(setting):
    return "several separated by commas" in setting.type.allowed


def is_number(setting):
    return "a whole number" in setting.type.allowed


def refused_toml(setting):
    """Yield TOML of other types than that of a setting, and lists of items of another type."""
    yield from ("[]", "[1]", "{a = 1}", "nan", "2000.0", "1979-05-27", '[["a"]]')
    if not is_number(setting):
        yield from ("1", "0o660")
    if "true or false" not in setting.type.allowed:
        yield from ("true", "false")
    if not is_list(setting):
        yield json.dumps([*TABLE[setting.name][0]][-1:])


BY_NAME = {setting.name: setting for setting in SETTINGS}


def config_error(*argv, env=None):
    with pytest.raises(ConfigError) as error:
        load_settings(*argv, env=env)
    return error.value


@pytest.fixture
def toml(tmp_path):
    path = tmp_path / "signal.toml"

    def write(content: str | bytes) -> str:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def test_defaults_are_the_documented_ones_and_every_field_is_a_setting_of_the_table():
    settings = load_settings()
    assert {flag: getattr(settings, flag[2:].replace("-", "_")) for flag in DEFAULTS} == DEFAULTS
    assert settings == Settings()
    assert [field.name for field in dataclasses.fields(Settings)] == ["sources", *BY_NAME]
    assert TABLE.keys() == BY_NAME.keys()
    assert all(values and refused for values, refused in TABLE.values())
    assert NEEDS.keys() == REQUIRED_WITH.keys() - {"store", "durability", "workers"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.port = 1


def required_environment(name):
    values = REQUIRED_WITH.get(name, {}).items()
    return {BY_NAME[other].variable: value[0] if type(value) is tuple else str(value) for other, value in values}


@pytest.mark.parametrize("name", BY_NAME)
def test_every_source_yields_the_same_value(name, toml):
    setting = BY_NAME[name]
    for text, value in TABLE[name][0].items():
        required = REQUIRED_WITH.get(name, {}) if value not in (None, ()) else {}
        expected = dataclasses.replace(Settings(), **{name: value}, **required)
        env = required_environment(name) if required else {}
        assert load_settings(setting.flag, text, env=env) == expected
        assert load_settings(env=env | {setting.variable: text}) == expected
        for form in toml_forms(setting, text, value):
            path = toml(f"{name} = {form}\n")
            assert load_settings("--config", path, env=env) == expected
        assert load_settings(env=env | {CONFIG_VARIABLE: path}) == expected
    if "true" in TABLE[name][0]:  # a switch
        assert load_settings(setting.flag) == dataclasses.replace(Settings(), **{name: True})


def test_flag_wins_over_environment_over_file_over_default(toml):
    path = toml("port = 1\nmax_offer = 1001\nmax_candidates = 1001\ncodes = 'content'\n")
    env = {"TORNADO_SIGNAL_PORT": "2", "TORNADO_SIGNAL_MAX_OFFER": "1002", "TORNADO_SIGNAL_DURABILITY": "os"}
    by_file = {"max_candidates": 1001, "codes": "content"}
    by_environment = {"max_offer": 1002, "durability": "os"}
    flags = ["--port", "3", "--address", "::1"]
    by_flag = {"port": 3, "address": ("::1",)}
    missing = {CONFIG_VARIABLE: f"{path}.missing"}
    assert load_settings("--config", path, env=missing) == Settings(port=1, max_offer=1001, **by_file)
    assert load_settings(env=env) == Settings(port=2, **by_environment)
    assert load_settings("--config", path, env=env) == Settings(port=2, **by_file, **by_environment)
    assert load_settings(*flags, env=env) == Settings(**by_environment, **by_flag)
    assert load_settings("--config", path, *flags, env=env) == Settings(**by_file, **by_environment, **by_flag)
    path = toml('allowed_origins = ["http://a"]\ntrusted_proxies = ["::1"]\nadmin_port = 9000\n')
    defaults = ["--allowed-origins", "any", "--trusted-proxies", "none", "--admin-port", "off"]
    assert load_settings("--config", path, *defaults) == Settings()
    with pytest.raises(ConfigError, match="TORNADO_SIGNAL_PORT"):  # also an overridden value is checked
        load_settings("--port", "1", env={"TORNADO_SIGNAL_PORT": "x"})
    with pytest.raises(ConfigError, match="key port"):
        load_settings("--port", "1", "--config", toml("port = 'x'"))
    unrelated = {"PORT": "1", "TORNADO_SIGNALS": "x", "tornado_signal_port": "2"}
    assert load_settings("--config", toml("# nothing\n"), env=unrelated) == Settings()


@pytest.mark.parametrize("name", NEEDS)
def test_setting_without_an_effect_is_refused(name, toml):
    setting, needed = BY_NAME[name], BY_NAME[NEEDS[name]]
    text, value = next((text, value) for text, value in TABLE[name][0].items() if value)
    off, needed_text = ("off" if needed.name == "admin_port" else "none"), next(reversed(TABLE[needed.name][0]))
    path = toml(f"{name} = '{text}'\n")
    for argv, env in [([setting.flag, text], {}), ([], {setting.variable: text}), (["--config", path], {})]:
        with_other = env | {needed.variable: needed_text}
        assert getattr(load_settings(*argv, env=with_other), name) == value
        for error in (config_error(*argv, env=env), config_error(*argv, needed.flag, off, env=with_other)):
            assert str(error) == f"{setting.flag} = '…': expected {needed.flag} to be set as well"
    assert load_settings("--admin-address", "127.0.0.1", "--admin-port", "off")  # a default
    assert load_settings("--auth-audience", "none", "--redis-sentinel-user", "none")
    # A command knows only some flags of the server, which can have the needed one.
    assert load(PARSER.parse_args(["health"]), {setting.variable: text} if name[:4] != "tls_" else {})


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["serve", "--admin-prt", "3"], "--admin-prt 3; did you mean --admin-port?"),
        (["serve", "--allowed-origin=https://a.b"], "--allowed-origin=https://a.b; did you mean --allowed-origins?"),
        (["serve", "--max_offer", "1", "--prot=1"], "--max_offer 1 --prot=1; did you mean --max-offer and --port?"),
        (["serve", "--port", "1", "--wholly-other"], "--wholly-other"),
        (["serve", "now"], "now"),
        (["serve", "--session-timeout=1000"], "--session-timeout=1000; did you mean --session-timeout-ms?"),
        (["check", "--data", "x"], "--data x; did you mean --data-dir?"),
        (["check", "--port", "1"], "--port 1"),
        (["admin", "status", "--port", "1"], "--port 1; did you mean --admin-port?"),
    ],
)
def test_unknown_or_abbreviated_flags_are_refused_with_a_hint(arguments, hint, capsys):
    with pytest.raises(SystemExit) as exit_:
        PARSER.parse_args(arguments)
    assert exit_.value.code == 2
    error_output = capsys.readouterr().err
    assert error_output.endswith(f": error: unrecognized arguments: {hint}\n")
    assert error_output.startswith(f"usage: tornado-signal {arguments[0]} ")


def test_commands_have_only_their_own_flags():
    settings = load(PARSER.parse_args(["check", "--data-dir", "x"]), {"TORNADO_SIGNAL_PORT": "1"})
    assert settings == Settings(data_dir=Path("x"), port=1)
    with pytest.raises(ConfigError):
        load(PARSER.parse_args(["check"]), {"TORNADO_SIGNAL_PORT": "x"})
    assert PARSER.parse_args(["serve", "--check"]).check
    assert not PARSER.parse_args(["serve"]).check


@pytest.mark.parametrize("name", BY_NAME)
def test_invalid_value_is_refused_with_the_name_of_its_source(name, capsys, toml):
    setting = BY_NAME[name]
    expected = setting.type.allowed
    for bad in TABLE[name][1]:
        item = "" if bad.endswith(",") else INVALID_ITEM.get(bad, bad)
        with pytest.raises(SystemExit) as exit_:
            load_settings(f"{setting.flag}={bad}")
        assert exit_.value.code == 2
        assert f"argument {setting.flag}: {item!r}: expected {expected}\n" in capsys.readouterr().err
        error = config_error(env={setting.variable: bad})
        assert str(error) == f"environment variable {setting.variable} = {item!r}: expected {expected}"
        assert (error.value, error.expected) == (item, expected)
    for bad in refused_toml(setting):
        path = toml(f"{name} = {bad}\n")
        error = config_error("--config", path)
        assert error.where == f"file {path}, key {name}"
        assert str(error) == f"file {path}, key {name} = {error.value!r}: expected {expected}"


SIMILAR = {"TORNADO_SIGNAL_PROT": "TORNADO_SIGNAL_PORT", "prot": "port", "session-timeout-ms": "session_timeout_ms"}
UNKNOWN = ["TORNADO_SIGNAL_session_timeout_ms", "TORNADO_SIGNAL_", "TORNADO_SIGNAL_CHECK", "config", "serve"]


@pytest.mark.parametrize("name", [*SIMILAR, *UNKNOWN])
def test_unknown_variable_or_key_is_refused_with_a_hint(name, toml):
    hint = f" such as {SIMILAR[name]}" if name in SIMILAR else ""
    path, is_variable = toml("[serve]\nport = 1" if name == "serve" else f"{name} = 1"), name.startswith("TORNADO")
    error = config_error(env={name: "1"}) if is_variable else config_error("--config", path)
    assert error.where == (f"environment variable {name}" if is_variable else f"file {path}, key {name}")
    assert error.expected.startswith(f"the name of a setting{hint} ")


@pytest.mark.parametrize("content", ["port: 1", "port = 1\nport = 2", b"address = '\xff'"])
def test_file_that_is_not_toml_or_cannot_be_read_is_refused_with_the_reason(content, toml, tmp_path):
    path = toml(content)
    assert str(config_error("--config", path)).startswith(f"--config = {path!r}: expected a TOML file (")
    for name, reason in ("missing.toml", "No such file"), (".", "Is a directory"):
        path = str(tmp_path / name)
        expected = f" = {path!r}: expected a readable file ({reason}"
        assert str(config_error("--config", path)).startswith(f"--config{expected}")
        by_variable = str(config_error(env={CONFIG_VARIABLE: path}))
        assert by_variable.startswith(f"environment variable {CONFIG_VARIABLE}{expected}")


def test_wildcard_matches_exactly_the_subdomains():
    origins = AllowedOrigins(frozenset({"https://*.a.example", "http://*.b.example:8080", "https://c.example"}))
    allowed = {
        "https://x.a.example": "https://*.a.example",
        "https://x-1.y_z.a.example": "https://*.a.example",
        "http://x.b.example:8080": "http://*.b.example:8080",
        "https://c.example": "https://c.example",
    }
    assert {origin: origins.find(origin) for origin in allowed} == allowed
    rejected = ["https://a.example", "https://.a.example", "https://x..a.example", "https://*.a.example"]
    rejected += ["https://x.*.a.example", "http://x.a.example", "https://x.a.example:8080", "https://X.a.example"]
    rejected += ["https://x.a.example.evil.example", "https://evil.example/.a.example", "https://xa.example"]
    rejected += ["https://evil.example#.a.example", "https://evil.example:1.a.example", "https://u@x.a.example"]
    rejected += ["https://x.aXexample", "https://x.a.example\n", "http://x.b.example", "https://x.c.example", "null"]
    assert [origin for origin in rejected if origin in origins] == []


def test_help_shows_every_setting(capsys):
    with pytest.raises(SystemExit) as exit_:
        load_settings("--help")
    assert exit_.value.code == 0
    output = "".join(capsys.readouterr().out.split())  # argparse breaks lines anywhere
    for setting in SETTINGS:
        unit = f"unit: {setting.unit}; " if setting.unit else ""
        value = "VALUE" if setting.type.bare_flag is None else "[VALUE]"
        line = f"{setting.flag} {value} {setting.meaning} [{setting.type.allowed}] ({unit}default: {setting.default}; "
        line += f"environment: {setting.variable}{'; applied on SIGHUP' * setting.live})"
        assert line.replace(" ", "") in output
        assert setting.unit or not setting.name.endswith("_ms")
    assert "--config" in output
    assert "--check" in output


@pytest.mark.parametrize(("old", "new"), REPLACED.items())
def test_removed_setting_is_refused_with_its_replacement(old, new, toml, capsys):
    assert old not in {setting.name for setting in SETTINGS}
    flag, new_flag = (f"--{name}".replace("_", "-") for name in (old, new))
    with pytest.raises(SystemExit):
        load_settings(flag, "1000")
    assert f"unrecognized arguments: {flag} 1000; did you mean {new_flag}?" in capsys.readouterr().err
    variable, new_variable = (f"TORNADO_SIGNAL_{name.upper()}" for name in (old, new))
    with pytest.raises(ConfigError, match=f"{variable} = '1000': expected {new_variable}, which replaces it"):
        load_settings(env={variable: "1000"})
    with pytest.raises(ConfigError, match=f"key {old} = 1000: expected {new}, which replaces it"):
        load_settings("--config", toml(f"{old} = 1000"))


@pytest.mark.parametrize(("name", "variable"), SECRET_VARIABLES.items())
def test_environment_variable_can_hold_a_secret_and_no_text_shows_it(name, variable):
    settings = load_settings(env={variable: "hidden", **required_environment(name)})
    assert getattr(settings, name).content == b"hidden"
    assert "hidden" not in repr(settings)
    assert str(getattr(settings, name)) == f"environment variable {variable}"
    path = BY_NAME[name].variable
    both = str(config_error(env={variable: "hidden", path: "path"}))
    assert both.startswith(f"environment variable {path} = 'path': expected to be absent, or ")
    assert "hidden" not in str(config_error(env={variable + "S": "hidden"}))
    assert {each.name for each in SETTINGS if each.secret_variable} == {*SECRET_VARIABLES}


@pytest.mark.parametrize("name", ["redis_password_file", "redis_sentinel_password_file"])
def test_password_of_redis_is_the_content_without_the_end_of_the_line(name, tmp_path):
    path, settings = tmp_path / "password", Settings(**{name: tmp_path / "password"})
    for content in ("pass word", "p\n", "p\r\n", "ä "):
        path.write_bytes(content.encode())
        expected = [content.rstrip("\r\n"), None]
        assert [*redis_passwords(settings)] == (expected if name == "redis_password_file" else expected[::-1])
    for content, reason in ((b"", "is empty"), (b"\r\n", "is empty"), (b"\xff", "can't decode")):
        path.write_bytes(content)
        with pytest.raises(OperatorError, match=f"--{name.replace('_', '-')} {path}.*{reason}"):
            redis_passwords(settings)
    assert (admin_token(Settings()), redis_passwords(Settings())) == (b"", (None, None))
