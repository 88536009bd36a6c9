"""A self-hosted signaling and topic-discovery server for peer-to-peer applications.

The build backend imports this package before its dependencies are installed: import nothing heavy here.
"""

try:
    from tornado_signal._commit import COMMIT as _captured
except ImportError:
    _captured = "unknown"

COMMIT: str = _captured
"""The commit this package was built or installed from, else ``unknown`` (Specification 4, GET /)."""
