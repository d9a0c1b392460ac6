"""Spans of rows: pairs of a first row, and the row after the last one. No IO."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

__all__ = ["Span", "common", "difference", "union"]

Span: TypeAlias = tuple[int, int]


def union(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return disjoint spans in order that contain the same rows."""
    result: list[Span] = []
    for start, stop in sorted(spans):
        if start >= stop:
            continue
        if result and result[-1][1] >= start:
            result[-1] = result[-1][0], max(result[-1][1], stop)
        else:
            result.append((start, stop))
    return tuple(result)


def difference(spans: Iterable[Span], others: Iterable[Span]) -> tuple[Span, ...]:
    """Return the rows of spans that are not in others."""
    result, removed = list[Span](), union(others)
    for start, stop in union(spans):
        at = start
        for first, last in removed:
            if first < stop and last > at:
                if at < first:
                    result.append((at, first))
                at = last
        if at < stop:
            result.append((at, stop))
    return tuple(result)


def common(spans: Iterable[Span], others: Iterable[Span]) -> tuple[Span, ...]:
    """Return the rows that are in both."""
    spans = union(spans)
    return difference(spans, difference(spans, others))
