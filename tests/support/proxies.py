"""The real nginx, Caddy and HAProxy, with the configurations of `systemd/`; only names, ports and paths are changed."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time

from .needs import require
from .paths import SYSTEMD

BOUND_S = 20
HOST = "127.0.0.1"
LETSENCRYPT = "/etc/letsencrypt/live/signal.example.com"

# Around the file that is tried: what is nginx's own, so that it touches nothing of this machine.
NGINX = """
daemon off;
{user}
worker_processes 1;
pid {directory}/nginx.pid;
events {{ worker_connections 4096; }}
http {{
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    include {directory}/site.conf;
}}
"""
# The same for Caddy, which without the third line would have the machine trust a certificate authority of its own.
CADDY = """{{
	admin off
	auto_https off
	skip_install_trust
	storage file_system {directory}/storage
	default_bind 127.0.0.1 [::1]
	servers {{
		protocols h1 h2
	}}
}}
"""


# The last line of what HAProxy does to know which server answers.
CHECKS = "default-server check inter 500ms fall 2 rise 1 observe layer4 error-limit 1 on-error mark-down"


def put(text, pairs):
    """Replace pieces of a configuration, each of which has to be there."""
    for before, after in pairs:
        assert before in text, before
        text = text.replace(before, after)
    return text


def free_ports():
    """Two ports that nobody uses: one for HTTPS and one for HTTP."""
    with socket.create_server((HOST, 0)) as one, socket.create_server((HOST, 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


def uncomment(text, first, last):
    """Make lines of a configuration from comments, from one that is the first to one that is the last of them."""
    begin, end = (re.search(rf"^\s*# {re.escape(line)}$", text, re.MULTILINE) for line in (first, last))
    lines = re.sub(r"^(\s*)# ?", r"\1", text[begin.start() : end.end()], flags=re.MULTILINE)
    return text[: begin.start()] + lines + text[end.end() :]


def several(text, addresses):
    """Name several servers, where a configuration says how."""
    for number, address in enumerate(addresses, 1):
        text, found = re.subn(rf"# (server .*)\b10\.0\.0\.{number}:3000", rf"\g<1>{address}", text)
        assert found
    return text


class Proxy:
    """A proxy on both loopback addresses, in front of servers, ready when this has been made.

    Args:
        directory: an empty one of its own.
        pair: certificate and key for it.
        upstream: the server's port on 127.0.0.1, or the path of its Unix socket; or the addresses of several.
        idle_s: after how long without a word it gives a connection up; as its configuration says if not given.

    Attributes:
        pair: as given.
        port: for HTTPS.
        plain_port: for HTTP.
        url: where pages find it.
    """

    def __init__(self, directory, pair, upstream, idle_s=None):
        require(self.name)
        self.directory = directory
        self.pair = pair
        self.upstream = upstream
        self.idle_s = idle_s
        for _ in range(5):  # somebody may take a port just before it does
            self.port, self.plain_port = free_ports()
            self.url = f"https://{HOST}:{self.port}"
            command = self.configure()
            self._output = open(directory / "output", "wb")  # noqa: SIM115
            self.process = subprocess.Popen(
                command,
                cwd=directory,
                env={**os.environ, "HOME": str(directory), "XDG_CONFIG_HOME": str(directory)},
                stdout=self._output,
                stderr=subprocess.STDOUT,
            )
            if self._answers():
                return
            self.stop()
        raise AssertionError(self.log())

    def idle_times(self, *settings):
        """What of a configuration is to be replaced for these settings to be `idle_s`."""
        return [(f"{each} 90s", f"{each} {self.idle_s}s") for each in settings if self.idle_s]

    def _answers(self):
        deadline_s = time.monotonic() + BOUND_S
        while self.process.poll() is None and time.monotonic() < deadline_s:
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection((HOST, self.port), BOUND_S):
                return True
            time.sleep(0.02)
        return False

    def turn_to(self, upstream):
        """Have it serve other servers, without a break."""
        self.upstream = upstream
        subprocess.run([*self.configure(), *self.reloading], check=True, timeout=BOUND_S)

    def log(self):
        """What it has said."""
        return (self.directory / "output").read_text()

    def stop(self):
        """End it; Caddy would wait for its clients to leave."""
        self.process.terminate()
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(BOUND_S)
        self._output.close()


class Nginx(Proxy):
    """systemd/nginx.conf."""

    name = "nginx"
    reloading = ("-s", "reload")

    def configure(self):
        """Write its files; the command."""
        site = (SYSTEMD / "nginx.conf").read_text()
        if isinstance(self.upstream, int):
            pairs = [("server 127.0.0.1:3000;", f"server 127.0.0.1:{self.upstream};")]
        elif isinstance(self.upstream, tuple):
            site = several(uncomment(site, "zone tornado_signal 64k;", "least_conn;"), self.upstream)
            pairs = [("server 127.0.0.1:3000;", "")]
        else:
            pairs = [
                ("server 127.0.0.1:3000;", ""),
                ("# server unix:/run/tornado-signal/signal.sock;", f"server unix:{self.upstream};"),
            ]
        pairs += [
            ("listen 80;", f"listen 127.0.0.1:{self.plain_port};"),
            ("listen [::]:80;", f"listen [::1]:{self.plain_port};"),
            ("listen 443 ssl", f"listen 127.0.0.1:{self.port} ssl"),
            ("listen [::]:443 ssl", f"listen [::1]:{self.port} ssl"),
            (f"{LETSENCRYPT}/fullchain.pem", str(self.pair.certificate)),
            (f"{LETSENCRYPT}/privkey.pem", str(self.pair.key)),
            *self.idle_times("proxy_read_timeout"),
        ]
        return self.command(put(site, pairs))

    def command(self, site):
        """Write the files for a site; the command."""
        user = "user root;" if os.geteuid() == 0 else ""  # its workers have to reach a Unix socket of this user's
        (self.directory / "nginx.conf").write_text(NGINX.format(directory=self.directory, user=user))
        (self.directory / "site.conf").write_text(site)
        found = shutil.which("nginx")
        return [found, "-p", self.directory, "-c", self.directory / "nginx.conf", "-e", "stderr"]


class Blocking(Nginx):
    """An nginx for plain HTTP through which no WebSocket gets.

    Args:
        directory: an empty one of its own.
        upstream: the server's port on 127.0.0.1.
        handshakes: a port that WebSockets are passed on to, whatever is there.
    """

    SITE = """
server {{
    listen 127.0.0.1:{port};
    access_log off;
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_set_header Host $http_host;
    proxy_buffering off;
    location / {{ proxy_pass http://127.0.0.1:{upstream}; }}
    location /ws {{ proxy_pass http://127.0.0.1:{handshakes}/ws; }}
}}
"""

    def __init__(self, directory, upstream, handshakes=None):
        self.handshakes = handshakes or upstream
        super().__init__(directory, None, upstream)

    def configure(self):
        """Write its files; the command."""
        self.url = f"http://{HOST}:{self.port}"
        site = self.SITE.format(port=self.port, upstream=self.upstream, handshakes=self.handshakes)
        return self.command(site)


class Caddy(Proxy):
    """systemd/Caddyfile."""

    name = "caddy"

    def configure(self):
        """Write its file; the command."""
        site = (SYSTEMD / "Caddyfile").read_text()
        if isinstance(self.upstream, int):
            upstream = f"127.0.0.1:{self.upstream}"
        elif isinstance(self.upstream, tuple):
            upstream = " ".join(self.upstream)
            site = uncomment(site, "lb_policy random", "}")
        else:
            upstream = f"unix/{self.upstream}"
        pairs = [
            ("\nsignal.example.com {", f"\nhttps://:{self.port} {{\n\ttls {self.pair.certificate} {self.pair.key}"),
            ("reverse_proxy 127.0.0.1:3000 {", f"reverse_proxy {upstream} {{"),
        ]
        (self.directory / "Caddyfile").write_text(CADDY.format(directory=self.directory) + put(site, pairs))
        return [shutil.which("caddy"), "run", "--adapter", "caddyfile", "--config", self.directory / "Caddyfile"]


class HAProxy(Proxy):
    """systemd/haproxy.cfg."""

    name = "haproxy"

    def configure(self):
        """Write its files; the command."""
        pem = self.directory / "pair.pem"
        pem.write_bytes(self.pair.certificate.read_bytes() + self.pair.key.read_bytes())
        site = (SYSTEMD / "haproxy.cfg").read_text()
        if isinstance(self.upstream, tuple):
            site = several(uncomment(site, "balance leastconn", CHECKS), self.upstream)
            pairs = [("server one 127.0.0.1:3000\n", ""), ("# balance leastconn", "balance leastconn")]
        else:
            address = f"127.0.0.1:{self.upstream}" if isinstance(self.upstream, int) else f"unix@{self.upstream}"
            pairs = [("server one 127.0.0.1:3000", f"server one {address}")]
        pairs += [
            ("    user haproxy\n    group haproxy\n", ""),
            ("maxconn 32768", "maxconn 4096"),
            ("bind :80\n", f"bind 127.0.0.1:{self.plain_port}\n"),
            ("bind :::80 v6only", f"bind [::1]:{self.plain_port}"),
            ("bind :443 ", f"bind 127.0.0.1:{self.port} "),
            ("bind :::443 v6only ", f"bind [::1]:{self.port} "),
            ("/etc/haproxy/signal.example.com.pem", str(pem)),
            *self.idle_times("timeout client", "timeout server"),
        ]
        (self.directory / "haproxy.cfg").write_text(put(site, pairs))
        return [shutil.which("haproxy"), "-db", "-f", self.directory / "haproxy.cfg"]


PROXIES = {"nginx": Nginx, "caddy": Caddy, "haproxy": HAProxy}
