# ruff: noqa: RUF009  (a default made by setting() is a value that never changes)
"""The table of settings, from which flags, environment variables, TOML keys, help and errors are derived.

A new setting needs a field of `Settings` and an entry in systemd/tornado-signal.env.
"""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from . import value_types as types
from .addresses import Network
from .origins import AllowedOrigins
from .value_types import ValueType, VariableSecret

T = TypeVar("T")

PREFIX = "TORNADO_SIGNAL_"
"""Prefix of the environment variables."""

MAX_DRAIN_DELAY_MS = 5_000


@dataclass(frozen=True)
class Setting:
    """One setting and its names."""

    name: str  # the field of `Settings`, and the key in the TOML file
    default: object  # the default value, as in the TOML file
    type: ValueType[object]  # the allowed values
    meaning: str  # the description for `--help`
    unit: str  # the unit of a number, or empty
    live: bool  # whether a running server can apply it

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def secret_variable(self) -> str | None:
        """The environment variable that can hold the secret itself, if the setting names the file of one."""
        if self.name == "auth_keys":
            return PREFIX + "AUTH_SECRET"
        return self.variable.removesuffix("_FILE") if self.name.endswith("_file") else None

    @property
    def help(self) -> str:
        unit = f"unit: {self.unit}; " if self.unit else ""
        details = f"{unit}default: {self.default}; environment: {self.variable}{'; applied on SIGHUP' * self.live}"
        return f"{self.meaning} [{self.type.allowed}] ({details})"


def setting(default: object, value_type: ValueType[T], meaning: str, unit: str = "", *, live: bool = True) -> T:
    """Return a field of `Settings`, with the arguments of `Setting`."""
    metadata = {"default": default, "type": value_type, "meaning": meaning, "unit": unit, "live": live}
    return dataclasses.field(default=value_type.parse(default), metadata=metadata)


fixed = functools.partial(setting, live=False)
"""The same for a setting that only a restart applies."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The values of all settings, validated. Relative paths start at the working directory."""

    # Where values are from, by the names of the settings. Those without a source have their defaults.
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    address: tuple[str, ...] = fixed(
        "127.0.0.1",
        types.list_of(types.ADDRESS),
        "IP addresses or host names to listen on, or Unix sockets as unix:/path; :: also accepts IPv4, unless an IPv4 "
        "address is listed; ignored when systemd passes a socket",
    )
    port: int = fixed(3000, types.PORT, "TCP port to listen on; 0 picks a free port and logs it")
    socket_mode: int = fixed(
        "660",
        types.MODE,
        "permissions of the Unix socket, regardless of the umask; a program needs write permission to connect",
    )
    tls_certificate: Path | None = setting(
        "none", types.OPTIONAL_PATH, "PEM file with the certificate and its chain, for HTTPS; re-read on SIGHUP"
    )
    tls_key: Path | None = setting("none", types.OPTIONAL_PATH, "PEM file with the private key of the certificate")
    data_dir: Path = fixed("data", types.PATH, "LevelDB directory, created if missing")
    store: Literal["leveldb", "redis"] = fixed(
        "leveldb",
        types.one_of("leveldb", "redis"),
        "where sessions are stored: in the data directory of a single process (leveldb), or on Redis or "
        "Valkey 7.0 or newer, shared by any number of servers (redis)",
    )
    workers: int | Literal["auto"] = fixed(
        1,
        types.keyword_or("auto", "auto", types.integer(1, 512)),
        "number of processes that share the port, with --store redis; auto: one per processor",
    )
    redis_nodes: tuple[tuple[str, int], ...] = fixed(
        "127.0.0.1:6379",
        types.list_of(types.REDIS_NODE),
        "a Redis server, or some nodes of a cluster, which is detected; with --redis-sentinel, the Sentinels",
    )
    redis_sentinel: str = fixed(
        "none",
        types.none_or("", types.NAME),
        "name of the primary in Sentinel; none: connect to --redis-nodes directly",
    )
    redis_prefix: str = fixed(
        "tornado-signal:",
        types.matching("[!-z|~]{1,64}", "1 to 64 ASCII characters, without spaces and braces"),
        "prefix of all keys and channels",
    )
    redis_user: str = fixed("none", types.none_or("", types.NAME), "Redis user; none: the default user")
    redis_password_file: Path | VariableSecret | None = setting(
        "none", types.OPTIONAL_PATH, "file with the password of the Redis user; re-read on SIGHUP"
    )
    redis_sentinel_user: str = fixed("none", types.none_or("", types.NAME), "Sentinel user; none: the default user")
    redis_sentinel_password_file: Path | VariableSecret | None = setting(
        "none", types.OPTIONAL_PATH, "file with the password of the Sentinel user; re-read on SIGHUP"
    )
    redis_tls: bool = fixed("false", types.SWITCH, "whether to encrypt connections to Redis")
    redis_ca: Path | None = fixed(
        "none", types.OPTIONAL_PATH, "PEM file with the certificate authority of Redis; none: the system's authorities"
    )
    redis_timeout_ms: int = fixed(
        1000,
        types.integer(50, 60_000),
        "time limit of an operation on Redis, retries included; then the request is refused with 503",
        "ms",
    )
    redis_replicas: int = fixed(
        1,
        types.integer(0, 10),
        "replicas that must have a write before it is acknowledged, with --durability replicated; all other "
        "replicas that have reported recently are awaited as well",
    )
    redis_partitions: int = fixed(
        16,
        types.integer(1, 1024),
        "number of partitions of an origin, so that several nodes share its sessions; cannot be changed later",
    )
    # A tenth of a second to a week: sessions are short-lived, and no peer answers faster.
    session_timeout_ms: int = fixed(300_000, types.integer(100, 604_800_000), "lifetime of a session", "ms")
    sweep_interval_ms: int = fixed(
        1000, types.integer(10, 3_600_000), "pause between two deletions of expired sessions", "ms"
    )
    hold_grace_ms: int = fixed(
        5000,
        types.integer(0, 300_000),
        "how long a held offer outlives its WebSocket, so that its owner can reconnect",
        "ms",
    )
    durability: Literal["fsync", "os", "replicated"] = fixed(
        "fsync",
        types.one_of("fsync", "os", "replicated"),
        "what a 200 guarantees: the change is on disk and survives a power failure (fsync), or survives a "
        "crash of the process (os); with --store redis also: it is in the memory of --redis-replicas replicas"
        " (replicated), which is the default there",
    )
    codes: Literal["random", "content"] = fixed(
        "random",
        types.one_of("random", "content"),
        "how session codes are made: at random, or from origin, topic and offer, so that equal offers have equal codes",
    )
    allowed_origins: AllowedOrigins | None = setting(
        "any",
        types.keyword_or(
            "any",
            None,
            types.converted(lambda entries: AllowedOrigins(frozenset(entries)), types.list_of(types.ALLOWED_ORIGIN)),
        ),
        "origins to serve; https://*.example.com stands for every subdomain, but not for example.com itself",
    )
    trusted_proxies: tuple[Network | Literal["unix"], ...] = setting(
        "none",
        types.none_or((), types.list_of(types.PROXY)),
        "proxies whose X-Forwarded-For, X-Forwarded-Proto, X-Forwarded-Host and X-Request-Id are trusted; "
        "unix: every client of the Unix socket",
    )
    max_body_bytes: int = setting(
        262_144,
        types.integer(1024, 16_777_216),
        "largest request body or WebSocket message; a side of a session may store four times as much",
        "bytes",
    )
    max_offer: int = setting(
        262_144, types.integer(64, 16_777_216), "longest offer, answer or candidate", "code points"
    )
    max_candidates: int = setting(1000, types.COUNT, "candidates per side of a session")
    max_sessions_per_origin: int = setting(
        2_000_000, types.COUNT, "unanswered sessions per origin, in one topic or in many"
    )
    max_sessions_per_address: int = setting(
        10_000, types.COUNT, "sessions that an address may publish within --session-timeout-ms"
    )
    max_bytes_per_address: int = setting(
        67_108_864, types.SIZE, "bytes that an address may store within --session-timeout-ms", "bytes"
    )
    max_store_bytes: int = setting(
        4_294_967_296, types.SIZE, "size of the data directory beyond which nothing is published", "bytes"
    )
    min_free_bytes: int = setting(
        67_108_864,
        types.integer(0, 2**53),
        "disk space that stays free, on a small disk a quarter of it, in addition to the space that LevelDB "
        "needs to merge files",
        "bytes",
    )
    max_connections: int = setting(
        100_000, types.COUNT, "open connections, and waiting requests; file descriptors also limit connections"
    )
    max_connections_per_address: int = setting(
        1000, types.COUNT, "open connections per address, and waiting requests per address"
    )
    keep_alive_s: int = setting(
        620,
        types.integer(1, 86_400),
        "how long a connection stays open between two requests, longer than proxies keep theirs; when places are "
        "short, the connection that has been idle for longest is closed first",
        "s",
    )
    max_unsent_bytes: int = setting(
        67_108_864,
        types.COUNT,
        "unread data of all slow clients together; a quarter of it limits the data received before it can be "
        "processed, over HTTP and WebSockets",
        "bytes",
    )
    rate_per_address: int = setting(
        100,
        types.integer(1, 1_000_000),
        "requests per second and address; after a pause, a burst of ten times as many",
        "1/s",
    )
    unlimited_addresses: tuple[Network, ...] = setting(
        "127.0.0.0/8,::1",
        types.none_or((), types.list_of(types.NETWORK)),
        "addresses exempt from per-address limits; trusted proxies always are",
    )
    admin_port: int | None = fixed(
        "off",
        types.keyword_or("off", None, types.PORT),
        "port of a second listener for the operator: a page, /metrics, /healthz, /readyz and actions; "
        "0 picks a free port",
    )
    admin_address: str = fixed(
        "127.0.0.1",
        types.HOST,
        "address of that listener; if other machines can reach it, they have only health and metrics without "
        "--admin-token-file",
    )
    admin_hosts: tuple[str, ...] = setting(
        "none",
        types.none_or((), types.list_of(types.HOST_NAME)),
        "host names under which that listener is reached, such as those in the configuration of Prometheus; requests "
        "with an IP address or localhost as their Host are always served",
    )
    admin_token_file: Path | VariableSecret | None = fixed(
        "none",
        types.OPTIONAL_PATH,
        "file with the token that everything but health and metrics of that listener requires (Authorization: "
        "Bearer); commands send it, and the page asks for it",
    )
    admin_topics: bool = setting(
        "false",
        types.SWITCH,
        "whether the operator's page shows topics, rooms, ids and info hashes, which can be private",
    )
    drain_delay_ms: int = setting(
        0,
        types.integer(0, MAX_DRAIN_DELAY_MS),
        "how long a stopping server keeps serving while /health and /readyz already answer 503, so that load "
        "balancers notice",
        "ms",
    )
    start_empty_if_damaged: bool = fixed(
        "false",
        types.SWITCH,
        "whether to move a damaged database aside and continue without it, at the start and later",
    )
    demo: bool = setting("true", types.SWITCH, "whether to serve a demo page at /demo")
    readable_module: bool = setting(
        "false",
        types.SWITCH,
        "whether /client.js loads the readable modules under /client/ instead of being one file; for its developers",
    )
    nearby: bool = setting("true", types.SWITCH, "whether clients of one network can find each other (nearby)")
    protocols: tuple[str, ...] = setting(
        "peerjs,y-webrtc,tracker,nostr,rxdb,matchbox,godot",
        types.none_or((), types.list_of(types.PROTOCOL)),
        "protocols of other libraries to serve: PeerJS, y-webrtc with trystero's ws-relay, WebTorrent trackers, "
        "ephemeral events of Nostr, RxDB, matchbox, and Godot's demo of WebRTC",
    )
    shared_protocols: tuple[str, ...] = setting(
        "none",
        types.none_or((), types.list_of(types.PROTOCOL)),
        "protocols in which all origins share one scope, also with clients that send no Origin",
    )
    peerjs_discovery: bool = setting(
        "false", types.SWITCH, "whether PeerJS clients can list the ids of their origin (listAllPeers)"
    )
    auth_keys: Path | VariableSecret | None = setting(
        "none",
        types.OPTIONAL_PATH,
        "file or directory of the keys that verify tokens: NAME.secret (HS256) or NAME.pem (public key of EdDSA, ES256 "
        "or RS256); none: requests need no token; re-read on SIGHUP",
    )
    auth_issuer: str = setting("none", types.none_or("", types.TEXT), "required claim iss of tokens; none: any")
    auth_audience: str = setting("none", types.none_or("", types.TEXT), "required claim aud of tokens; none: any")
    auth_anonymous: tuple[str, ...] = setting(
        "none", types.none_or((), types.list_of(types.ACTION)), "what is allowed without a token"
    )
    stun_servers: tuple[str, ...] = setting(
        "stun:stun.cloudflare.com:3478,stun:stun.l.google.com:19302",
        types.none_or((), types.list_of(types.STUN)),
        "STUN servers for the peers; these servers learn the peers' addresses",
    )
    turn_servers: tuple[str, ...] = setting(
        "none", types.none_or((), types.list_of(types.TURN)), "TURN servers for the peers"
    )
    # A file, because every user who lists processes sees the flags.
    turn_secret_file: Path | VariableSecret | None = setting(
        "none", types.OPTIONAL_PATH, "file with the shared secret of the TURN servers"
    )
    # Two minutes to a month: at least the lifetime of an offer of the browser module.
    turn_ttl_s: int = setting(86_400, types.integer(120, 2_592_000), "lifetime of a TURN password", "s")
    turn_provider: str | None = setting(
        "none",
        types.none_or(None, types.TURN_PROVIDER),
        "provider whose STUN and TURN servers the peers also get: a service, or the URL of your own backend",
    )
    turn_provider_secret_file: Path | VariableSecret | None = setting(
        "none", types.OPTIONAL_PATH, "file with the secret for the provider's interface; re-read on SIGHUP"
    )
    connection_reports: bool = setting(
        "false",
        types.SWITCH,
        "whether clients report how their attempts to connect to each other have ended; the server only counts them",
    )
    webhook_url: str | None = setting(
        "none",
        types.none_or(None, types.WEBHOOK_URL),
        "URL that receives events of sessions and connections as signed POST requests",
    )
    webhook_secret_file: Path | VariableSecret | None = setting(
        "none",
        types.OPTIONAL_PATH,
        "file with the secret that signs these requests: whsec_ and the base64 of 24 to 64 bytes; re-read on SIGHUP",
    )
    webhook_events: tuple[str, ...] = setting(
        "session.created,session.answered,session.expired,session.withdrawn",
        types.list_of(types.WEBHOOK_EVENT),
        "events to send",
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", types.one_of("debug", "info", "warning", "error"), "lowest level to log"
    )
    log_format: Literal["text", "json"] = setting(
        "text", types.one_of("text", "json"), "format of log lines: text, or one JSON object per line"
    )
    access_log: bool | Literal["addresses"] = setting(
        "false",
        types.keyword_or("addresses", "addresses", types.SWITCH),
        "whether to log a line for each request, at level info; addresses: including the client's address",
    )
    log_subjects: bool = setting(
        "false", types.SWITCH, "whether lines of the access log name the subject (sub) of the token"
    )
    otlp_endpoint: str = fixed(
        "none",
        types.none_or("", types.COLLECTOR),
        "URL of an OpenTelemetry collector (OTLP over HTTP, often port 4318) that receives requests as spans, at "
        "/v1/traces below it; none: no spans; needs the extra otel",
    )


SETTINGS = tuple(Setting(field.name, **field.metadata) for field in dataclasses.fields(Settings) if field.metadata)
"""The settings, in the order of the table."""
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
"""The names of removed settings, each with its replacement."""
FIXED_PRESENCE = ("auth_keys", "tls_certificate", "tls_key")
"""Settings that a running server can change, but neither set nor remove: connections began with or without them."""


@dataclass(slots=True)
class LiveSettings:
    """The only owner of the settings in force. All other parts read them here when they need them."""

    current: Settings  # a reload or an action of the operator replaces them
    reload_error: str = ""  # why the last reload failed, or empty


def merge(running: Settings, read: Settings) -> tuple[Settings, list[str], list[str]]:
    """Merge the reloadable settings of `read` into those of a running server.

    Return also the flags of the settings that changed, and the flags of those that need a restart.
    """
    applied, waiting = {}, []
    for setting in SETTINGS:
        before, after = getattr(running, setting.name), getattr(read, setting.name)
        if before == after:
            continue
        if setting.live and not (setting.name in FIXED_PRESENCE and None in (before, after)):
            applied[setting] = after
        else:
            waiting.append(setting.flag)
    changed = {setting.name: value for setting, value in applied.items()}
    sources = {name: where for name, where in running.sources.items() if name not in changed}
    sources |= {name: where for name, where in read.sources.items() if name in changed}
    merged = dataclasses.replace(running, **changed, sources=sources)
    return merged, [setting.flag for setting in applied], waiting
