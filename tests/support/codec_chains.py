"""Codecs bound to one chunk, and a value for it."""

from __future__ import annotations

import numpy as np

from zarrasync.codecs import ArraySpec, ShardingCodec, chain_of
from zarrasync.model.dtypes import from_numpy

SPEC = ArraySpec((8, 6), from_numpy("i4"), np.int32(0))

DATA = np.arange(48, dtype="i4").reshape(8, 6)


def bound(codecs: list, spec: ArraySpec = SPEC):
    return chain_of(codecs, spec).bind(spec)


def shards(inner: list, location: str = "end", spec: ArraySpec = SPEC) -> list:
    chain = chain_of(inner, spec.replace(shape=(2, 3)))
    return [ShardingCodec((2, 3), chain, index_location=location)]
