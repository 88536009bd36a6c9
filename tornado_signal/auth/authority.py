"""Verification of tokens, and the end of what was begun with one."""

import asyncio
import hashlib
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ..errors import NotAllowed, Unauthorized
from ..settings.settings import Settings
from ..system.loop import in_slices
from .grants import Grant, parse_claims
from .keys import Key

MAX_TOKEN_BYTES: Final = 8192
MAX_CACHED: Final = 10_000  # verified tokens
MAX_CACHED_BYTES: Final = 8 * 1024 * 1024  # of all of them; what a grant contains is as long as its token
MAX_TOPICS: Final = 10_000  # sessions whose topics are known
MAX_AHEAD_S: Final = 10 * 366 * 86_400.0  # an expiry later than that is one in milliseconds
GRACE_S: Final = 25.0  # after the expiry, for other clocks, and for a client to renew its token
SPREAD_S: Final = 2.0  # over which bearers with one expiry, or of one removed key, are ended
CHECK_STEP: Final = 1000  # bearers checked per event-loop iteration after a change of keys
END_STEP: Final = 20  # bearers ended per event-loop iteration
MAX_TIMER_S: Final = 60.0  # then the wall clock is read again, because it can jump

End = Callable[[], None]


@dataclass(slots=True)
class ShownToken:
    """The token that a connection has shown last, for its next requests: most connections repeat it."""

    digest: bytes  # by `digest_of`
    origin: str
    keys: dict[str, Key]  # those by which it was verified
    grant: Grant
    session: bytes = b""  # the latest one whose topic it covers


def digest_of(token: str) -> bytes:
    """Return what is kept of a token. It cannot be used as one."""
    return hashlib.blake2b(token.encode(errors="surrogatepass"), digest_size=32).digest()


class Authority:
    """Verifies tokens, knows what lives as long as one, and remembers the topics of sessions for their checks."""

    def __init__(self, keys: dict[str, Key], settings: Settings) -> None:
        # Each with the length of its token, by its digest, the oldest first.
        # Not dictionaries: their first item is found behind the places of all that were removed before it.
        self._cache: OrderedDict[bytes, tuple[Grant, int]] = OrderedDict()
        self._cached_bytes = 0
        self._bearers: set[Bearer] = set()
        self._jws: Any = None  # of PyJWT
        # By origin and code. A token may cover some topics only, and its check reads the topic of a session once.
        self._topics: OrderedDict[tuple[str, bytes], str] = OrderedDict()
        self._ending: deque[Bearer] = deque()  # to be ended, a few per event-loop iteration
        self.use(keys, settings)

    def use(self, keys: dict[str, Key], settings: Settings) -> None:
        """Use other keys and settings. Everything that was begun with a removed key ends within `SPREAD_S`."""
        self.keys = keys.copy()  # another object after each change, so `is` finds that keys and settings are the same
        self.anonymous = Grant(frozenset(settings.auth_anonymous))
        self._issuer, self._audience = settings.auth_issuer, settings.auth_audience
        self._cache.clear()
        self._cached_bytes = 0
        in_slices(list(self._bearers), self._check, CHECK_STEP)

    def verify(self, token: str, origin: str | None, now_s: float) -> Grant:
        """Return what a token allows.

        `origin` is None for any. `now_s` is the Unix time.
        """
        digest = digest_of(token)
        if digest in self._cache:
            grant, _ = self._cache[digest]
        else:
            grant = self._verify(token)
            self._keep(digest, grant, len(token))
        if grant.ends_s > now_s + MAX_AHEAD_S:
            raise Unauthorized("token with exp more than ten years ahead; exp is in seconds")
        if now_s >= grant.ends_s + GRACE_S:
            raise Unauthorized("token expired")
        if now_s < grant.begins_s - GRACE_S:
            raise Unauthorized("token not valid yet")
        if origin is not None and grant.origin not in (None, origin):
            raise Unauthorized("token for another origin")
        return grant

    def _verify(self, token: str) -> Grant:
        import jwt  # only servers with keys need it

        if len(token) > MAX_TOKEN_BYTES:
            raise Unauthorized("token too large")
        if not token.isascii():
            raise Unauthorized("token malformed")
        if self._jws is None:
            self._jws = jwt.PyJWS()
        try:
            key = self._find_key(self._jws.get_unverified_header(token).get("kid"))
            payload = self._jws.decode(token, key.value, [key.algorithm])
        except (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError):
            raise Unauthorized("token with another signature") from None
        except jwt.InvalidTokenError:
            raise Unauthorized("token malformed") from None
        return parse_claims(payload, key, self._issuer, self._audience)

    def _find_key(self, name: object) -> Key:
        if name is None and len(self.keys) == 1:
            return next(iter(self.keys.values()))
        key = self.keys.get(name) if isinstance(name, str) else None
        if key is None:
            raise Unauthorized("token of an unknown key")
        return key

    def _keep(self, digest: bytes, grant: Grant, length: int) -> None:
        self._cache[digest] = grant, length
        self._cached_bytes += length
        while len(self._cache) > MAX_CACHED or self._cached_bytes > MAX_CACHED_BYTES:
            _, (_, length) = self._cache.popitem(last=False)
            self._cached_bytes -= length

    def rights(self, grant: Grant | None) -> Grant:
        """Return a grant, or for None what is allowed without a token."""
        return self.anonymous if grant is None else grant

    def require(self, grant: Grant | None, action: str) -> None:
        """Check an action. Raise NotAllowed if the token does not allow it, Unauthorized without a token."""
        if not self.rights(grant).allows(action):
            raise Unauthorized("token missing") if grant is None else NotAllowed("action")

    def remembered_topic(self, origin: str, code: bytes) -> str | None:
        return self._topics.get((origin, code))

    def remember_topic(self, origin: str, code: bytes, topic: str) -> None:
        self._topics[origin, code] = topic
        if len(self._topics) > MAX_TOPICS:
            self._topics.popitem(last=False)

    def make_bearer(self, grant: Grant | None, now_s: Callable[[], float], end: End) -> "Bearer":
        """Return a bearer: something that is ended soon after its grant."""
        bearer = Bearer(self, grant, now_s, end)
        self._bearers.add(bearer)
        return bearer

    def _check(self, bearer: "Bearer") -> None:
        if bearer in self._bearers:
            bearer.check()

    def end_in_turn(self, bearer: "Bearer") -> None:
        """End a bearer soon. Thousands can be due at the same moment."""
        if not self._ending:
            asyncio.get_running_loop().call_soon(self._end_some)
        self._ending.append(bearer)

    def _end_some(self) -> None:
        try:
            for _ in range(min(END_STEP, len(self._ending))):
                self._ending.popleft().end_if_due()
        finally:
            if self._ending:
                asyncio.get_running_loop().call_soon(self._end_some)

    def forget(self, bearer: "Bearer") -> None:
        self._bearers.discard(bearer)


class Bearer:
    """A connection, a stream or a wait that ends with its grant. Make it with `Authority.make_bearer`, and `close` it.

    Without a token it ends after the grace period, unless something is allowed without one.
    """

    __slots__ = ("_authority", "_began_s", "_end", "_is_due", "_now_s", "_timer", "grant")

    def __init__(self, authority: Authority, grant: Grant | None, now_s: Callable[[], float], end: End) -> None:
        self._authority = authority
        self._now_s = now_s
        self._end = end
        self._began_s = now_s()
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False  # whether it ends soon, unless it is renewed
        self.grant = grant  # the current grant, or None without a token
        self._schedule()

    def renew(self, grant: Grant) -> None:
        self.grant = grant
        self._schedule()

    def check(self) -> None:
        """End soon if the key of the grant has been removed."""
        if self.grant is None:
            self._schedule()  # what is allowed without a token can have changed
        elif self.grant.key is not None and not self.grant.key.is_same(self._authority.keys.get(self.grant.key.name)):
            self._set_timer(0.0)

    def end_if_due(self) -> None:
        """End, unless it was renewed or closed meanwhile."""
        if self._is_due:
            self.close()
            self._end()

    def close(self) -> None:
        """Stop watching the grant. Further calls do nothing."""
        self._authority.forget(self)
        self._cancel()

    def _cancel(self) -> None:
        self._is_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        if self.grant is None and self._authority.anonymous.actions:
            self._cancel()
            return
        ends_s = self._began_s if self.grant is None else self.grant.ends_s
        self._set_timer(ends_s + GRACE_S - self._now_s())

    def _set_timer(self, left_s: float) -> None:
        """End after a time, spread because many tokens can have the same expiry and their clients come back."""
        self._cancel()
        again = left_s > MAX_TIMER_S
        seconds = MAX_TIMER_S if again else max(left_s, 0.0) + random.uniform(0, SPREAD_S)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._on_timer, again)

    def _on_timer(self, again: bool) -> None:
        if again:
            self._schedule()
        else:
            self._is_due = True
            self._authority.end_in_turn(self)
