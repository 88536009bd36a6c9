"""The package keeps to the picture: who may know whom, and who may touch the world."""

import ast
import sys
from pathlib import Path

import pytest

import tornado_signal

PACKAGE = Path(tornado_signal.__file__).parent

# Each file, or folder of files, with what it may import of the package and of other packages. A new file needs a
# line here. Left of the middle (`handlers`, `transport`) nobody knows LevelDB, right of it (`store` and what is
# under it) nobody knows HTTP, and below these nobody does I/O. `watches` and `cursors`, by which both sides tell
# and are told what is new, know of neither.
MAY_IMPORT = {
    "errors": "",
    "session": "errors",
    "layout": "errors session",
    "changes": "layout session",
    "cursors": "errors",
    "watches": "",
    "index": "sortedcontainers",
    "fair": "",
    "quotas": "errors index",
    "ice": "errors settings",
    "wire": "errors session orjson",
    "schemas": "errors wire",
    "openapi": "schemas wire",
    "assets": "",
    "forwarded": "",
    "turns": "",
    "clock": "",
    "metrics": "",
    "groups": "changes",
    "lag": "metrics",
    "leveldb": "plyvel plyvel_next",
    "logs": "",
    "gates": "session",
    "records": "errors gates index layout session",
    "check": "index layout session",
    "tables": "",
    "database": "changes directory errors files groups layout leveldb metrics space",
    "files": "errors",
    "space": "errors files",
    "directory": "errors files layout leveldb tables",
    "reader": "check database errors gates index layout metrics records session space turns watches",
    "writer": "changes errors gates layout quotas reader records session space",
    "store": "changes errors layout quotas records session space writer",
    "sweeper": "clock errors store",
    "transport": "transport httptools tornado",
    "backup": "errors",
    "census": "layout",
    "salvage": "layout session",
    "rescue": "backup census check directory errors files layout leveldb records salvage tables",
    "remote": "errors settings",
    "care": "backup census config directory errors files kinds leveldb remote rescue settings",
    "handlers": "assets handlers backup clock cursors errors fair forwarded ice limits metrics openapi reader session "
    "settings store watches wire prometheus_client tornado",
    "kinds": "",
    "limits": "errors forwarded settings",
    "settings": "kinds",
    "config": "kinds settings",
    "sockets": "errors kinds tornado",
    "tls": "errors",
    "notify": "",
    "activation": "errors",
    "server": "activation clock errors handlers ice lag limits notify quotas settings sockets space store sweeper tls "
    "transport package tornado",
    "client": "client aiortc httpx",
    "commands": "client commands config errors kinds shtab",
    "__main__": "care commands config errors logs server package uvloop",
    "__init__": "_commit",
    "_build": "setuptools",
}
# Everything of the standard library that these may use: nothing in it reads or writes anything.
PURE = {
    "limits",
    "quotas",
    "gates",
    "errors",
    "metrics",
    "session",
    "layout",
    "changes",
    "index",
    "wire",
    "schemas",
    "openapi",
    "cursors",
    "forwarded",
    "backup",
    "census",
}
PURE_MODULES = {"array", "bisect", "collections", "dataclasses", "enum", "functools", "hashlib", "heapq", "hmac"}
PURE_MODULES |= {"ipaddress", "itertools", "json", "math", "re", "struct", "typing", "urllib", "zlib"}
IO_BUILTINS = {"open", "print", "input"}

FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "_commit.py")


def room(path):
    """The line of the table that a file falls under: its own, or its folder's."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(path):
    """What a file imports, wherever in it: modules of the package as `.name`, others by their first name."""
    folder = path.relative_to(PACKAGE).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            within = ["tornado_signal", *folder[: len(folder) + 1 - node.level]] if node.level else []
            source = ".".join([*within, *filter(None, [node.module])])
            # `from . import name` imports a module if there is one of that name, else something of the package.
            names = [f"{source}.{alias.name}" for alias in node.names] if source == "tornado_signal" else [source]
        else:
            continue
        for name in names:
            first, _, rest = name.partition(".")
            if first != "tornado_signal":
                yield first
            else:
                found = rest.split(".")[0]
                is_module = (PACKAGE / found).is_dir() or (PACKAGE / f"{found}.py").exists() or found == "_commit"
                yield f".{found}" if found and is_module else ".package"


def allowed(name):
    """What the table allows, in the words of `imports`."""
    words = MAY_IMPORT[name].split()
    own = {*MAY_IMPORT, "package", "_commit"}
    return {f".{word}" if word in own else word for word in words}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_file_imports_what_the_picture_allows(path):
    """No file knows more of the package, or of other packages, than its line of the table says."""
    name = room(path)
    found = set(imports(path))
    beyond = {each for each in found if each.startswith(".") or each not in sys.stdlib_module_names}
    assert beyond <= allowed(name), f"{name} must not import {sorted(beyond - allowed(name))}"
    if name in PURE:
        assert {each for each in found if each in sys.stdlib_module_names} <= PURE_MODULES
        called = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        assert not called & IO_BUILTINS


def test_the_table_has_no_line_too_many():
    """Every line of the table stands for a file or folder that is there, and every word of it for something used."""
    assert {room(path) for path in FILES} == set(MAY_IMPORT)
    for name in MAY_IMPORT:
        used = {each for path in FILES if room(path) == name for each in imports(path)}
        assert allowed(name) <= used, f"{name} does not need {sorted(allowed(name) - used)}"


def test_the_table_has_no_circle():
    """Outside a folder of their own no two files need each other."""
    needs = {name: {each[1:] for each in allowed(name) if each.startswith(".")} - {name} for name in MAY_IMPORT}
    while needs:
        free = {name for name, need in needs.items() if not need & set(needs)}
        assert free, f"a circle among {sorted(needs)}"
        needs = {name: need for name, need in needs.items() if name not in free}
