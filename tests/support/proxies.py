"""Real nginx, Caddy and HAProxy processes with the configurations of `systemd/`, with other names, ports and paths."""

import contextlib
import itertools
import os
import re
import shutil
import subprocess
import time

import pytest

from .documents import blocks, sections
from .needs import require
from .paths import ROOT, SYSTEMD
from .redis_servers import free_port
from .waiting import accepts, end_all

BOUND_S = 20
HOST = "127.0.0.1"
LETSENCRYPT = "/etc/letsencrypt/live/signal.example.com"

# The configuration around the tested file, so that nginx does not touch files of this machine.
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
# The same for Caddy. Without the third line Caddy would install its certificate authority on this machine.
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
APACHE_MODULES = "/usr/lib/apache2/modules"
# The last line of HAProxy's health checks.
CHECKS = "default-server check inter 500ms fall 2 rise 1 observe layer4 error-limit 1 on-error mark-down"


def put(text, pairs):
    """Replace parts of a configuration, each of which must exist."""
    for before, after in pairs:
        assert before in text, before
        text = text.replace(before, after)
    return text


def uncomment(text, first, last):
    """Uncomment the lines of a configuration from `first` to `last`."""
    begin, end = (re.search(rf"^\s*# {re.escape(line)}$", text, re.MULTILINE) for line in (first, last))
    lines = re.sub(r"^(\s*)# ?", r"\1", text[begin.start() : end.end()], flags=re.MULTILINE)
    return text[: begin.start()] + lines + text[end.end() :]


def several(text, addresses):
    """Replace the commented example servers of a configuration with addresses."""
    for number, address in enumerate(addresses, 1):
        text, count = re.subn(rf"# (server .*)\b10\.0\.0\.{number}:3000", rf"\g<1>{address}", text)
        assert count
    return text


class Proxy:
    """A proxy that listens on both loopback addresses when the constructor returns.

    `upstream` is the server's port on 127.0.0.1, the path of its Unix socket, or a tuple of addresses.
    """

    def __init__(self, directory, pair, upstream, idle_s=None):
        require(self.name)
        self.directory, self.pair, self.upstream, self.idle_s = directory, pair, upstream, idle_s
        environ = {**os.environ, "HOME": str(directory), "XDG_CONFIG_HOME": str(directory)}
        for _ in range(5):  # another process may take a port first
            self.port, self.plain_port = free_port(), free_port()  # for HTTPS and HTTP
            self.url = f"https://{HOST}:{self.port}"
            command = self.configure()
            with (directory / "output").open("wb") as output:
                self.process = subprocess.Popen(command, cwd=directory, env=environ, stdout=output, stderr=output)
            if self._answers():
                return
            self.stop()
        raise AssertionError(self.log())

    def idle_times(self, *settings):
        """Return the replacements that set timeouts of a configuration to `idle_s`."""
        return [(f"{name} 90s", f"{name} {self.idle_s}s") for name in settings if self.idle_s]

    def _answers(self):
        end_s = time.monotonic() + BOUND_S
        while self.process.poll() is None and time.monotonic() < end_s:
            if accepts(self.port):
                return True
            time.sleep(0.02)
        return False

    def turn_to(self, upstream):
        """Switch to another upstream by a reload, without downtime."""
        self.upstream = upstream
        subprocess.run([*self.configure(), *self.reloading], check=True, timeout=BOUND_S)

    def log(self):
        return (self.directory / "output").read_text()

    def stop(self):
        """Stop the process. It is killed after 2 s, because Caddy waits until its clients have disconnected."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        self.process.kill()
        self.process.wait(BOUND_S)


class Nginx(Proxy):
    name = "nginx"
    reloading = ("-s", "reload")

    def configure(self):
        site = (SYSTEMD / "nginx.conf").read_text()
        server = "server 127.0.0.1:3000;"
        if isinstance(self.upstream, int):
            pairs = [(server, f"server 127.0.0.1:{self.upstream};")]
        elif isinstance(self.upstream, tuple):
            site = several(uncomment(site, "zone tornado_signal 64k;", "least_conn;"), self.upstream)
            pairs = [(server, "")]
        else:
            unix = "# server unix:/run/tornado-signal/signal.sock;"
            pairs = [(server, ""), (unix, f"server unix:{self.upstream};")]
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
        user = "user root;" if os.geteuid() == 0 else ""  # the workers must be able to open this user's Unix socket
        (self.directory / "nginx.conf").write_text(NGINX.format(directory=self.directory, user=user))
        (self.directory / "site.conf").write_text(site)
        return [shutil.which("nginx"), "-p", self.directory, "-c", self.directory / "nginx.conf", "-e", "stderr"]


class Plain(Proxy):
    """A proxy for plain HTTP. Its configuration is `SITE`, in which the names of its attributes stand for their values.

    Below `PATH` its URL is that of the server.
    """

    PATH = ""

    def configure(self):
        self.url = f"http://{HOST}:{self.port}{self.PATH}"
        return self.command(self.SITE.format(**vars(self)))


class BareNginx(Plain, Nginx):
    """An nginx with the only line that its tutorials have."""

    SITE = """
upstream server {{ server {server}; }}
server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://{host}; }}
    access_log off;
}}
"""

    def configure(self):
        tcp = isinstance(self.upstream, int)
        self.host = f"127.0.0.1:{self.upstream}" if tcp else "server"
        self.server = "127.0.0.1:9" if tcp else f"unix:{self.upstream}"
        return super().configure()


class BareNginxPath(BareNginx):
    """The same for the paths below /signal/."""

    PATH = "/signal"
    SITE = BareNginx.SITE.replace(
        "location / {{ proxy_pass http://{host}", "location /signal/ {{ proxy_pass http://{host}/"
    )


class PlainProxy(Plain):
    """A proxy with Debian's defaults, and the few lines of its tutorials, with those for WebSockets."""

    def command(self, site):
        (self.directory / "proxy.conf").write_text(site)
        return [shutil.which(self.name), *(argument.format(**vars(self)) for argument in self.ARGUMENTS)]


class BareApache(PlainProxy):
    """An Apache with the line of its tutorials, without that for WebSockets."""

    name = "apache2"
    ARGUMENTS = ("-D", "FOREGROUND", "-f", "{directory}/proxy.conf")
    SITE = """
ServerName localhost
Listen 127.0.0.1:{port}
PidFile {directory}/apache.pid
DefaultRuntimeDir {directory}
ErrorLog /dev/stderr
LoadModule mpm_event_module {modules}/mod_mpm_event.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule proxy_module {modules}/mod_proxy.so
LoadModule proxy_http_module {modules}/mod_proxy_http.so
ProxyPass / http://127.0.0.1:{upstream}/
""".replace("{modules}", APACHE_MODULES)


class PlainHAProxy(PlainProxy):
    name = "haproxy"
    ARGUMENTS = ("-db", "-f", "{directory}/proxy.conf")
    SITE = """
global
    maxconn 1000
defaults
    mode http
    option dontlognull
    timeout connect 5000
    timeout client 50000
    timeout server 50000
frontend web
    bind 127.0.0.1:{port}
    default_backend servers
backend servers
    server one 127.0.0.1:{upstream} check
"""


class PlainCaddy(PlainProxy):
    name = "caddy"
    ARGUMENTS = ("run", "--adapter", "caddyfile", "--config", "{directory}/proxy.conf")
    SITE = CADDY + "http://:{port} {{\n\treverse_proxy localhost:{upstream}\n}}\n"


class PlainLighttpd(PlainProxy):
    name = "lighttpd"
    ARGUMENTS = ("-D", "-f", "{directory}/proxy.conf")
    SITE = """
server.modules = ("mod_indexfile", "mod_access", "mod_alias", "mod_redirect", "mod_proxy")
server.document-root = "{directory}"
server.bind = "127.0.0.1"
server.port = {port}
server.feature-flags += ("server.h2proto" => "enable", "server.h2c" => "enable")
server.http-parseopts = (
  "header-strict" => "enable",
  "host-strict" => "enable",
  "host-normalize" => "enable",
  "url-normalize-unreserved" => "enable",
  "url-normalize-required" => "enable",
  "url-ctrls-reject" => "enable",
  "url-path-2f-decode" => "enable",
  "url-path-dotseg-remove" => "enable",
)
index-file.names = ("index.php", "index.html")
url.access-deny = ("~", ".inc")
proxy.server = ("" => (("host" => "127.0.0.1", "port" => {upstream})))
proxy.header = ("upgrade" => "enable")
"""


class PlainVarnish(PlainProxy):
    name = "varnishd"
    ARGUMENTS = ("-j", "none", "-F", "-n", "{directory}/work", "-a", "127.0.0.1:{port}", "-s", "malloc,32m")
    ARGUMENTS += ("-f", "{directory}/proxy.conf")
    SITE = """vcl 4.1;
backend default {{
    .host = "127.0.0.1";
    .port = "{upstream}";
}}
sub vcl_recv {{
    if (req.http.upgrade ~ "(?i)websocket") {{
        return (pipe);
    }}
}}
sub vcl_pipe {{
    if (req.http.upgrade) {{
        set bereq.http.upgrade = req.http.upgrade;
        set bereq.http.connection = req.http.connection;
    }}
}}
"""


class PlainApache(BareApache):
    SITE = BareApache.SITE.replace("{upstream}/", "{upstream}/ upgrade=websocket")


# Of nginx, for WebSockets.
NGINX_SITE = """
map $http_upgrade $connection_upgrade {{ default upgrade; "" ""; }}
server {{
    listen 127.0.0.1:{port};
    access_log off;
    {lines}
}}
"""
TUTORIAL = """
    location / {{
        proxy_pass http://127.0.0.1:{upstream};
        proxy_http_version 1.1;
        proxy_set_header Upgrade $http_upgrade;
        proxy_set_header Connection $connection_upgrade;
    }}
"""


class PlainNginx(Plain, Nginx):
    SITE = NGINX_SITE.replace('"" ""', '"" close').replace("{lines}", TUTORIAL)


PLAIN = {"nginx": PlainNginx, "apache": PlainApache, "haproxy": PlainHAProxy, "caddy": PlainCaddy}
PLAIN |= {"lighttpd": PlainLighttpd, "varnish": PlainVarnish}


class NginxPath(Plain, Nginx):
    """An nginx that forwards /signal/ to the server, as the documentation says."""

    SITE = NGINX_SITE

    def configure(self):
        (location,) = blocks("proxies", "A sub-path", "nginx")
        self.lines = put(location, [(":3000/", f":{self.upstream}/")])
        return super().configure()


class Caddy(Proxy):
    name = "caddy"

    def configure(self):
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


class CaddyPath(PlainCaddy):
    """A Caddy for plain HTTP that forwards /signal/ to the server, as the documentation says."""

    @property
    def SITE(self):
        (lines,) = blocks("proxies", "A sub-path", "caddyfile")
        lines = put(lines, [("{", "{{"), ("}", "}}"), ("127.0.0.1:3000", "127.0.0.1:{upstream}")])
        return f"{CADDY}http://:{{port}} {{{{\n{lines}}}}}\n"


class ClusterCaddy(PlainCaddy):
    """The Caddy of compose.cluster.yaml, for plain HTTP and with one server."""

    @property
    def SITE(self):
        lines = (ROOT / "examples/containers/Caddyfile").read_text()
        site = [("{\n\tadmin off\n}\n", ""), ("{$SITE}", "http://:PORT")]
        site.append((" 10.89.77.21:3000 10.89.77.22:3000 10.89.77.23:3000", " 127.0.0.1:UPSTREAM"))
        lines = put(lines, [*site, ("{", "{{"), ("}", "}}")])
        return CADDY + put(lines, [("PORT", "{port}"), ("UPSTREAM", "{upstream}")])


def required_lines(proxy):
    """Return the lines of the table of requirements about addresses, schemes and hosts, for one of its columns."""
    columns, _, *rows = re.findall(r"^\|(.*)\|$", sections("proxies")["Requirements for other proxies"], re.MULTILINE)
    column = [name.strip() for name in columns.split("|")].index(proxy)
    cells = [row.split("|") for row in rows]
    cells = [cell for cell in cells if cell[0].strip() in ("client's address", "scheme and host")]
    return [line for cell in cells for line in re.findall("`(.*?)`", cell[column])]


class RequiredNginx(PlainNginx):
    """An nginx for plain HTTP with the lines of the table of requirements."""

    @property
    def SITE(self):
        lines = "".join(f"proxy_set_header {line};" for line in required_lines("nginx"))
        return PlainNginx.SITE.replace("proxy_http_version", lines + "proxy_http_version")


class RequiredHAProxy(PlainHAProxy):
    @property
    def SITE(self):
        lines = "".join(f"    {line}\n" for line in required_lines("HAProxy"))
        return PlainHAProxy.SITE.replace("    default_backend servers\n", f"{lines}    default_backend servers\n")


class HAProxy(Proxy):
    name = "haproxy"

    def configure(self):
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
# The other examples of the documentation, for plain HTTP.
EXAMPLES = (NginxPath, CaddyPath, ClusterCaddy, RequiredNginx, RequiredHAProxy)


@pytest.fixture
def start_proxy(tmp_path, pair):
    """A function that starts a proxy of a class or of a name in `PROXIES`. Its certificate is `pair`."""
    numbers = itertools.count()

    def starting(kind, upstream, **options):
        directory = tmp_path / f"proxy{next(numbers)}"
        directory.mkdir()
        return PROXIES.get(kind, kind)(directory, pair, upstream, **options)

    with end_all(starting, Proxy.stop) as start:
        yield start
