"""Values that several tests write, and the blocks they are cut into."""

from __future__ import annotations

import numpy as np

VALUES = np.arange(1, 90 * 70 + 1, dtype="i4").reshape(90, 70)


def blocks_of(values: np.ndarray, size: int) -> list[tuple[tuple[slice, ...], np.ndarray]]:
    cuts = [[slice(a, min(a + size, n)) for a in range(0, n, size)] for n in values.shape]
    return [((r, c), values[r, c]) for r in cuts[0] for c in cuts[1]]
