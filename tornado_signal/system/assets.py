"""The files under `web/` that the server serves unchanged: read once, each with a compressed form."""

import functools
import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

WEB: Final = Path(__file__).parent.parent / "web"

HTML: Final = "text/html"
SCRIPT: Final = "text/javascript"

# Nothing from elsewhere, nothing written into the page itself, and no other page around it.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

CLIENT: Final = {
    "/client.js": ("client.js", SCRIPT),
    **{f"/{name}": (name, "application/typescript") for name in ("client.d.ts", "signal-client.d.ts")},
    **{f"/client/{file.name}": (f"client/{file.name}", SCRIPT) for file in sorted((WEB / "client").glob("*.js"))},
}
"""The paths of the browser module, its parts and its types, each with its file and its media type."""
DEMO_PAGE: Final = "/demo"
DEMO: Final = {
    DEMO_PAGE: ("demo.html", HTML),
    "/demo/demo.css": ("demo.css", "text/css"),
    "/demo/demo.js": ("demo.js", SCRIPT),
    "/demo/chat.js": ("chat.js", SCRIPT),
    "/demo/check.js": ("check.js", SCRIPT),
    "/demo/tile.js": ("tile.js", SCRIPT),
    "/demo/vendor/uqr.js": ("vendor/uqr.js", SCRIPT),
}
"""The same for the demo page."""
OPERATOR: Final = {
    "/": ("operator.html", HTML),
    "/operator.css": ("operator.css", "text/css"),
    "/operator.js": ("operator.js", SCRIPT),
}
"""The same for the page of the admin listener."""


@dataclass(frozen=True)
class Asset:
    """A file, ready to be sent."""

    media_type: str
    body: bytes
    gzipped: bytes
    etag: str  # a weak tag of the content, shared by the plain and the compressed form


def load(paths: Mapping[str, tuple[str, str]]) -> dict[str, Asset]:
    """Read files, given their names and media types by the paths at which they are served."""
    return {path: _read(WEB / name, media_type) for path, (name, media_type) in paths.items()}


@functools.cache
def _read(file: Path, media_type: str) -> Asset:
    body = file.read_bytes()
    etag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
    return Asset(media_type, body, gzip.compress(body, 9, mtime=0), etag)
