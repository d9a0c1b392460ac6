"""The sizes at which the engine does something in another way, each with its reason."""

from __future__ import annotations

# When work is shared
SMALL = 1 << 16
"""Bytes that are read or written without the byte budget, which takes longer, and that an event loop decodes itself."""
ONE_THREAD = 1 << 20
"""Bytes that one thread decodes in the time that sharing the work with another one takes."""
WRITE_FACTOR = 4
"""How many times as long it takes to encode and write as to read and decode."""
FILE = 1 << 14
"""The cost of opening and closing a file, as the number of bytes that are decoded in the same time. Making one costs twice as
much."""
POINT = 1 << 12
"""The cost of reading one element of a raw chunk, in the same unit."""
INTERPRETED = 1 << 15
"""Bytes of a chunk below which the interpreter, which runs one thread at a time, takes most of the time of Python's codecs."""

# What one job does
JOB_CHUNKS = 256
"""Chunks of a job. They are locked together, and more would hardly be faster."""
KERNEL_CHUNKS = 4096
"""Chunks that one call of the kernel reads, between which Ctrl-C has no effect."""
COALESCED_JOB = 1 << 20
"""Bytes of ranges of a shard that one job fetches, so that other threads get jobs."""
FETCHED_CHUNKS = 16
"""Chunks that one task fetches together, because the first ones wait for the last one."""
FETCHED_TOGETHER = 1 << 20
"""Bytes of chunks that one task fetches together."""
ERASED_TOGETHER = 1000
"""Keys that object stores erase with one request."""

# Memory
PAGES = 1 << 20
"""Bytes of a result above which its memory consists of whole pages, into which files are read at full speed."""
CONTIGUOUS_COPY = 1 << 15
"""Bytes of a decoded chunk below which one more copy is cheaper than another step of the interpreter."""
LARGEST_SCRATCH = 128 << 20
"""Bytes above which no scratch memory is used for values that may be smaller than expected, or absent."""
LARGEST_KEPT = 32 << 20
"""Bytes of scratch memory above which a thread returns it to the system."""
