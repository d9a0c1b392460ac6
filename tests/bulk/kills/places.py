"""Destinations of jobs: a folder, or a bucket of an S3 server. They can be watched, copied and compared."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["BucketPlace", "FolderPlace", "Place"]


class FolderPlace:
    """A folder."""

    pause = 0.004
    """Time between two looks at the names."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.options: dict[str, Any] = {}

    def names(self) -> set[str]:
        """Return the names of all files, also of temporary ones."""
        found = set()
        for folder, _, files in os.walk(self.url):
            found |= {os.path.join(folder, name)[len(self.url) + 1 :] for name in files}
        return found

    def folders(self) -> set[str]:
        """Return the names of all folders."""
        return {os.path.join(top, name)[len(self.url) + 1 :] for top, names, _ in os.walk(self.url) for name in names}

    def contents(self) -> dict[str, bytes]:
        """Return all values."""
        return {name: Path(self.url, name).read_bytes() for name in self.names()}

    def fill(self, values: Mapping[str, bytes]) -> None:
        """Store values, after all others are erased."""
        shutil.rmtree(self.url, ignore_errors=True)
        for name, data in values.items():
            path = Path(self.url, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


class BucketPlace:
    """Objects of a bucket.

    Args:
        client: A client of boto3.
        bucket: The name of the bucket.
        prefix: The prefix of the objects.
        options: Storage options.
    """

    pause = 0.05

    def __init__(self, client: Any, bucket: str, prefix: str, options: dict[str, Any]) -> None:
        self._client, self._bucket, self._prefix = client, bucket, f"{prefix}/"
        self.url, self.options = f"s3://{bucket}/{prefix}", options

    def names(self) -> set[str]:
        """Return the keys of all objects."""
        answer = self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix)
        return {item["Key"][len(self._prefix) :] for item in answer.get("Contents", ())}

    def folders(self) -> set[str]:
        """Return nothing: there are no folders."""
        return set()

    def contents(self) -> dict[str, bytes]:
        """Return all values."""
        get = self._client.get_object
        return {name: get(Bucket=self._bucket, Key=self._prefix + name)["Body"].read() for name in self.names()}

    def fill(self, values: Mapping[str, bytes]) -> None:
        """Store values, after all others are erased."""
        for name in self.names() - set(values):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)
        for name, data in values.items():
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=data)


Place = FolderPlace | BucketPlace
