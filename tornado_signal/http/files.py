"""Files for browsers: the client module and the demo page."""

from collections.abc import Mapping
from http import HTTPStatus

from ..system.assets import HTML, POLICY, Asset
from .handlers import Handler


class File(Handler):
    """GET a file."""

    anonymous = True

    def initialize(self, assets: Mapping[str, Asset]) -> None:
        self.assets = assets

    def compute_etag(self) -> str:
        return self.assets[self.request.path].etag

    def get(self) -> None:
        asset = self.assets[self.request.path]
        self.vary = "Origin, Accept-Encoding"
        self.set_etag_header()
        self.set_header("Cache-Control", "no-cache")  # ask each time, so that an upgrade is seen at once
        self.set_header("X-Content-Type-Options", "nosniff")
        if asset.media_type == HTML:
            self.set_header("Content-Security-Policy", POLICY)
            self.set_header("Referrer-Policy", "same-origin")  # behind a proxy the server needs it (docs/proxies.md)
        if self.check_etag_header():
            self.set_status(HTTPStatus.NOT_MODIFIED)
            return
        self.set_header("Content-Type", f"{asset.media_type}; charset=utf-8")
        if takes_gzip(self.request.headers.get("Accept-Encoding", "")):
            self.set_header("Content-Encoding", "gzip")
            self.write(asset.gzipped)
        else:
            self.write(asset.body)

    head = get


def takes_gzip(accepted: str) -> bool:
    """Return whether an Accept-Encoding allows gzip (RFC 9110, 12.5.3)."""
    for coding in accepted.split(","):
        name, _, weight = coding.partition(";")
        if name.strip().lower() == "gzip":
            return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
