"""Files for browsers: the client module and the demo page."""

from collections.abc import Mapping
from http import HTTPStatus

from ..system.assets import HTML, POLICY, VERSIONED, Asset
from .handlers import Handler
from .request import accepted_weights


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
        # Other paths are asked for each time, so that an upgrade is seen at once.
        versioned = self.request.path in VERSIONED
        self.set_header("Cache-Control", "public, max-age=31536000, immutable" if versioned else "no-cache")
        self.set_header("X-Content-Type-Options", "nosniff")
        if asset.media_type == HTML:
            self.set_header("Content-Security-Policy", POLICY)
            self.set_header("Referrer-Policy", "same-origin")  # behind a proxy the server needs it (docs/proxies.md)
        if self.check_etag_header():
            self.set_status(HTTPStatus.NOT_MODIFIED)
            return
        self.set_header("Content-Type", f"{asset.media_type}; charset=utf-8")
        weights = accepted_weights(self.request.headers.get("Accept-Encoding", ""))
        for coding, body in asset.encoded.items():
            if weights.get(coding):
                self.set_header("Content-Encoding", coding)
                self.write(body)
                return
        self.write(asset.body)

    head = get
