"""The files under `web/` that the server serves unchanged: read once, each with its compressed forms."""

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
    "/client.js": ("built/client.js", SCRIPT),
    **{f"/{name}": (name, "application/typescript") for name in ("client.d.ts", "signal-client.d.ts")},
    **{f"/client/{file.name}": (f"client/{file.name}", SCRIPT) for file in sorted((WEB / "client").glob("*.js"))},
}
"""The paths of the browser module, its readable modules and its types, each with its file and its media type."""
READABLE: Final = {"/client.js": ("client.js", SCRIPT)}
"""The same for the module that loads the readable modules, instead of the one that contains them."""


def _version(file: Path) -> str:
    """Return the name of a built file with the first digits of its hash, as tests/support/build_client.js does."""
    return f"{file.stem}-{hashlib.sha256(file.read_bytes()).hexdigest()[:8]}.js"


_BUILT: Final = [("/" if file.stem == "client" else "/client/", file) for file in sorted((WEB / "built").glob("*.js"))]
VERSIONED: Final = {f"{folder}{_version(file)}": (f"built/{file.name}", SCRIPT) for folder, file in _BUILT}
"""The same for the built module and its parts, whose contents never change under these paths."""
MAPS: Final = {f"{folder}{file.name}.map": (f"built/{file.name}.map", "application/json") for folder, file in _BUILT}
"""The same for their source maps."""
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
    encoded: Mapping[str, bytes]  # by content coding, the best one first
    etag: str  # a weak tag of the content, shared by the plain and the compressed forms


def load(paths: Mapping[str, tuple[str, str]]) -> dict[str, Asset]:
    """Read files, given their names and media types by the paths at which they are served."""
    return {path: _read(WEB / name, media_type) for path, (name, media_type) in paths.items()}


@functools.cache
def _read(file: Path, media_type: str) -> Asset:
    body = file.read_bytes()
    etag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
    brotli = file.with_name(f"{file.name}.br")
    encoded = {"br": brotli.read_bytes()} if brotli.exists() else {}
    return Asset(media_type, body, encoded | {"gzip": gzip.compress(body, 9, mtime=0)}, etag)
