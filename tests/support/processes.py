"""Scripts that several processes run at the same time."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

__all__ = ["PREAMBLE", "PROCESSES", "together"]

PROCESSES = 4
PREAMBLE = """
import json, sys
import numpy as np
from zarrasync import sync
url, options, number, count, writes = json.loads(sys.argv[1])
options = {"storage_options": options} if options else {}
print("ready", flush=True)
sys.stdin.readline()
"""


def together(script: str, url: str | Sequence[str], options: dict[str, Any], writes: int) -> None:
    """Run a script in several processes that start at the same moment.

    Args:
        script: The script. It may use ``sync``, ``np``, ``url``, ``options``, ``number``, ``count`` and ``writes``.
        url: The URL, or several that the processes use in turn.
        options: Storage options.
        writes: The number of writes for each process.
    """
    urls = [url] if isinstance(url, str) else url
    code = PREAMBLE + textwrap.dedent(script)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", code, json.dumps([urls[number % len(urls)], options, number, PROCESSES, writes])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    for one in workers:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in workers:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    for one in workers:
        one.communicate(timeout=120)
    assert [one.returncode for one in workers] == [0] * PROCESSES
