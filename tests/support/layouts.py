"""Layouts of chunks that several tests run with."""

from __future__ import annotations

LAYOUTS = [{"chunks": (10, 10)}, {"chunks": (5, 5), "shards": (10, 10)}, {"chunks": (10, 10), "compressors": None}]
