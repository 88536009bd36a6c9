"""The Helm chart: Kubernetes accepts what it renders, and the server runs with it."""

import base64
import functools
import itertools
import json
import re
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from support.certificates import make_pair
from support.command import BOUND_S, ORIGIN, Server, load_settings, run
from support.documents import all_blocks, pages
from support.helm import CHART, EXAMPLES, Rejected, Release, render, render_all
from support.paths import ROOT

from tornado_signal.http.application import MAX_UNFINISHED_BYTES
from tornado_signal.http.streams import HEARTBEAT_S
from tornado_signal.process.draining import CLOSE_LIMIT_S, CLOSE_WEBSOCKETS_S, DRAIN_LIMIT_S, LAST_REQUEST_S
from tornado_signal.service.schemas import MAX_WAIT_S
from tornado_signal.settings.settings import SETTINGS, Settings
from tornado_signal.transport.websocket import PING_S, SILENT_S

pytestmark = [pytest.mark.needs("helm_python", "kubernetes_validate", "cloudcoil", "yaml"), pytest.mark.slow]

IMAGE = {"image": {"repository": "registry.example.com/tornado-signal"}}
REDIS = {"store": "redis", "settings": {"redis_nodes": "redis:6379"}}
CONNECTION_BYTES, SERVER_BYTES = 12 << 10, 100 << 20  # with the kernel's part; without connections
FILES = {"auth_keys": {"secret": "keys"}, "admin_token_file": {"secret": "admin", "key": "token"}}
FILES |= {"turn_secret_file": {"secret": "turn", "key": "secret"}}
FILES |= {"redis_ca": {"configMap": "authorities", "key": "ca.pem"}}
FILES |= {"tls_certificate": {"secret": "certificate", "key": "tls.crt"}}
FILES |= {"tls_key": {"secret": "certificate", "key": "tls.key"}}
DETAILS = {"files": FILES, "settings": {"turn_servers": "turn:turn.example.com"}, "nodeSelector": {"disk": "fast"}}
DETAILS |= {"env": [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"}]}
DETAILS |= {"service": {"type": "LoadBalancer", "annotations": {"a": "b"}}, "podAnnotations": {"a": "b"}}
DETAILS |= {"image": IMAGE["image"] | {"digest": f"sha256:{'0' * 64}", "pullSecrets": ["pull"]}}
DETAILS |= {"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}}
DETAILS |= {"tolerations": [{"key": "signal", "operator": "Exists"}], "priorityClassName": "high"}
INGRESS = {"enabled": True, "hosts": ["a.example.com", "*.b.example.com"], "tlsSecret": "certificate"}
LEVELDB = ({}, {"persistence": {"enabled": False}}, {"persistence": {"existingClaim": "mine"}})
MORE_REDIS = ({"autoscaling": {"enabled": True}}, {"replicas": 5, "podDisruptionBudget": {"enabled": False}})
# Parts of the values, each with its variants. All combinations are rendered.
PARTS = (
    (*LEVELDB, REDIS, *(REDIS | more for more in MORE_REDIS)),
    ({}, {"ingress": INGRESS}),
    ({}, {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}}),
    ({}, {"networkPolicy": {"enabled": False}}),
    ({}, DETAILS),
)
# The same directives in systemd/nginx.conf, which is tested with nginx.
SAME = ("read-timeout", "connect-timeout", "buffering", "request-buffering", "http-version", "next-upstream")
DIRECTIVES = {f"proxy-{name}": f"proxy_{name.replace('-', '_')}" for name in SAME}
DIRECTIVES |= {"proxy-body-size": "client_max_body_size", "enable-access-log": "access_log"}
DIRECTIVES["limit-connections"] = "limit_conn tornado_signal_clients"


def merged(*parts):
    """Merge values as Helm does: objects are merged, everything else is replaced."""
    result = {}
    for part in parts:
        for name, value in part.items():
            both = isinstance(value, dict) and isinstance(result.get(name), dict)
            result[name] = merged(result[name], value) if both else value
    return result


def combinations():
    """Return all combinations of the parts, with the settings that an Ingress needs."""
    trusted = {"settings": {"trusted_proxies": ["10.244.0.0/16", "10.245.0.0/16"]}}
    return [merged(IMAGE, trusted, *parts) for parts in itertools.product(*PARTS)]


@pytest.fixture(scope="module")
def releases():
    values = combinations()
    found = render_all([json.dumps(each) for each in values])
    assert [each for each in found if not isinstance(each, Release)] == []
    return list(zip(values, found, strict=True))


@functools.cache
def oldest():
    (version,) = re.findall(r'^kubeVersion: ">=(\d+\.\d+)\.0-0"$', (CHART / "Chart.yaml").read_text(), re.MULTILINE)
    assert f"Kubernetes {version} or newer" in pages()["kubernetes"]
    return version


def check_schema(manifest):
    """Check a manifest against the oldest and the newest schema of its kind. Unknown fields are errors."""
    if manifest["kind"] == "ServiceMonitor":
        from cloudcoil.models.prometheus_operator.v1 import ServiceMonitor

        monitor = ServiceMonitor.model_validate(manifest)
        known = monitor.model_dump(mode="json", by_alias=True, exclude_unset=True)
        assert known == manifest, "it has unknown fields"
    else:
        import kubernetes_validate

        for version in (oldest(), kubernetes_validate.latest_version()):
            kubernetes_validate.validate(manifest, version, strict=True)


def settings_of(release):
    return load_settings(env=release.variables)


def test_manifests_are_valid(releases):
    """Those of all combinations, and with the values of the examples and of the documentation."""
    import yaml
    from kubernetes_validate import ValidationError

    for values, release in releases:
        named = [(each["kind"], each["metadata"]["name"]) for each in release.objects]
        assert len(named) == len({*named}), values
    shown = [yaml.safe_load(text) for language, text in all_blocks(pages()["kubernetes"]) if language == "yaml"]
    examples = [yaml.safe_load(path.read_text()) for path in sorted(EXAMPLES.iterdir())]
    assert (len(shown) >= 3, len(examples)) == (True, 2)
    found = render_all([json.dumps(merged(examples[0], each)) for each in (*examples, *shown)])
    for release in found:
        assert isinstance(release, Release), release
        settings_of(release)
    found += [release for _, release in releases]
    assert [release.lint for release in found if release.lint] == []
    different = {json.dumps(each, sort_keys=True) for release in found for each in release.objects}
    assert len(different) > 30
    for each in different:
        check_schema(json.loads(each))
    whole = next(release for release in found if release.all("ServiceMonitor"))
    for each in (whole.one("ServiceMonitor"), whole.one("Deployment")):
        with pytest.raises((AssertionError, ValidationError), match="unknown"):
            check_schema(merged(each, {"spec": {"unknown": "1"}}))


def test_values_decide_which_objects_exist(releases):
    always = {"ConfigMap", "Deployment", "Service"}
    for values, release in releases:
        shared = values.get("store") == "redis"
        monitored = "serviceMonitor" in values
        claimed = not shared and "persistence" not in values
        optional = {
            "PersistentVolumeClaim": claimed,
            "HorizontalPodAutoscaler": "autoscaling" in values,
            "PodDisruptionBudget": shared and "podDisruptionBudget" not in values,
            "Ingress": "ingress" in values,
            "ServiceMonitor": monitored,
            "NetworkPolicy": "networkPolicy" not in values,
        }
        kinds = {each["kind"] for each in release.objects}
        assert kinds == always | {kind for kind, exists in optional.items() if exists}, values
        assert len(release.all("Service")) == 1 + monitored
        annotations = release.one("Deployment")["spec"]["template"]["metadata"]["annotations"]
        assert annotations.get("prometheus.io/port") == (None if monitored else "3001")


def test_leveldb_has_one_server_and_one_volume(releases):
    for values, release in releases:
        spec = release.one("Deployment")["spec"]
        volume = next(each for each in release.pod["volumes"] if each["name"] == "data")
        if values.get("store") == "redis":
            expected = None if "autoscaling" in values else values.get("replicas", 3)
            assert spec.get("replicas") == expected
            assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
            assert volume["emptyDir"] == {}
            continue
        assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
        persistence = values.get("persistence", {})
        if persistence.get("enabled", True):
            made = [each["metadata"]["name"] for each in release.all("PersistentVolumeClaim")]
            (claim,) = made or [persistence["existingClaim"]]
            assert volume["persistentVolumeClaim"] == {"claimName": claim}
        else:
            assert volume["emptyDir"] == {}
        (mounted,) = (each for each in release.container["volumeMounts"] if each["name"] == "data")
        assert settings_of(release).data_dir.parent == Path(mounted["mountPath"])


def test_selectors_find_the_pods_only(releases):
    for _, release in releases:
        deployment = release.one("Deployment")["spec"]
        labels = deployment["template"]["metadata"]["labels"]
        assert deployment["selector"]["matchLabels"] == labels
        for each in release.all("PodDisruptionBudget"):
            assert each["spec"]["selector"]["matchLabels"] == labels
            assert each["spec"]["maxUnavailable"] < 3
        for each in release.all("NetworkPolicy"):
            assert each["spec"]["podSelector"]["matchLabels"] == labels
        for each in release.pod["topologySpreadConstraints"]:
            assert each["labelSelector"]["matchLabels"] == labels
        for each in release.all("HorizontalPodAutoscaler"):
            target = each["spec"]["scaleTargetRef"]
            assert (target["kind"], target["name"]) == ("Deployment", release.one("Deployment")["metadata"]["name"])
            assert release.container["resources"]["requests"]["cpu"], "utilization is relative to it"
        assert all(each["spec"]["selector"] == labels for each in release.all("Service"))


def test_admin_listener_is_not_public(releases):
    for values, release in releases:
        settings = settings_of(release)
        ports = {each["name"]: each["containerPort"] for each in release.container["ports"]}
        assert ports == {"http": settings.port, "admin": settings.admin_port}
        public, *admin = release.all("Service")
        assert [each["targetPort"] for each in public["spec"]["ports"]] == ["http"]
        (public_port,) = public["spec"]["ports"]
        for each in release.all("Ingress"):
            rules = each["spec"]["rules"]
            assert [rule["host"] for rule in rules] == values["ingress"]["hosts"] == each["spec"]["tls"][0]["hosts"]
            for (path,) in (rule["http"]["paths"] for rule in rules):
                backend = path["backend"]["service"]
                assert backend == {"name": public["metadata"]["name"], "port": {"name": public_port["name"]}}
        for each in release.all("ServiceMonitor"):
            wanted = each["spec"]["selector"]["matchLabels"].items()
            found = [service for service in release.all("Service") if wanted <= service["metadata"]["labels"].items()]
            assert found == admin
            (endpoint,) = each["spec"]["endpoints"]
            assert endpoint["port"] in [port["name"] for port in admin[0]["spec"]["ports"]]
            assert (endpoint["path"], admin[0]["spec"]["ports"][0]["targetPort"]) == ("/metrics", "admin")
            assert admin[0]["spec"]["clusterIP"] == "None"
        for each in release.all("NetworkPolicy"):
            to_clients, to_admin = each["spec"]["ingress"]
            assert to_clients == {"ports": [{"port": "http"}]}
            assert to_admin["ports"] == [{"port": "admin"}]
            assert to_admin["from"]


def test_network_policy_allows_redis_of_each_kind():
    own = {"networkPolicy": {"egress": [{"ports": [{"port": 4318}]}], "admin": [], "clients": [{"podSelector": {}}]}}
    nodes = {"redis_nodes": ["a:6379", "b:7000", "[fd00::1]:6379"]}
    sentinels = {"redis_nodes": ["a:26379", "b:7000"], "redis_sentinel": "main"}
    redis = [{"store": "redis", "settings": each} for each in (nodes, sentinels)]
    found = render_all([json.dumps(merged(IMAGE, each)) for each in (own, *redis)])
    spec, *others = [each.one("NetworkPolicy")["spec"] for each in found]
    for each, ports in zip(others, ([6379, 7000], [6379, 7000, 26379]), strict=True):
        _, to_redis = each["egress"]
        assert sorted(port["port"] for port in to_redis["ports"]) == ports
    assert spec["ingress"] == [{"ports": [{"port": "http"}], "from": [{"podSelector": {}}]}]
    assert spec["egress"][1:] == own["networkPolicy"]["egress"]


def test_pods_meet_the_restricted_security_standard(releases):
    for _, release in releases:
        pod, container = release.pod, release.container
        assert pod["securityContext"].items() >= {"runAsNonRoot": True, "runAsUser": 10001, "fsGroup": 10001}.items()
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        rights = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
        assert container["securityContext"] == rights | {"capabilities": {"drop": ["ALL"]}}
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & {*pod}
        allowed = {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}
        assert {kind for each in pod["volumes"] for kind in each if kind != "name"} <= allowed


def test_server_has_time_to_stop(releases):
    least = json.loads((CHART / "values.schema.json").read_text())["properties"]["terminationGracePeriodSeconds"]
    (longest,) = (setting.type.allowed for setting in SETTINGS if setting.name == "drain_delay_ms")
    delay_s = int(re.findall(r"\d+", longest.replace(",", ""))[-1]) / 1000
    closing_s = max(LAST_REQUEST_S, CLOSE_WEBSOCKETS_S) + DRAIN_LIMIT_S + 2 * CLOSE_LIMIT_S
    assert least["minimum"] > delay_s + closing_s
    for values, release in releases:
        assert release.pod["terminationGracePeriodSeconds"] >= least["minimum"]
        # Long enough for a readiness probe to fail and the proxies to notice. A single server has no successor.
        assert settings_of(release).drain_delay_ms == (5000 if values.get("store") == "redis" else 0)
    probe = releases[0][1].container["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] < 5


def test_defaults_fit_the_settings():
    """Memory, volume and versions. A server that is open to all origins is a warning."""
    release = render(json.dumps(IMAGE))
    settings = settings_of(release)
    connections = settings.max_connections * CONNECTION_BYTES + settings.max_unsent_bytes * 5 // 4
    limit = release.container["resources"]["limits"]["memory"]
    assert int(limit.removesuffix("Gi")) << 30 >= connections + MAX_UNFINISHED_BYTES + SERVER_BYTES
    size = release.one("PersistentVolumeClaim")["spec"]["resources"]["requests"]["storage"]
    assert int(size.removesuffix("Gi")) << 30 >= 2 * Settings().max_store_bytes
    version = json.loads((ROOT / "tornado_signal/web/package.json").read_text())["version"]
    chart = (CHART / "Chart.yaml").read_text()
    stated = dict(re.findall(r'^(version|appVersion): "?([^"\n]+)"?$', chart, re.MULTILINE))
    assert stated == {"version": version, "appVersion": version}
    assert release.container["image"] == f"registry.example.com/tornado-signal:{version}"
    assert "All origins may use the server" in release.notes


def test_ingress_is_configured_like_nginx():
    annotations = render(EXAMPLES / "leveldb.yaml").one("Ingress")["metadata"]["annotations"]
    ours = {name.removeprefix("nginx.ingress.kubernetes.io/"): value for name, value in annotations.items()}
    text = (ROOT / "systemd/nginx.conf").read_text()
    for annotation, directive in DIRECTIVES.items():
        (value,) = {*re.findall(rf"^ *{directive} (.*);", text, re.MULTILINE)}
        value = {"off": "false"}.get(value, value) if annotation == "enable-access-log" else value
        assert ours.pop(annotation) == re.sub(r"^(\d+)s$", r"\1", value), annotation
    assert [*ours] == ["proxy-send-timeout"]
    longest_silence_s = max(MAX_WAIT_S, HEARTBEAT_S, PING_S, SILENT_S)
    for name in ("proxy-read-timeout", "proxy-send-timeout"):
        assert int(annotations[f"nginx.ingress.kubernetes.io/{name}"]) > longest_silence_s


REFUSED = {
    "no image": ({}, "image.repository is empty: set it to the name"),
    "unknown value": (IMAGE | {"replicaCount": 3}, "replicaCount"),
    "unknown nested value": (merged(IMAGE, {"image": {"name": "x"}}), "name"),
    "unknown store": (IMAGE | {"store": "sqlite"}, "store"),
    "two servers on LevelDB": (IMAGE | {"replicas": 2}, "replicas"),
    "autoscaling on LevelDB": (IMAGE | {"autoscaling": {"enabled": True}}, "autoscaling"),
    "Redis without nodes": (IMAGE | {"store": "redis"}, "redis_nodes"),
    "Ingress without trusted proxies": (
        IMAGE | {"ingress": {"enabled": True, "hosts": ["a.example.com"]}},
        "trusted_proxies",
    ),
    "Ingress without a host": (
        IMAGE | {"ingress": {"enabled": True}, "settings": {"trusted_proxies": "none"}},
        "hosts",
    ),
    "a setting that the manifests depend on": (IMAGE | {"settings": {"admin_port": 9000}}, "admin_port"),
    "a variable in place of a setting": (IMAGE | {"settings": {"TORNADO_SIGNAL_DEMO": False}}, "TORNADO_SIGNAL_DEMO"),
    "a setting as a variable": (IMAGE | {"env": [{"name": "TORNADO_SIGNAL_PORT", "value": "1"}]}, "env"),
    "a file as a setting": (IMAGE | {"settings": {"turn_secret_file": "/x"}}, "turn_secret_file"),
    "a setting that is an object": (IMAGE | {"settings": {"demo": {"enabled": True}}}, "demo"),
    "a file from nowhere": (IMAGE | {"files": {"turn_secret_file": {"key": "x"}}}, "turn_secret_file"),
    "a file from two places": (IMAGE | {"files": {"redis_ca": {"secret": "a", "configMap": "b"}}}, "redis_ca"),
    "a key outside its directory": (IMAGE | {"files": {"redis_ca": {"secret": "a", "key": "../b"}}}, "redis_ca"),
    "too little time to stop": (IMAGE | {"terminationGracePeriodSeconds": 10}, "terminationGracePeriodSeconds"),
    "a volume of no size": (IMAGE | {"persistence": {"size": "8"}}, "size"),
    "a broken digest": (IMAGE | {"image": {"repository": "a", "digest": "sha256:1"}}, "digest"),
}


def test_wrong_values_are_refused():
    found = render_all([json.dumps(values) for values, _ in REFUSED.values()])
    for (case, (_, named)), error in zip(REFUSED.items(), found, strict=True):
        assert isinstance(error, Rejected), f"{case} is accepted"
        assert named in str(error), case


def test_settings_reach_the_server_unchanged():
    settings = {"allowed_origins": ["https://*.example.com", "https://b.example"], "address": "::", "demo": False}
    settings |= {"max_store_bytes": 4_294_967_297, "max_bytes_per_address": 2**40, "log_format": "text"}
    settings |= {"drain_delay_ms": 100, "auth_issuer": "a\"b'c$(d)`e`{{f}}"}
    files = {"auth_keys": {"secret": "keys"}}  # the issuer of tokens has no effect without
    both = [IMAGE | {"files": files, "settings": settings | other} for other in ({}, {"demo": True})]
    release, other = render_all([json.dumps(each) for each in both])
    found = settings_of(release)
    for name in ("max_store_bytes", "max_bytes_per_address", "demo", "log_format", "drain_delay_ms"):
        assert getattr(found, name) == settings[name]
    assert found.address == ("::",)
    assert found.auth_issuer == settings["auth_issuer"]
    assert sorted(found.allowed_origins.entries) == sorted(settings["allowed_origins"])
    (header,) = release.container["readinessProbe"]["httpGet"]["httpHeaders"]
    assert header == {"name": "Origin", "value": "https://probe.example.com"}
    annotations = [each.one("Deployment")["spec"]["template"]["metadata"]["annotations"] for each in (release, other)]
    assert annotations[0] != annotations[1], "the pods would keep the old settings"


def test_every_setting_can_be_given():
    owned = {"store", "port", "admin_port", "data_dir"}
    files = {setting.name for setting in SETTINGS if setting.name.endswith("_file")}
    given = {setting.name: str(setting.default) for setting in SETTINGS if setting.name not in owned | files}
    # Without these, their secrets are refused.
    given |= {"redis_sentinel": "primary", "webhook_url": "https://app.example.com"}
    given |= {"turn_servers": "turn:turn.example.com", "turn_provider": "twilio:account"}
    mounted = {name: {"secret": "all", "key": "key"} for name in files}
    release = render(json.dumps(IMAGE | {"settings": given, "files": mounted}))
    assert {*release.variables} == {setting.variable for setting in SETTINGS}
    settings_of(release)


def mount(release, secrets, folder):
    """Write files as a kubelet mounts them, and return the variables of a pod with its paths inside `folder`.

    `secrets` has the contents of each Secret and ConfigMap by key.
    """
    places = {each["name"]: each["mountPath"] for each in release.container["volumeMounts"]}
    for volume in release.pod["volumes"]:
        place = folder / places[volume["name"]].removeprefix("/")
        place.mkdir(parents=True)
        source = volume.get("secret") or volume.get("configMap")
        if source is None:
            continue
        contents = secrets[source.get("secretName") or source["name"]]
        chosen = [(each["key"], each["path"]) for each in source.get("items", ())] or [(key, key) for key in contents]
        (place / "..2026_01_01").mkdir()
        (place / "..data").symlink_to("..2026_01_01")
        for key, path in chosen:
            (place / "..2026_01_01" / path).write_text(contents[key])
            (place / path).symlink_to(f"..data/{path}")
    roots = ("/etc/tornado-signal", "/data/")
    moved = {name: value for name, value in release.variables.items() if value.startswith(roots)}
    return release.variables | {name: str(folder / value.removeprefix("/")) for name, value in moved.items()}


def probe_all(release, server):
    urls = {"http": server.url, "admin": server.admin_url}
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    probes = {name: each["httpGet"] for name, each in release.container.items() if name.endswith("Probe")}
    assert sorted(probes) == ["livenessProbe", "readinessProbe", "startupProbe"]
    for probe in probes.values():
        scheme, _, host = urls[probe["port"]].partition("://")
        assert scheme == probe.get("scheme", "HTTP").lower()
        headers = {each["name"]: each["value"] for each in probe.get("httpHeaders", ())}
        request = urllib.request.Request(f"{scheme}://{host}{probe['path']}", headers=headers)
        with urllib.request.urlopen(request, timeout=BOUND_S, context=context) as response:
            assert response.status == 200
    return context


# Ports and addresses of a test's own, because several run on one machine.
LOCAL = {f"TORNADO_SIGNAL_{name}ADDRESS": "127.0.0.1" for name in ("", "ADMIN_")}
LOCAL |= {f"TORNADO_SIGNAL_{name}PORT": "0" for name in ("", "ADMIN_")}


def test_server_runs_with_leveldb_and_secrets(tmp_path):
    """Every kind of secret is read from where the chart mounts it, and each probe succeeds."""
    certificate, key = make_pair(tmp_path, "pair")
    kept = {name: each for name, each in FILES.items() if name != "redis_ca"}
    settings = {"turn_servers": "turn:turn.example.com", "allowed_origins": "https://*.example.com"}
    release = render(json.dumps(IMAGE | {"files": kept, "settings": settings}))
    secrets = {
        "keys": {"backend.secret": "s" * 32, "other.secret": base64.b64encode(bytes(48)).decode()},
        "admin": {"token": "t" * 32},
        "turn": {"secret": "u" * 32},
        "certificate": {"tls.crt": Path(certificate).read_text(), "tls.key": Path(key).read_text()},
    }
    variables = mount(release, secrets, tmp_path / "root") | LOCAL
    done = run("serve", "--check", **variables)
    assert done.returncode == 0, done.stderr
    with Server(port=None, **variables) as server:
        context = probe_all(release, server)
        public = urllib.request.Request(f"{server.url}/metrics", headers={"Origin": "https://a.example.com"})
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(public, timeout=BOUND_S, context=context)
        assert server.stop() == 0
    assert (tmp_path / "root/data/sessions/CURRENT").exists()


def test_servers_share_sessions_with_the_values_for_redis(tmp_path, redis_server):
    redis = redis_server("--requirepass", "secret", "--appendonly", "yes", kind="valkey", password="secret")
    release = render(EXAMPLES / "redis.yaml")
    assert len(release.variables["TORNADO_SIGNAL_REDIS_NODES"].split(",")) == 3
    secrets = {"tornado-signal": {"redis-password": "secret\n"}}
    # The example is for nodes with replicas.
    variables = mount(release, secrets, tmp_path / "root") | LOCAL
    variables |= {"TORNADO_SIGNAL_REDIS_NODES": redis.address, "TORNADO_SIGNAL_DURABILITY": "fsync"}
    variables |= {"TORNADO_SIGNAL_DRAIN_DELAY_MS": "0"}
    variables["TORNADO_SIGNAL_ALLOWED_ORIGINS"] += f",{ORIGIN}"
    done = run("serve", "--check", **variables)
    assert done.returncode == 0, done.stderr
    with Server(port=None, **variables) as one, Server(port=None, **variables) as other:
        for server in (one, other):
            probe_all(release, server)
        code = one.offer("lobby")
        assert other.codes("lobby") == [code]
        assert (one.stop(), other.stop()) == (0, 0)


def test_documented_commands_name_what_exists():
    """The objects have the names of the release `signal`, and Secrets the keys that the values expect."""
    import yaml

    text = pages()["kubernetes"]
    release = render(EXAMPLES / "redis.yaml")
    commands = [line for language, block in all_blocks(text) if language == "sh" for line in block.splitlines()]
    assert {line.split()[0] for line in commands} == {"podman", "helm", "kubectl", "curl"}
    charts = {line.split()[3] for line in commands if line.startswith("helm")}
    assert {ROOT / chart for chart in charts} == {CHART}
    assert {line.split()[2] for line in commands if line.startswith("helm")} == {"signal"}
    (secret,) = (line.split() for line in commands if line.startswith("kubectl"))
    values = yaml.safe_load((EXAMPLES / "redis.yaml").read_text())["files"]["redis_password_file"]
    assert secret[-2:] == [values["secret"], f"--from-file={values['key']}"]
    (image,) = {line.split()[-1] for line in commands if line.startswith("podman push")}
    assert image == release.container["image"]
    named = {*re.findall(r"`(?:kubectl rollout restart deployment/)?(signal-[a-z-]+)`", text)}
    named -= {release.one("Ingress")["spec"]["tls"][0]["secretName"]}
    assert named == {release.one("Deployment")["metadata"]["name"], release.all("Service")[0]["metadata"]["name"]}
    (restart,) = re.findall(r"rollout restart deployment/([a-z-]+)", text)
    assert restart == release.one("Deployment")["metadata"]["name"]
    assert "All origins" not in release.notes
