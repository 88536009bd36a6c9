"""Files for browsers: the module, and the page to try it."""

from ..errors import Unavailable
from . import assets
from .base import Handler

# Nothing from elsewhere, nothing written into the page itself, and no other page around it.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Page(Handler):
    """What a browser opens or loads by itself, and therefore without an Origin (README, Choices)."""

    def prepare(self) -> None:
        """Check the Origin if there is one, and another than the server's own; nobody else can look into a page."""
        headers = self.request.headers
        if "Origin" in headers and headers.get("Sec-Fetch-Site") != "same-origin":
            super().prepare()
        elif retry_after_s := self.application.limits.request(self.request.client_address, self.now_ms):
            self.refuse_rate(retry_after_s)
        elif self.application.draining:
            raise Unavailable("draining")


class File(Page):
    """GET a file."""

    def get(self) -> None:
        """The file, compressed if that is understood, or 304 if the client has it already."""
        asset = self.application.assets[self.request.path]
        self.set_header("ETag", asset.etag)
        self.set_header("Cache-Control", "no-cache")  # ask each time, so that an upgrade is seen at once
        self.set_header("Vary", "Origin, Accept-Encoding")
        self.set_header("X-Content-Type-Options", "nosniff")
        if asset.media_type == assets.HTML:
            self.set_header("Content-Security-Policy", POLICY)
            self.set_header("Referrer-Policy", "no-referrer")
        if asset.etag in self.request.headers.get("If-None-Match", ""):
            self.set_status(304)
            self.clear_header("Content-Type")
            return
        self.set_header("Content-Type", f"{asset.media_type}; charset=utf-8")
        if self.takes_gzip():
            self.set_header("Content-Encoding", "gzip")
            self.finish(asset.gzipped)
        else:
            self.finish(asset.body)

    def takes_gzip(self) -> bool:
        """Whether the client understands gzip (RFC 9110, 12.5.3)."""
        for coding in self.request.headers.get("Accept-Encoding", "").split(","):
            name, _, weight = coding.partition(";")
            if name.strip().lower() == "gzip":
                return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
        return False
