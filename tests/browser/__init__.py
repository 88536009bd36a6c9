"""Tests with browsers: a package, so that its fixtures can share one browser among the files."""
