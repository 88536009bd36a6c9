"""`token`: make a token, or verify and explain one."""

import argparse
import sys
import time

import jwt

from ..auth import Authority, Grant, load_keys
from ..auth.authority import MAX_AHEAD_S
from ..auth.keys import load_signing_key
from ..errors import OperatorError, Unauthorized
from ..settings.settings import Settings
from ..system import terminal


def run(arguments: argparse.Namespace) -> None:
    print(explain(arguments) if arguments.check else make(arguments))


def make(arguments: argparse.Namespace) -> str:
    if arguments.ttl > MAX_AHEAD_S:
        raise OperatorError("--ttl is more than ten years, which the server refuses; choose a shorter time")
    key = load_signing_key(arguments.key)
    now_s = int(time.time())
    claims = {
        "sub": arguments.sub,
        "topics": arguments.topic,
        "actions": arguments.action,
        "info": arguments.info,
        "origin": arguments.origin,
        "iss": arguments.issuer,
        "aud": arguments.audience,
        "iat": now_s,
        "exp": now_s + arguments.ttl,
    }
    present = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(present, key.value, key.algorithm, headers={"kid": key.name})


def explain(arguments: argparse.Namespace) -> str:
    """Verify the token on standard input, and return what it allows."""
    settings = Settings(auth_issuer=arguments.issuer or "", auth_audience=arguments.audience or "")
    authority = Authority(load_keys(arguments.key), settings)
    text = sys.stdin.read(2**16).strip()
    try:
        grant = authority.verify(text, arguments.origin, time.time())
    except Unauthorized as error:
        raise OperatorError(f"the server would refuse it: {error.reason}") from None
    return "\n".join(terminal.printable(f"{name}: {value}") for name, value in describe(grant).items())


def describe(grant: Grant) -> dict[str, str]:
    """Return the rights of a token in words, by name."""
    assert grant.key is not None
    left_s = round(grant.ends_s - time.time())
    expires = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(grant.ends_s))
    topics = [*sorted(grant.topics or ()), *(f"{prefix}*" for prefix in sorted(grant.prefixes))]
    return {
        "key": f"{grant.key.name} ({grant.key.algorithm})",
        "subject": grant.subject or "none",
        "expires": f"{expires}, {'in' if left_s >= 0 else 'before'} {abs(left_s)} s",
        "actions": ", ".join(sorted(grant.actions)) or "none",
        "topics": "all" if grant.topics is None else ", ".join(topics) or "none",
        "info": grant.info or "any",
        "origin": grant.origin or "any",
    }
