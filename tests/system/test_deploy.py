"""The configurations of docs/deploy.md: the programs that read them accept them, and the server serves with them."""

import re
import subprocess
import tomllib

import pytest
from support.command import BOUND_S, load_settings
from support.documents import blocks
from support.paths import ROOT
from support.waiting import until

from tornado_signal.settings.settings import PREFIX, Settings

yaml = pytest.importorskip("yaml")

NAME = "signal.example.com"


def sections_of(page_heading):
    """Return the lines of each file that a block shows, by the comment that names it."""
    (text,) = blocks("deploy", page_heading, "ini")
    return dict(re.findall(r"^# (\S.*)\n((?:[^#].*\n)+)", text, re.MULTILINE))


def settings_of(environment):
    ours = {name: value for name, value in environment.items() if name.startswith(PREFIX)}
    return load_settings(env=ours)


def environment_file(heading):
    lines = sections_of(heading)["/etc/tornado-signal/tornado-signal.env"].splitlines()
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.needs("caddy")
def test_caddyfile_gets_the_name(tmp_path):
    script = blocks("deploy", "A VPS in five minutes", "sh")[1]
    place = tmp_path / "Caddyfile"
    *lines, reload = script.replace(f"name={NAME}", "name=my.example.org").splitlines()
    assert reload == "sudo systemctl reload caddy tornado-signal"
    written = "\n".join(lines).replace("sudo tee /etc/caddy/Caddyfile", f"tee {place}")
    subprocess.run(["bash", "-euc", written], cwd=ROOT, check=True, timeout=BOUND_S)
    adapted = ["caddy", "adapt", "--adapter", "caddyfile", "--config", place]
    done = subprocess.run(adapted, capture_output=True, text=True, check=True, timeout=BOUND_S)
    assert '"host":["my.example.org"]' in done.stdout
    assert NAME not in re.sub("#.*", "", place.read_text())


def test_settings_of_the_vps_are_valid(start):
    environment = environment_file("A VPS in five minutes")
    settings = settings_of(environment)
    assert [str(network) for network in settings.trusted_proxies] == ["127.0.0.1/32"]
    (origin,) = settings.allowed_origins.entries
    server = start("--allowed-origins", origin)
    assert server.exchange("/health", origin=origin)[0] == 200
    assert server.exchange("/health", origin="https://other.example")[0] == 403


def test_packages_are_those_of_the_other_pages():
    installed = re.findall(r"apt-get install -y (.*)", "".join(blocks("deploy", "Deploy", "sh")))
    assert installed == ["python3-venv caddy", "coturn"]


@pytest.mark.needs("turnserver")
def test_coturn_takes_its_settings(tmp_path):
    files = sections_of("STUN and TURN")
    settings = settings_of(environment_file("STUN and TURN"))
    assert settings.turn_servers
    (created,) = re.findall("/dev/stdin (.*)", "".join(blocks("deploy", "STUN and TURN", "sh")))
    assert str(settings.turn_secret_file) == created
    file, log = tmp_path / "turnserver.conf", tmp_path / "log"
    file.write_text(files["/etc/turnserver.conf"] + "listening-ip=127.0.0.1\nlistening-port=0\n")
    command = ["turnserver", "-c", file, "--no-cli", "--log-file=stdout", f"--pidfile={tmp_path}/pid", "--db=:memory:"]
    with log.open("w") as output, subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=output) as server:
        until(lambda: "Total General servers" in log.read_text())
        server.terminate()
    assert f"Default realm: {NAME}\n" in log.read_text()
    denied = re.findall("^denied-peer-ip=(.*)$", file.read_text(), re.MULTILINE)
    assert denied
    assert set(re.findall("listing: (.*)", log.read_text())) == set(denied)
    assert not re.search("bad configuration|unrecognized", log.read_text(), re.IGNORECASE), log.read_text()


def test_files_for_fly_and_render(start):
    (text,) = blocks("deploy", "Fly.io", "toml")
    fly, http = (file := tomllib.loads(text))["env"], file["http_service"]
    (check,) = http["checks"]
    (text,) = blocks("deploy", "Render", "yaml")
    (service,) = yaml.safe_load(text)["services"]
    render = {variable["key"]: variable["value"] for variable in service["envVars"]}
    assert Settings().port == http["internal_port"] == int(render["PORT"])
    for environment, dockerfile, path, origin in (
        (fly, file["build"]["dockerfile"], check["path"], check["headers"]["Origin"]),
        (render, service["dockerfilePath"], service["healthCheckPath"], None),
    ):
        assert (ROOT / dockerfile).exists()
        server = start("--allowed-origins", *settings_of(environment).allowed_origins.entries)
        assert server.exchange(path, origin=origin)[0] == 200
        assert server.stop() == 0
