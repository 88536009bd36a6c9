"""The original clients and servers of other libraries, from npm, bundled for pages."""

import functools
import os

from . import npm_package
from .paths import TESTS
from .waiting import output, run_command

FOLDER = TESTS / "libraries"
HTML = '<!DOCTYPE html><title>libraries</title><script type="module" src="/libraries.js"></script>'
node_modules = functools.partial(npm_package.node_modules, FOLDER)


@functools.cache
def bundle(source=FOLDER / "page.js"):
    """Return a module with everything that it imports, as one module."""
    packages = node_modules()
    esbuild = packages / ".bin" / "esbuild"
    options = ["--bundle", "--format=esm", "--platform=browser", "--log-level=error", "--define:global=globalThis"]
    environ = os.environ | {"NODE_PATH": str(packages)}
    return output(run_command(esbuild, source, *options, cwd=packages.parent, env=environ))
