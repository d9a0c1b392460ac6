"""Protocols of fsspec filesystems, grouped by what stores have to know about them."""

from __future__ import annotations

__all__ = [
    "AZURE",
    "CACHES",
    "GCS",
    "IMMEDIATE",
    "LOCAL",
    "NETWORK_SERVICES",
    "READ_ONLY",
    "S3",
    "WEB",
    "WITHOUT_SUFFIX_RANGES",
]

S3 = frozenset({"s3", "s3a"})
GCS = frozenset({"gs", "gcs"})
AZURE = frozenset({"az", "abfs", "abfss"})
WEB = frozenset({"http", "https"})
LOCAL = frozenset({"file", "local", "memory"})
"""Protocols of files on this machine, and of files in the memory of this process."""
CACHES = frozenset({"simplecache", "filecache", "blockcache"})
"""Caches of files in front of another filesystem."""

NETWORK_SERVICES = S3 | GCS | AZURE | WEB | {"memory"}
"""Protocols whose filesystems are equal if their endpoints are; others are compared by their arguments."""
READ_ONLY = WEB | {"reference", "github", "data"}
WITHOUT_SUFFIX_RANGES = AZURE | CACHES
"""Protocols that cannot read the last bytes of a file without its size."""
IMMEDIATE = frozenset({"memory", "file", "local", "zip", "tar", "libarchive", "data", "reference"})
"""Protocols of blocking filesystems that mostly respond without network access."""
