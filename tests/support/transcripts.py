"""Outputs that pages of the documentation show."""

from __future__ import annotations

import re

VARYING = (
    (r"\d+(\.\d+)? (?:ms|s)\b", "0.1 s"),
    (r"[\d.]+ [KMG]?i?B/s", "1.0 MiB/s"),
    (r"[\d.]+ [KMG]?i?B as [\d.]+ [KMG]?i?B", "1.0 MiB as 1.0 MiB"),
    (r"[\d,]+ requests?", "1 request"),
    (r", \d+ conflicts?\b", ""),
    (r" \(from [^)]*\)", ""),
)
"""Numbers that differ between runs and releases of libraries, renewals of a claim while it is changed, and files that a job has not
yet found when it is stopped."""


def normal(text: str) -> str:
    """Return an output without what differs between runs."""
    for pattern, value in VARYING:
        text = re.sub(pattern, value, text)
    return text
