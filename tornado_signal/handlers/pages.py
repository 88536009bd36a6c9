"""Files for browsers: the module, and what else the server hands out as it is."""

from ..errors import Unavailable
from .base import Handler


class Page(Handler):
    """GET a file. The only requests that need no Origin: what a browser opens by itself has none (README, Choices)."""

    def prepare(self) -> None:
        """Check the Origin only if there is one; whoever has none sees the file and nothing else."""
        if "Origin" in self.request.headers:
            super().prepare()
        elif self.application.draining:
            raise Unavailable("draining")

    def get(self) -> None:
        """The file, compressed if that is understood, or 304 if the client has it already."""
        asset = self.application.assets[self.request.path]
        self.set_header("ETag", asset.etag)
        self.set_header("Cache-Control", "no-cache")  # ask each time, so that an upgrade is seen at once
        self.set_header("Vary", "Origin, Accept-Encoding")
        self.set_header("X-Content-Type-Options", "nosniff")
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
