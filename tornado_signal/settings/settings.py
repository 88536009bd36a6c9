# ruff: noqa: RUF009  (a default made by setting() is a value that never changes)
"""The settings: one table. Flag, environment variable, TOML key, help and every error follow from it.

A new setting is one new field of `Settings`, and a line for it in the environment file.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from .origins import Origins
from .value_types import (
    ADDRESS,
    COUNT,
    HOST,
    MODE,
    NAME,
    NETWORK,
    OPTIONAL_PATH,
    ORIGIN,
    PATH,
    PORT,
    PROXY,
    REDIS_NODE,
    SIZE,
    STUN,
    SWITCH,
    TURN,
    Network,
    ValueType,
    converted,
    integer,
    keyword_or,
    list_of,
    matching,
    one_of,
)

T = TypeVar("T")

PREFIX = "TORNADO_SIGNAL_"
"""What the name of every environment variable of this program begins with."""


@dataclass(frozen=True)
class Setting:
    """One setting and its names.

    Attributes:
        name: Its field in `Settings`, and its key in the TOML file.
        default: What it is unless set, as it would be written in the TOML file.
        type: What it may be.
        meaning: What it does, for `--help`.
        unit: What its number counts, or empty.
        live: Whether a server that runs can apply it.
    """

    name: str
    default: object
    type: ValueType[object]
    meaning: str
    unit: str
    live: bool

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return PREFIX + self.name.upper()

    @property
    def help(self) -> str:
        """All that `--help` says about it."""
        unit = f"unit: {self.unit}; " if self.unit else ""
        found = f"{unit}default: {self.default}; environment: {self.variable}{'; applied on SIGHUP' * self.live}"
        return f"{self.meaning} [{self.type.allowed}] ({found})"


def setting(default: object, value_type: ValueType[T], meaning: str, unit: str = "", *, live: bool = False) -> T:
    """A field of `Settings`; the arguments are those of `Setting`."""
    described = {"default": default, "type": value_type, "meaning": meaning, "unit": unit, "live": live}
    return dataclasses.field(default=value_type.parse(default), metadata=described)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting, checked. A relative path counts from the directory that the server is started in."""

    address: str = setting(
        "127.0.0.1",
        ADDRESS,
        "address to listen on, or a Unix socket, unix:/path; not used when systemd passes a socket",
    )
    port: int = setting(
        3000, PORT, "port of that address, if it is one; 0 picks a free one, and the chosen one is logged"
    )
    socket_mode: int = setting(
        "660",
        MODE,
        "permissions of the Unix socket, whatever the umask; a program that connects to it must be able to write",
    )
    tls_certificate: Path | None = setting(
        "none", OPTIONAL_PATH, "certificate for HTTPS, with its chain, as PEM; read again on SIGHUP", live=True
    )
    tls_key: Path | None = setting("none", OPTIONAL_PATH, "key of the certificate, as PEM", live=True)
    data_dir: Path = setting("data", PATH, "the LevelDB directory, created if missing")
    store: Literal["leveldb", "redis"] = setting(
        "leveldb",
        one_of("leveldb", "redis"),
        "where the sessions live: in the data directory, of one process (leveldb), or on Redis or Valkey 7.0 or newer, "
        "shared by any number of processes on any number of machines (redis)",
    )
    workers: int | Literal["auto"] = setting(
        1,
        keyword_or("auto", "auto", integer(1, 512)),
        "how many processes share the port, with --store redis; auto: one for each processor",
    )
    redis_nodes: tuple[tuple[str, int], ...] = setting(
        "127.0.0.1:6379",
        list_of(REDIS_NODE),
        "a Redis server, or some nodes of a cluster, which is recognised; with --redis-sentinel, the Sentinels",
    )
    redis_sentinel: str = setting(
        "none", keyword_or("none", "", NAME), "the name that the Sentinels know the primary by, if they are to be asked"
    )
    redis_prefix: str = setting(
        "tornado-signal:",
        matching("[!-z|~]{1,64}", "1 to 64 ASCII characters, without spaces and braces"),
        "what the names of all keys and channels begin with",
    )
    redis_user: str = setting("none", keyword_or("none", "", NAME), "the user of Redis; none: its default user")
    redis_password_file: Path | None = setting(
        "none", OPTIONAL_PATH, "the file that holds the user's password; read again on SIGHUP", live=True
    )
    redis_sentinel_user: str = setting(
        "none", keyword_or("none", "", NAME), "the user of the Sentinels; none: their default user"
    )
    redis_sentinel_password_file: Path | None = setting(
        "none", OPTIONAL_PATH, "the file that holds that user's password; read again on SIGHUP", live=True
    )
    redis_tls: bool = setting("false", SWITCH, "whether the connections to Redis are encrypted")
    redis_ca: Path | None = setting(
        "none", OPTIONAL_PATH, "the authority of Redis' certificates, as PEM; none: those of the system"
    )
    redis_timeout_ms: int = setting(
        1000, integer(50, 60_000), "how long an operation is tried on Redis before it is refused with 503", "ms"
    )
    redis_replicas: int = setting(
        1,
        integer(0, 10),
        "how many replicas at least have a write before it is acknowledged, with --durability replicated; every other "
        "replica that has reported lately is waited for as well",
    )
    redis_partitions: int = setting(
        16, integer(1, 1024), "how many parts an origin's sessions are in, so that many nodes share them; kept for ever"
    )
    # A tenth of a second to a week: sessions are short-lived (Specification 1), and no peer answers faster.
    session_timeout_ms: int = setting(300_000, integer(100, 604_800_000), "lifetime of a session", "ms")
    sweep_interval_ms: int = setting(1000, integer(10, 3_600_000), "pause between two sweeps of what has expired", "ms")
    hold_grace_ms: int = setting(
        5000,
        integer(0, 300_000),
        "how long an offer that is held outlives its WebSocket, for its owner to come back",
        "ms",
    )
    durability: Literal["fsync", "os", "replicated"] = setting(
        "fsync",
        one_of("fsync", "os", "replicated"),
        "what a 200 means: on disk, safe against power loss (fsync), or safe against the process dying (os); with "
        "--store redis also: in the memory of --redis-replicas replicas, too (replicated), which is its default",
    )
    codes: Literal["random", "content"] = setting(
        "random",
        one_of("random", "content"),
        "how session codes are made: at random, or from origin, topic and offer, the same for the same",
    )
    allowed_origins: Origins | None = setting(
        "any",
        keyword_or("any", None, converted(lambda entries: Origins(frozenset(entries)), list_of(ORIGIN))),
        "the origins that are served; https://*.example.com: every subdomain, but not the name itself",
        live=True,
    )
    trusted_proxies: tuple[Network | Literal["unix"], ...] = setting(
        "none",
        keyword_or("none", (), list_of(PROXY)),
        "the proxies whose X-Forwarded-For, X-Forwarded-Proto, X-Forwarded-Host and X-Request-Id count; unix: every "
        "program that connects to the Unix socket",
        live=True,
    )
    max_body_bytes: int = setting(
        262_144,
        integer(1024, 16_777_216),
        "the largest request body or WebSocket message; a side of a session may store four times as much",
        "bytes",
        live=True,
    )
    max_offer: int = setting(
        262_144, integer(64, 16_777_216), "the longest offer, answer or candidate", "code points", live=True
    )
    max_candidates: int = setting(1000, COUNT, "how many candidates a side of a session may have", live=True)
    max_sessions_per_origin: int = setting(
        2_000_000, COUNT, "how many unanswered sessions an origin may have, in one topic or in many", live=True
    )
    max_sessions_per_address: int = setting(
        10_000, COUNT, "how many sessions an address may publish in the lifetime of one", live=True
    )
    max_bytes_per_address: int = setting(
        67_108_864,
        SIZE,
        "how much an address may store in the lifetime of a session, in requests as they are sent",
        "bytes",
        live=True,
    )
    max_store_bytes: int = setting(
        4_294_967_296, SIZE, "how much the data directory may hold; then nothing is published", "bytes", live=True
    )
    min_free_bytes: int = setting(
        67_108_864,
        integer(0, 2**53),
        "how much of its disk stays free, of a small one a quarter, beside what merging the data takes",
        "bytes",
        live=True,
    )
    max_connections: int = setting(
        100_000,
        COUNT,
        "how many connections may be open, and how many requests may wait at the same time; file descriptors are a "
        "further limit of connections",
        live=True,
    )
    max_connections_per_address: int = setting(
        1000,
        COUNT,
        "how many connections an address may have open, and how many of its requests may wait at the same time",
        live=True,
    )
    max_unsent_bytes: int = setting(
        67_108_864,
        COUNT,
        "how much clients that read too slowly may leave unread, all together; a quarter of it is read ahead of what "
        "can be answered, over HTTP and WebSockets",
        "bytes",
        live=True,
    )
    rate_per_address: int = setting(
        100,
        integer(1, 1_000_000),
        "how many requests an address may make; after a pause ten times as many at once",
        "1/s",
        live=True,
    )
    unlimited_addresses: tuple[Network, ...] = setting(
        "127.0.0.0/8,::1",
        keyword_or("none", (), list_of(NETWORK)),
        "the addresses that no limit per address is for, like those of the trusted proxies",
        live=True,
    )
    admin_port: int | None = setting(
        "off",
        keyword_or("off", None, PORT),
        "port of a second listener for /metrics, /healthz, /readyz and maintenance; 0 picks a free one",
    )
    admin_address: str = setting(
        "127.0.0.1",
        HOST,
        "address of that listener; beyond loopback maintenance needs --admin-token-file, all else is open",
    )
    admin_token_file: Path | None = setting(
        "none",
        OPTIONAL_PATH,
        "the file that holds the token which maintenance over that listener then needs, as Authorization: "
        "Bearer; also what the commands show",
    )
    drain_delay_ms: int = setting(
        0,
        integer(0, 5_000),
        "how long a server that is told to stop goes on as ever, but for 503 at /health and /readyz: as long as load "
        "balancers take to notice",
        "ms",
        live=True,
    )
    start_empty_if_damaged: bool = setting(
        "false", SWITCH, "whether to move a damaged database aside and serve without it, at the start and later"
    )
    demo: bool = setting("true", SWITCH, "whether there is a page to try it at /demo", live=True)
    stun_servers: tuple[str, ...] = setting(
        "stun:stun.cloudflare.com:3478,stun:stun.l.google.com:19302",
        keyword_or("none", (), list_of(STUN)),
        "STUN servers for the peers; they learn the peers' addresses",
        live=True,
    )
    turn_servers: tuple[str, ...] = setting(
        "none", keyword_or("none", (), list_of(TURN)), "the TURN servers that peers are told of", live=True
    )
    # Only a file: flags are seen by every user that lists processes.
    turn_secret_file: Path | None = setting(
        "none", OPTIONAL_PATH, "the file that holds the secret of the TURN servers", live=True
    )
    # Two minutes to a month: no shorter than an offer of the browser module lives.
    turn_ttl_s: int = setting(
        86_400, integer(120, 2_592_000), "how long a password for the TURN servers is good", "s", live=True
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", one_of("debug", "info", "warning", "error"), "the least that is worth a line in the log", live=True
    )
    log_format: Literal["text", "json"] = setting(
        "text", one_of("text", "json"), "the form of a line in the log: words, or a JSON object", live=True
    )
    access_log: bool | Literal["addresses"] = setting(
        "false",
        keyword_or("addresses", "addresses", SWITCH),
        "whether to log a line for each request, at level info; addresses: with the client's address",
        live=True,
    )


SETTINGS = tuple(Setting(field.name, **field.metadata) for field in dataclasses.fields(Settings))
"""The settings, in the order of their table."""
REPLACED = {
    "burst_per_address": "rate_per_address",
    "log_addresses": "access_log",
    "max_answer": "max_offer",
    "max_candidate": "max_offer",
    "max_read_ahead_bytes": "max_unsent_bytes",
    "max_sessions_per_topic": "max_sessions_per_origin",
    "max_side_bytes": "max_body_bytes",
    "max_topics_per_origin": "max_sessions_per_origin",
    "max_waiting": "max_connections",
    "max_waiting_per_address": "max_connections_per_address",
}
"""The names of settings that were removed, each with the one to use instead."""
LIVE = frozenset(each.name for each in SETTINGS if each.live)
"""The names of those that a server in operation can apply."""


def merge(running: Settings, read: Settings, names: frozenset[str] = LIVE) -> tuple[Settings, list[str], list[str]]:
    """What a server that runs can take over of settings that were read again: those of these names.

    Returns:
        The settings that it is to have, and the flags of those that change by that and of those that need a restart.
    """
    applied, waiting = {}, []
    for each in SETTINGS:
        before, after = getattr(running, each.name), getattr(read, each.name)
        if before == after:
            continue
        # A listener goes on with what it speaks: HTTP or HTTPS.
        if each.name in names and not (each.name in ("tls_certificate", "tls_key") and None in (before, after)):
            applied[each] = after
        else:
            waiting.append(each.flag)
    merged = dataclasses.replace(running, **{each.name: value for each, value in applied.items()})
    return merged, [each.flag for each in applied], waiting
