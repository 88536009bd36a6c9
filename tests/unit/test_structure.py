"""The layers of the packages: which module may import which, and which modules perform no I/O."""

import ast
import functools
import graphlib
import re
import sys
from pathlib import Path

import pytest
from support.paths import TESTS
from support.searches import some

import tornado_signal
import tornado_signal_client

# The folders of the packages, with the names of the client's modules below `client`.
PACKAGES = {
    "tornado_signal": (Path(tornado_signal.__file__).parent, ""),
    "tornado_signal_client": (Path(tornado_signal_client.__file__).parent, "client"),
}

# Each folder or top-level module, with what it may import from its package and from other packages. Modules above
# `stores` do not know the engines, except the one that checks their files.
MAY_IMPORT = {
    "errors": "",
    "session": "errors",
    "metrics": "",
    "redis": "errors metrics system.loop hiredis",
    "stores": "errors settings stores.leveldb stores.redis system",
    "stores.watches": "system.loop",
    "stores.leveldb": (
        "errors metrics session settings stores.watches system system.loop plyvel plyvel_next sortedcontainers"
    ),
    "stores.redis": "errors metrics redis session settings stores.watches system system.loop",
    "relay": "errors redis system.loop",
    "auth": "errors settings system system.loop cryptography jwt",
    "limits": "errors settings",
    "service": (
        "auth errors limits metrics session settings stores stores.watches system "
        "system.hourly system.lifecycle orjson tornado"
    ),
    "service.client_connection": "limits service transport",
    "http": "auth errors limits service settings system tornado",
    "http.upgrade": "auth errors http tornado transport",
    "websocket": "errors service service.client_connection session system.loop transport",
    "websocket.routes": "http http.upgrade service websocket",
    "protocols": ("errors http http.upgrade relay service service.client_connection transport btclib_secp256k1 orjson"),
    "operator": (
        "auth errors limits metrics relay service service.client_connection session settings stores "
        "system system.lifecycle system.loop transport jwt prometheus_client shtab tornado"
    ),
    "operator.check": "errors settings stores stores.leveldb stores.redis system",
    "tracing": "errors service settings package opentelemetry",
    "outgoing": "errors metrics service settings system tornado",
    "transport": "system.hourly system.loop httptools tornado",
    "settings": "",
    "system.hourly": "",
    "system.loop": "",
    "system.lifecycle": "",
    "system": "errors settings tornado",
    "process": (
        "auth errors http limits operator service settings stores "
        "system system.lifecycle system.loop transport outgoing protocols relay tracing websocket "
        "websocket.routes package tornado"
    ),
    "process.worker": "process settings stores.redis system uvloop",
    "client": "aiortc cryptography httpx websockets",
    "client.cli": "client aioice shtab",
    "client.__main__": "client.cli",
    "__main__": "operator process settings system package uvloop",
    "__init__": "_version",
}
# The parts of the standard library that these modules use perform no I/O.
PURE = {"errors", "session", "metrics", "limits.forwarded", "limits.per_address"}
PURE |= {"service.parameters", "service.wire", "service.schemas", "stores.leveldb.layout"}
PURE_MODULES = {"array", "base64", "bisect", "collections", "dataclasses", "enum", "functools", "hashlib", "heapq"}
PURE_MODULES |= {"hmac", "ipaddress", "itertools", "json", "math", "re", "struct", "typing", "urllib", "zlib"}

READERS = {"client.http", "client.rpc", "operator.admin", "operator.health"}
READERS |= {"redis.connections", "outgoing.endpoint", "system.fetching"}
READERS |= {"operator.workers"}  # only the responses of the server's own processes

FILES = some(
    sorted(path for folder, _ in PACKAGES.values() for path in folder.rglob("*.py") if path.name != "_version.py")
)


@functools.cache
def parsed(path):
    return ast.parse(path.read_text())


@pytest.fixture(scope="module", autouse=True)
def forgotten():
    """The trees are freed. Otherwise each collection of garbage in a later test would walk through 350,000 objects."""
    yield
    parsed.cache_clear()


def package_of(path):
    """Return the name of a file's package, the file's path in there, and the prefix of its modules."""
    return next((name, path.relative_to(at), short) for name, (at, short) in PACKAGES.items() if at in path.parents)


def module(path):
    """Return the name of a file's module within its package. A folder's `__init__` has the folder's name."""
    _, within, prefix = package_of(path)
    parts = [*filter(None, [prefix]), *within.with_suffix("").parts]
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


MODULES = {module(path): path for path in FILES}


def layer(name):
    """Return the entry of the table for a module: its longest listed prefix."""
    while name not in MAY_IMPORT and "." in name:
        name = name.rpartition(".")[0]
    return name


def imports(path):
    """Yield all imports of a file: modules of both packages as `.name`, others by their top-level name."""
    package, within, _ = package_of(path)
    folder = within.parent.parts
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = [package, *folder[: len(folder) + 1 - node.level]] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            names = [(source, alias.name) for alias in node.names]
        else:
            continue
        for source, name in names:
            first, _, rest = source.partition(".")
            if first not in PACKAGES:
                yield first
                continue
            rest = ".".join(filter(None, [PACKAGES[first][1], rest]))
            if name is not None and (f"{rest}.{name}".lstrip(".") in MODULES or name == "_version"):
                yield f".{rest}.{name}".replace("..", ".")
            else:
                yield f".{rest}" if rest else ".package"


def layers_used(path):
    """Yield the entries of the table that a file imports, except its own, and other packages."""
    own = layer(module(path))
    for imported in imports(path):
        if imported[1:] in ("package", "_version"):
            yield imported
        elif not imported.startswith("."):
            if imported not in sys.stdlib_module_names:
                yield imported
        elif layer(imported[1:]) != own:
            yield f".{layer(imported[1:])}"


def allowed(name):
    own = {*MAY_IMPORT, "package", "_version"}
    return {f".{word}" if word in own else word for word in MAY_IMPORT[name].split()}


def test_files_import_only_what_the_table_allows():
    """Nothing may import an entry point, and the server and the client not each other."""
    for path in FILES:
        name = layer(module(path))
        forbidden = set(layers_used(path)) - allowed(name)
        assert not forbidden, f"{name} must not import {sorted(forbidden)}"
        if {name, module(path)} & PURE:
            # These convert the text of an address.
            assert set(re.findall(r"\bsocket(?:\.| import )(\w+)", path.read_text())) <= {"AF_INET", "inet_pton"}
            standard = {imported for imported in imports(path) if imported in sys.stdlib_module_names}
            assert standard - {"socket"} <= PURE_MODULES
            assert not names_in(parsed(path)) & {"open", "print", "input"}


def test_responses_are_read_in_few_places():
    """Other modules call these readers, which are tested with a malicious server."""
    calls = "httpclient|urllib\\.request|open_connection|TCPClient|create_connection"
    clients = re.compile(rf"{calls}|http\.client\.\w*Conn")
    readers = {module(path) for path in FILES if clients.search(path.read_text())}
    assert readers == READERS


def test_only_the_process_assigns_settings_of_other_objects():
    for path in some(path for path in FILES if not module(path).startswith("process")):
        targets = (node for node in ast.walk(parsed(path)) if isinstance(node, ast.Attribute))
        stored = (node for node in targets if node.attr == "settings" and isinstance(node.ctx, ast.Store))
        replaced = {ast.unparse(node) for node in stored}
        assert replaced <= {"self.settings"}


def test_engines_are_distinguished_only_inside_the_stores():
    """Few modules may import an engine. None asks whether a store has an attribute."""
    asks = re.compile(r"\b[gh](?:et|as)attr\((?:\w+\.)*store\b")
    assert [name for name, path in MODULES.items() if asks.search(path.read_text())] == []
    assert asks.search("getattr(site.service.store, 'use_passwords', None)")


def test_table_has_no_superfluous_entry():
    assert {layer(name) for name in MODULES} == set(MAY_IMPORT)
    for name in MAY_IMPORT:
        used = {dependency for path in FILES if layer(module(path)) == name for dependency in layers_used(path)}
        assert allowed(name) <= used, f"{name} does not need {sorted(allowed(name) - used)}"


def test_sizes_of_rooms_are_stated():
    root = PACKAGES["tornado_signal"][0]
    picture = (TESTS.parent / "docs" / "design.md").read_text().partition("\n## From the socket")[0].split("```")[3]
    stated = {room: int(lines.replace(",", "")) for room, lines in re.findall(r"([a-z]+) +([0-9,]+)", picture)}
    assert stated.keys() == {init.parent.name for init in root.glob("*/__init__.py")}
    for room, lines in stated.items():
        size = sum(path.read_text().count("\n") for path in (root / room).rglob("*.py"))
        assert abs(size - lines) <= max(150, lines / 3), f"{room} has {size} lines"


def test_no_import_cycles():
    def own(dependencies):
        return {each[1:] for each in dependencies if each[0] == "."}

    graphlib.TopologicalSorter({name: own(allowed(name)) for name in MAY_IMPORT}).prepare()
    graphlib.TopologicalSorter({name: own(imports(path)) - {name} for name, path in MODULES.items()}).prepare()


SEARCHES = {"findall", "finditer", "glob", "iterdir", "rglob", "splitlines"}


def is_search(expression):
    """Return whether an expression can be empty after a change of what it reads, or on another machine."""
    functions = [node.func for node in ast.walk(expression) if isinstance(node, ast.Call)]
    called = {node.attr for node in functions if isinstance(node, ast.Attribute)}
    filtered = any(each.ifs for each in getattr(expression, "generators", ()))
    return "some" not in names_in(expression) and (bool(called & SEARCHES) or filtered)


def names_in(node):
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def loops_over_nothing(source):
    """Return the loops of tests over a search that contain assertions and may run zero times.

    A search is passed to `some`, or an assertion elsewhere in the test says something about it.
    """
    tree = ast.parse(source)
    for test in (node for node in tree.body if getattr(node, "name", "").startswith("test_")):
        nodes = [*ast.walk(test)]
        loops = [node for node in nodes if isinstance(node, ast.For)]
        assigned = [node for node in (*tree.body, *nodes) if isinstance(node, ast.Assign)] if loops else []
        searched = {name for node in assigned if is_search(node.value) for name in names_in(node.targets[0])}
        for loop in loops:
            asserts = [node for node in ast.walk(loop) if isinstance(node, ast.Assert)]
            literal = isinstance(loop.iter, ast.Tuple | ast.List) and loop.iter.elts
            names = names_in(loop.iter) & searched
            if not asserts or literal or "some" in names_in(loop.iter) or not (names or is_search(loop.iter)):
                continue
            others = [node for node in nodes if isinstance(node, ast.Assert) and node not in asserts]
            text = ast.unparse(loop.iter)
            if not any(names & names_in(each) or text in ast.unparse(each) for each in others):
                yield f"{test.name}: {text}"


def test_loops_over_searches_fail_if_nothing_is_found():
    found = {str(path.relative_to(TESTS)): [*loops_over_nothing(path.read_text())] for path in TESTS.rglob("test_*.py")}
    assert {path: loops for path, loops in found.items() if loops} == {}
    loop = "def test_x():\n    for each in {}:\n        assert each"
    assert [*loops_over_nothing(loop.format("path.glob('*')"))] == ["test_x: path.glob('*')"]
    assert [*loops_over_nothing(loop.format("some(path.glob('*'))"))] == []
