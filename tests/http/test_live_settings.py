"""A reload applies every setting that is documented as reloadable, and every file that settings name, or nothing."""

import dataclasses
import re
from pathlib import Path

import pytest
from support.certificates import make_pair
from support.webhooks import SECRET

import tornado_signal
from tornado_signal.errors import OperatorError
from tornado_signal.process.resources import CONTENTS, changed_contents, read_resources
from tornado_signal.process.server import ServingProcess
from tornado_signal.process.stages import Stages
from tornado_signal.settings.settings import SETTINGS, Settings, merge
from tornado_signal.system.lifecycle import LEAVING, SERVING, Lifecycle

PACKAGE = Path(tornado_signal.__file__).parent
# Where settings are read when they are needed.
READERS = ("operator", "http", "limits", "process", "protocols", "service", "websocket")
SECRETS = ("turn_secret_file", "redis_password_file", "redis_sentinel_password_file", "admin_token_file")


class Recorder:
    """Settings that record which of them are read."""

    def __init__(self, settings):
        self._settings = settings
        self.read = set()

    def __getattr__(self, name):
        self.read.add(name)
        return getattr(self._settings, name)


@pytest.fixture
def files(tmp_path):
    """Return a usable file for each setting that names one."""
    secrets = {name: tmp_path / name for name in SECRETS}
    for path in secrets.values():
        path.write_text("0123456789abcdef")
    webhook_secret, key, pair = tmp_path / "webhook", tmp_path / "key.secret", make_pair(tmp_path)
    webhook_secret.write_text(SECRET)
    key.write_text("0123456789abcdef" * 2)
    more = {"turn_servers": ("turn:a",), "webhook_url": "http://127.0.0.1:1", "webhook_secret_file": webhook_secret}
    return secrets | more | {"auth_keys": key, "tls_certificate": pair.certificate, "tls_key": pair.key}


@pytest.fixture
def process(io_loop, tmp_path, files):
    """A serving process with all of these files."""
    stages, lifecycle = Stages(), Lifecycle()
    settings = Settings(data_dir=tmp_path / "data", port=0, durability="os", stun_servers=(), **files)
    serving = ServingProcess(settings, lifecycle, None)

    async def start():
        await serving.open(stages, lambda: settings)
        lifecycle.reach(SERVING)

    io_loop.run_sync(start)
    yield serving
    lifecycle.reach(LEAVING)
    io_loop.run_sync(stages.close)


async def test_reload_applies_every_reloadable_setting(process):
    recorder = Recorder(process.live.current)
    process.reloader.apply(recorder)
    paths = [path for name in READERS for path in (PACKAGE / name).glob("*.py")]
    on_demand = {name for path in paths for name in re.findall(r"\b_?settings\.(\w+)", path.read_text())}
    assert process.live.current is recorder
    assert recorder.read | on_demand >= {setting.name for setting in SETTINGS if setting.live}


async def test_unusable_file_changes_nothing(process, files):
    before, certificate = process.live.current, process.tls.certificate
    files["auth_keys"].write_text("short")
    with pytest.raises(OperatorError, match=r"key\.secret must hold one line"):
        process.reloader.apply(dataclasses.replace(before, max_offer=100))
    assert process.live.current is before
    assert process.tls.certificate is certificate


@pytest.mark.parametrize(
    ("name", "setting", "content"),
    [
        ("certificate and key", "tls_certificate", None),
        ("keys of tokens", "auth_keys", "another key of at least thirty-two bytes"),
        ("secret of TURN servers", "turn_secret_file", "another secret of TURN"),
        ("secret of webhooks", "webhook_secret_file", SECRET[:-4] + "AAA="),
        ("passwords of Redis", "redis_sentinel_password_file", "another"),
    ],
)
async def test_changed_content_of_a_file_is_named(files, tmp_path, name, setting, content):
    settings = Settings(**files)
    before = read_resources(settings)
    assert changed_contents(before, read_resources(settings)) == []
    if content is None:
        other = make_pair(tmp_path, "other")
        settings = dataclasses.replace(settings, tls_certificate=other.certificate, tls_key=other.key)
    else:
        files[setting].write_text(content)
    assert changed_contents(before, read_resources(settings)) == [name]
    assert name in CONTENTS


def test_change_of_another_setting_needs_a_restart():
    changed = dataclasses.replace(Settings(), max_offer=100, data_dir=Path("elsewhere"))
    merged, applied, waiting = merge(Settings(), changed)
    assert (applied, waiting) == (["--max-offer"], ["--data-dir"])
    assert merged == dataclasses.replace(Settings(), max_offer=100)
