"""A self-hosted signaling and topic-discovery server for peer-to-peer applications.

The build backend imports this package before its dependencies are installed: import nothing heavy here.
"""

try:
    from tornado_signal._version import COMMIT as _commit
    from tornado_signal._version import VERSION as _version
except ImportError:
    _commit = _version = "unknown"

__version__: str = _version
"""The version of this package, else ``unknown``."""
COMMIT: str = _commit
"""The commit this package was built or installed from, else ``unknown`` (Specification 4, GET /)."""
