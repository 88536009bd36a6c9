from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
SYSTEMD = ROOT / "systemd"
