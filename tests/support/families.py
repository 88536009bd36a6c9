"""Families of slow tests that depend on few files. `.ci/run` leaves out those whose files have not changed.

The whole server runs in many of these tests. Of it a family names the files whose faults only its tests would show.
Faults of the others fail tests that always run.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from .checkout import run
from .paths import ROOT, TESTS

PASSED = TESTS / "families.json"
"""The hash of each family's files when its tests last passed."""
COMMON = ["setup.cfg", "pyproject.toml", "clients/python/pyproject.toml", "tests/debian-packages.txt"]
COMMON += ["tests/environment.sh", "tests/support/families.py"]
LIBRARIES = "tests/libraries tests/support/libraries.py tests/bench/npm.py tornado_signal/websocket "
LIBRARIES += "tornado_signal/transport/websocket.py "
# How each family's tests begin, and the other files that they depend on, as patterns of git.
FAMILIES = {
    "release": (
        "system/test_artefacts.py system/test_release_workflow.py process/test_packaging.py",
        ".github .git* CONTRIBUTING.md LICENSE tests/release-* tests/support/npm_package.py tests/support/pythons.py "
        "clients/python/*.md tornado_signal/__init__.py tornado_signal/web/package.json",
    ),
    "generated clients": (
        "system/test_generated_clients.py",
        "tests/generated tornado_signal/http/openapi.py tornado_signal/service/*s.py",
    ),
    "chart": (
        "system/test_kubernetes.py",
        "examples/kubernetes docs/kubernetes.md tests/support/helm.py tornado_signal/settings",
    ),
    "containers": (
        "system/test_containers.py",
        "Containerfile .dockerignore compose*.yaml examples/containers docs/containers.md "
        "tornado_signal/__main__.py tornado_signal/settings",
    ),
    "systemd": (
        "system/test_systemd_real.py",
        "systemd docs/systemd.md tests/support/service_manager.py tornado_signal/process tornado_signal/system",
    ),
    "proxies": (
        "system/test_proxies.py",
        "systemd/*.conf systemd/Caddyfile systemd/haproxy.cfg docs/proxies.md examples/containers/Caddyfile "
        "examples/kubernetes/tornado-signal/values.yaml tests/support/proxies.py tests/support/service.py "
        "tornado_signal/transport tornado_signal/http tornado_signal/websocket tornado_signal/limits/forwarded.py "
        "tornado_signal/process/draining.py tornado_signal/service/nearby.py tornado_signal/service/schemas.py "
        "clients/python/tornado_signal_client",
    ),
    "pages behind proxies": (
        "browser/test_proxy_matrix.py browser/test_bare_proxies.py",
        "docs/proxies.md tests/support/proxies.py tests/support/forwarding.py tests/support/browsers.py "
        "tests/support/browser_fixtures.py tests/support/connect.html tests/support/demo.py tornado_signal/transport "
        "tornado_signal/http tornado_signal/websocket tornado_signal/limits/forwarded.py tornado_signal/web",
    ),
    "Prometheus": (
        "system/test_monitoring.py::test_prometheus system/test_monitoring.py::test_alerts_fire_in_prometheus",
        "systemd/monitoring docs/monitoring.md tests/system/alerts.yml tests/support/scraping.py "
        "tests/support/traffic.py tornado_signal/metrics.py tornado_signal/redis/topology.py tornado_signal/operator",
    ),
    "other languages": (
        "system/test_other_languages.py::test_peers",
        "examples/languages docs/other-languages.md tests/libraries tornado_signal/http tornado_signal/service",
    ),
    "clients of other protocols": (
        "system/test_node_clients.py::test_clients_of "
        "system/test_node_clients.py::test_databases system/test_node_clients.py::test_the_tests_of_p2pt",
        LIBRARIES + "tornado_signal/protocols tornado_signal/relay",
    ),
    "rooms in browsers": (
        "browser/test_room.py browser/test_room_python.py browser/test_room_nearby.py browser/test_messages.py "
        "browser/test_large_messages.py browser/test_dead_connections.py browser/test_nat.py "
        "browser/test_relayed_members.py browser/test_password.py browser/test_verification.py browser/test_moving.py "
        "browser/test_garbage.py browser/test_other_peers.py "
        "http/test_client_life.py::test_frozen http/test_client_life.py::test_new_member",
        "tests/browser/conftest.py tests/support/browser* tests/support/connect.html tests/support/networks.py "
        "tests/support/forked.py tests/support/forwarding.py tornado_signal/web "
        "tornado_signal/service tornado_signal/websocket clients/python/tornado_signal_client",
    ),
    "demo and operator's page": (
        "browser/test_demo.py browser/test_demo_check.py browser/test_demo_layout.py browser/test_demo_suspended.py "
        "browser/test_operator_page.py browser/test_pictures.py",
        "docs/operator-page.md docs/pictures tests/browser/conftest.py tests/support/browser* "
        "tests/support/demo.py tests/support/traffic.py tornado_signal/web tornado_signal/service "
        "tornado_signal/operator tornado_signal/websocket",
    ),
    "examples and recipes": (
        "browser/test_examples.py browser/test_recipes.py",
        LIBRARIES + "docs/recipes.md examples tests/browser/conftest.py tests/support/browser* "
        "tests/support/npm_package.py tornado_signal/web",
    ),
    "pages with other libraries": (
        "browser/test_libraries.py browser/test_peerjs_client.py",
        LIBRARIES
        + "examples/peerjs examples/webtorrent examples/y-webrtc README.md docs/proxies.md systemd/nginx.conf "
        "tests/browser/peerjs.html tests/support/browser*.py tests/support/proxies.py "
        "tornado_signal/protocols tornado_signal/relay",
    ),
    "module in Node.js": (
        "system/test_node_clients.py::test_members system/test_node_clients.py::test_editors "
        "system/test_node_clients.py::test_tokens_of_jose",
        LIBRARIES + "docs/recipes.md tests/support/node.py tornado_signal/web/client* tornado_signal/auth",
    ),
    "Pythons": (
        "system/test_pythons.py::test_older system/test_pythons.py::test_each "
        "system/test_pythons.py::test_installation system/test_pythons.py::test_client_installs "
        "system/test_pythons.py::test_other",
        "tests/support/pythons.py tornado_signal/__*__.py tornado_signal/stores/leveldb/binding.py",
    ),
    "several servers of other protocols": (
        "system/test_protocols_across_servers.py",
        "tornado_signal/protocols tornado_signal/relay tornado_signal/redis",
    ),
    "faults of Redis": (
        "process/test_redis_faults.py process/test_outages.py browser/test_cluster.py "
        "engine/redis/test_former_primary.py engine/redis/test_leases.py engine/redis/test_moving_slots.py",
        "docs/scaling.md tests/engine/conftest.py tests/faults tests/support/forwarding.py "
        "tests/support/networks.py tests/support/redis* tests/support/stores.py tornado_signal/redis "
        "tornado_signal/relay tornado_signal/stores",
    ),
    "malicious servers": (
        "http/test_malicious_server.py process/test_nonsense_for_commands.py",
        "tests/support/malicious.py tests/support/node.py clients/python/tornado_signal_client tornado_signal/operator "
        "tornado_signal/system/terminal.py tornado_signal/web/client*",
    ),
    "full disks": (
        "system/test_disk_full.py",
        "tests/support/disks.py tests/support/writers.py tornado_signal/stores/*.py "
        "tornado_signal/stores/leveldb tornado_signal/operator/fullness.py",
    ),
    "clocks": (
        "system/test_clock_jumps.py",
        "tornado_signal/auth tornado_signal/process tornado_signal/stores tornado_signal/system "
        "tornado_signal/service/ice.py",
    ),
    "Tornado's tests": (
        "http/test_tornado_suite.py",
        "tests/support/tornado_suite.py tornado_signal/transport tornado_signal/websocket",
    ),
    "benchmark and soak": (
        "process/test_bench.py::test_callgrind process/test_soak.py",
        "tests/bench tests/soak tests/hostile/w*.py tornado_signal/settings tornado_signal/__main__.py",
    ),
    "runs of tests": (
        "process/test_runs.py::test_a_run process/test_runs.py::test_nothing",
        "tests/support/runs.py tests/support/keeper.py",
    ),
    "npm package": (
        "system/test_module.py",
        "LICENSE tests/build-client tests/generated tests/support/build_client.js tests/support/npm_package.py "
        "tests/bench/npm.py tornado_signal/web",
    ),
}


def tests_of(families: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"tests/{name}" for family in families for name in FAMILIES[family][0].split())


def patterns_of(family: str) -> list[str]:
    return [*COMMON, *(name.partition("::")[0] for name in tests_of([family])), *FAMILIES[family][1].split()]


def hashes() -> dict[str, str]:
    """Return the hash of each family's files as they are now, and of which kinds of files the packages consist."""
    tracked = run("git", "-C", ROOT, "ls-files", "-z", "--", "tornado_signal", "clients").split("\0")
    kinds = sorted({f"{Path(name).parent}/*{Path(name).suffix}" for name in tracked})
    return {family: _hash(family, kinds) for family in FAMILIES}


def _hash(family: str, kinds: list[str]) -> str:
    names = run("git", "-C", ROOT, "ls-files", "-z", "--", *patterns_of(family))
    digest = hashlib.sha256("\n".join(kinds).encode())
    for name in sorted({*names.split("\0")} - {""}):
        digest.update(f"{name}\0".encode() + hashlib.sha256((ROOT / name).read_bytes()).digest())
    return digest.hexdigest()


def unchanged() -> set[str]:
    """Return the families whose files have the hashes of the last time that they passed."""
    passed = json.loads(PASSED.read_text()) if PASSED.exists() else {}
    return {family for family, each in hashes().items() if passed.get(family) == each}


def record_passed() -> None:
    """Write the current hashes, because the tests of all families that were not left out have passed."""
    PASSED.write_text(json.dumps(hashes(), indent=1) + "\n")
