"""Clients generated from /openapi.json are well typed and work with a real server.

/asyncapi.json conforms to its specification.
"""

import json
import shutil
import sys

import jsonschema_rs
import pytest
from support import npm_package
from support.checkout import run
from support.command import Server
from support.paths import TESTS

from tornado_signal.http import openapi
from tornado_signal.service.operations import declare
from tornado_signal.settings.settings import Settings
from tornado_signal.websocket.asyncapi import make_asyncapi

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SOURCES = TESTS / "generated"
# A media type that the generator does not know as text.
CONFIG = """\
content_type_overrides:
  application/typescript: text/plain
post_hooks: []
"""
RUN = 'const {main} = await import("./out/program.js"); await main(...process.argv.slice(1));'


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("generated")
    (path / "secret").write_text("an unknown secret")
    stun, turn = "stun:stun.example:3478", "turn:turn.example:3478"
    ice = ("--stun-servers", stun, "--turn-servers", turn, "--turn-secret-file", path / "secret")
    with Server("--data-dir", path / "data", "--durability", "os", *ice) as started:
        yield started


@pytest.fixture(scope="module")
def node_modules():
    return npm_package.node_modules()


@pytest.mark.needs("openapi_python_client", "mypy")
def test_generated_python_client_is_typed_and_works(server, tmp_path):
    (tmp_path / "config.yml").write_text(CONFIG)
    options = ["--meta", "none", "--output-path", "signal_api", "--config", "config.yml", "--fail-on-warning"]
    url = f"{server.url}/openapi.json"
    run(sys.executable, "-m", "openapi_python_client", "generate", "--url", url, *options, cwd=tmp_path)
    made = {path.stem.replace("_", "") for path in tmp_path.glob("signal_api/api/*/*.py")}
    paths = openapi.make_document(declare(Settings()), {})["paths"].values()
    assert made >= {operation["operationId"].lower() for path in paths for operation in path.values()}
    shutil.copy(SOURCES / "program.py", tmp_path)
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\n")
    run(sys.executable, "-m", "mypy", "program.py", "signal_api", cwd=tmp_path)
    run(sys.executable, "-W", "error", "program.py", server.url, "https://python.example", cwd=tmp_path)


def test_generated_typescript_client_is_typed_and_works(server, node_modules, tmp_path):
    for name in ("package.json", "program.ts"):
        shutil.copy(SOURCES / name, tmp_path)
    (tmp_path / "node_modules").symlink_to(node_modules)
    generate = ("node", node_modules / "openapi-typescript/bin/cli.js", f"{server.url}/openapi.json")
    assert "warn" not in run(*generate, "-o", "schema.d.ts", cwd=tmp_path).lower()
    flags = "--strict --noUncheckedIndexedAccess --exactOptionalPropertyTypes --target ES2022 --module NodeNext"
    flags += " --lib ES2022,DOM,DOM.Iterable --outDir out program.ts schema.d.ts"
    run("node", node_modules / "typescript/bin/tsc", *flags.split(), cwd=tmp_path)
    run("node", "--input-type=module", "--eval", RUN, server.url, "https://typescript.example", cwd=tmp_path)


def test_asyncapi_is_valid_by_its_schema(node_modules):
    schema = json.loads((node_modules / "@asyncapi/specs/schemas/3.0.0.json").read_text())
    document = json.loads(json.dumps(make_asyncapi(declare(Settings()))))
    validator = jsonschema_rs.validator_for(schema)
    assert [error.message for error in validator.iter_errors(document)] == []
    del document["info"]["title"]
    assert not validator.is_valid(document)
