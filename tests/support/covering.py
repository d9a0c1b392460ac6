"""Parameters of tests without all combinations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

__all__ = ["covering"]


def covering(*parameters: Sequence[Any], strength: int = 2) -> list[tuple[Any, ...]]:
    """Return rows of values in which each combination of so many parameters' values occurs at least once.

    Args:
        parameters: The values of each parameter.
        strength: 2 for all pairs of values, or 1 for each value.
    """
    rows = list(product(*(range(len(values)) for values in parameters)))
    groups = list(combinations(range(len(parameters)), strength))
    uses: Counter[tuple[int, int]] = Counter()

    def parts(row: tuple[int, ...]) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
        return {(group, tuple(row[i] for i in group)) for group in groups}

    missing = set().union(*map(parts, rows))
    chosen = []
    while missing:
        row = max(rows, key=lambda row: (len(missing & parts(row)), -sum(uses[use] for use in enumerate(row))))
        missing -= parts(row)
        uses.update(enumerate(row))
        chosen.append(tuple(values[i] for values, i in zip(parameters, row, strict=True)))
    return chosen
