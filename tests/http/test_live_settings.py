"""Every setting documented as applied on reload is subscribed to, and no other setting is."""

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.webhooks import SECRET

import tornado_signal
from tornado_signal.auth import open_authority
from tornado_signal.errors import OperatorError
from tornado_signal.http.errors import make_refusal
from tornado_signal.process import reload
from tornado_signal.settings import live as live_settings
from tornado_signal.settings.live import LiveSettings
from tornado_signal.settings.settings import LIVE, SETTINGS, Settings, merge
from tornado_signal.transport import ServerState
from tornado_signal.webhooks import Webhooks

PACKAGE = Path(tornado_signal.__file__).parent
READERS = "service/*.py http/*.py websocket/*.py protocols/*.py admin/*.py process/lifecycle.py"
# Where settings of a subscriber are read later, and the pattern of such a read.
READ_LATER = {
    reload.OF_CALLS: [(READERS, r"service\.settings\.(\w+)"), ("service/service.py", r"self\.settings\.(\w+)")],
    reload.OF_THE_LOG: [
        ("http/errors.py", r"\blog\.settings\.(\w+)"),
        ("service/request_log.py", r"self\.settings\.(\w+)"),
    ],
    reload.OF_LIMITS: [("limits/per_address.py", r"\b_?settings\.(\w+)")],
}


class Recorder:
    """Settings that record which of them are read."""

    def __init__(self, settings):
        self._settings = settings
        self.read = set()

    def __getattr__(self, name):
        self.read.add(name)
        return getattr(self._settings, name)


def make_live_settings(service, webhooks):
    transport = ServerState(service.application, make_refusal(service.shared.log))
    tls = SimpleNamespace(reload=lambda certificate, key: None)
    return reload.make_live_settings(service.settings, service.application, transport, tls, webhooks)


async def test_subscribed_settings_are_those_documented_as_reloadable(service):
    assert (
        make_live_settings(service, Webhooks(service.shared)).names
        == LIVE
        == {setting.name for setting in SETTINGS if "applied on SIGHUP" in setting.help}
    )


async def test_every_subscriber_reads_exactly_its_settings(service, tmp_path, monkeypatch):
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef")
    files = dict.fromkeys(("turn_secret_file", "redis_password_file", "redis_sentinel_password_file"), secret)
    key = tmp_path / "key.secret"
    key.write_text("0123456789abcdef" * 2)
    files["auth_keys"] = key
    service.shared.authority = open_authority(dataclasses.replace(service.settings, auth_keys=key))
    (tmp_path / "webhook.secret").write_text(SECRET)
    files |= {"webhook_url": "http://127.0.0.1:1", "webhook_secret_file": tmp_path / "webhook.secret"}
    files |= {"tls_certificate": secret, "tls_key": secret, "turn_servers": ("turn:a",)}
    recorders = []

    def select(settings, names):
        recorders.append((names, Recorder(settings)))
        return recorders[-1][1]

    monkeypatch.setattr(live_settings, "select", select)
    monkeypatch.setattr(reload.logs, "set_up", lambda *arguments: None)
    webhooks = Webhooks(service.shared)
    make_live_settings(service, webhooks).apply(dataclasses.replace(service.settings, **files))
    await webhooks.close()
    read_later = {frozenset(names) for names in READ_LATER}
    assert read_later < {names for names, _ in recorders}
    for names, recorder in recorders:
        if names not in read_later:
            assert recorder.read & LIVE == names


@pytest.mark.parametrize("names", READ_LATER, ids=lambda names: names[0])
def test_settings_read_on_demand_are_subscribed_to_by_their_reader(names):
    read = set()
    for files, pattern in READ_LATER[names]:
        for path in (path for pattern_of_files in files.split() for path in PACKAGE.glob(pattern_of_files)):
            read |= set(re.findall(pattern, path.read_text()))
    assert read & LIVE == set(names)


def test_change_of_a_setting_without_subscriber_needs_a_restart():
    live = LiveSettings(Settings())
    live.subscribe(lambda settings: lambda: None, "max_offer")
    changed = dataclasses.replace(Settings(), max_offer=100, max_candidates=100, data_dir=Path("elsewhere"))
    merged, applied, waiting = merge(live.current, changed, live.names)
    assert (applied, waiting) == (["--max-offer"], ["--data-dir", "--max-candidates"])
    assert merged == dataclasses.replace(Settings(), max_offer=100)


def test_reading_a_setting_without_subscription_fails():
    live, applied = LiveSettings(Settings()), []
    live.subscribe(lambda settings: lambda: applied.append(settings), "max_offer")
    live.apply(dataclasses.replace(Settings(), max_offer=100))
    assert (applied[0].max_offer, applied[0].session_timeout_ms) == (100, Settings().session_timeout_ms)
    with pytest.raises(AttributeError):
        _ = applied[0].max_candidates


def test_failed_reload_changes_nothing():
    def refuse(settings):
        raise OperatorError("no such file")

    live, applied = LiveSettings(Settings()), []
    live.subscribe(lambda settings: lambda: applied.append(settings), "max_offer")
    live.subscribe(refuse, "turn_secret_file")
    with pytest.raises(OperatorError):
        live.apply(dataclasses.replace(Settings(), max_offer=100))
    assert (applied, live.current) == ([], Settings())
