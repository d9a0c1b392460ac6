"""Faults that a seed has drawn, and that the tests have to find."""

from __future__ import annotations

import json
from pathlib import Path

from tests.planted.draw import Fault

__all__ = ["FILE", "load"]

FILE = Path(__file__).with_name("faults.json")


def load() -> list[Fault]:
    """Return the faults."""
    return [Fault(**fault) for fault in json.loads(FILE.read_text())]
