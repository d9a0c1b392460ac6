"""Servers, stores and other helpers that several tests share."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The folder that holds the package, the tests, the documentation and the examples."""
