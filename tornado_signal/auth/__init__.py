"""Authorization: JSON Web Tokens from the application's own backend (docs/authorization.md)."""

from .authority import Authority, Bearer, open_authority
from .grants import ACTIONS, ANY, Grant

__all__ = ["ACTIONS", "ANY", "Authority", "Bearer", "Grant", "open_authority"]
