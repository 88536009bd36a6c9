"""Respond to GET /?user=NAME with a token for that user. A real backend takes the name from its own login."""

import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import jwt

SECRET = Path("keys/main.secret").read_text().strip()


class Tokens(BaseHTTPRequestHandler):
    """Makes a token for each GET request."""

    def do_GET(self):
        (user,) = parse_qs(urlsplit(self.path).query)["user"]
        claims = {"sub": user, "info": user, "topics": ["room~lobby"], "exp": time.time() + 600}
        self.send_response(200)
        self.send_header("Access-Control-Allow-Origin", "*")
        self.end_headers()
        self.wfile.write(jwt.encode(claims, SECRET, "HS256", headers={"kid": "main"}).encode())


ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "4000"))), Tokens).serve_forever()
