"""Authorization: JSON Web Tokens from the application's own backend (docs/authorization.md)."""

from .authority import Authority, Bearer, ShownToken, digest_of
from .grants import ACTIONS, ANY, Grant
from .keys import Key, load_keys

__all__ = ["ACTIONS", "ANY", "Authority", "Bearer", "Grant", "Key", "ShownToken", "digest_of", "load_keys"]
