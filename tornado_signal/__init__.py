"""A self-hosted signaling and topic-discovery server for peer-to-peer applications."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 (pip asks for this file, and programs in a checkout import it)
    raise ImportError(f"tornado-signal needs Python 3.11 or newer, and this is Python {sys.version.split()[0]}")

try:
    from tornado_signal._version import COMMIT as _commit
    from tornado_signal._version import VERSION as _version
except ImportError:
    _commit = _version = "unknown"

# Filled in by `git archive`: in an archive of a tag, the version file does not know the commit.
_archived = "$Format:%H$"

__version__: str = _version
"""The version of this package, or ``unknown``."""
COMMIT: str = _archived if _commit == "unknown" and not _archived.startswith("$") else _commit
"""The commit that this package was built or installed from, or ``unknown``."""
