"""Kill jobs: ``python -m tests.bulk.kills tasks --first 0 --count 100 [--icechunk]``."""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

from tests.bulk.kills.cases import KINDS, draw
from tests.bulk.kills.harness import Harness
from tests.bulk.kills.places import RepositoryPlace


def main() -> int:
    """Run cases; 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bulk.kills", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--icechunk", action="store_true", help="write to repositories of icechunk")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=10)
    args = parser.parse_args()
    totals: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        place = (lambda name: RepositoryPlace(f"{folder}/{name}")) if args.icechunk else None
        harness = Harness(Path(folder), place)
        try:
            for seed in range(args.first, args.first + args.count):
                case = draw(args.kind, seed)
                try:
                    outcome = harness.run(case)
                except Exception:
                    totals["failed"] += 1
                    traceback.print_exc(file=sys.stdout)
                else:
                    totals["killed" if outcome.killed else "ended before"] += 1
                    totals["seconds"] += round(outcome.seconds)
                    print(f"{case}: {outcome}", flush=True)  # noqa: T201  # a script
        finally:
            harness.close()
    print(dict(totals))  # noqa: T201  # a script
    return 1 if totals["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
