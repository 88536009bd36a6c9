"""Refuses an older Python when it installs the package. Everything else is in setup.cfg."""

import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).parent))
import tornado_signal  # noqa: F401 (it checks the version)

setup()
