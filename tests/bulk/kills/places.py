"""Destinations of jobs: a folder, a bucket of an S3 server, or a repository of icechunk. They can be watched, copied and compared."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xarray as xr
import zarr
from zarr.core.buffer import default_buffer_prototype

from tests.bulk.kills.commands import fsspec_options, latest_session

__all__ = ["BucketPlace", "FolderPlace", "Place", "RepositoryPlace"]


class _ZarrPlace:
    """A place that packages open by its URL."""

    url: str
    options: dict[str, Any]
    formats = (2, 3)
    """The formats of datasets that it can contain."""
    forks = True
    """Whether processes that write there may be forked."""

    def dataset(self) -> xr.Dataset:
        """Return the dataset as xarray reads it, without its values."""
        options = {"storage_options": fsspec_options(self.options)}
        return xr.open_dataset(self.url, engine="zarr", consolidated=True, backend_kwargs=options)

    def groups(self) -> list[Any]:
        """Return the group as zarr-python reads it, in all ways."""
        options = fsspec_options(self.options)
        return [
            zarr.open_group(self.url, mode="r", storage_options=options, use_consolidated=own) for own in (True, False)
        ]


class FolderPlace(_ZarrPlace):
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


class BucketPlace(_ZarrPlace):
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


class RepositoryPlace:
    """The branch ``main`` of a repository of icechunk, in a folder.

    Args:
        folder: The folder.
    """

    pause = 0.004
    formats = (3,)
    forks = False  # icechunk has threads, which a forked process lacks

    def __init__(self, folder: str) -> None:
        self._files = FolderPlace(folder)
        self.url = f"{folder}|icechunk:"
        self.options: dict[str, Any] = {}

    def names(self) -> set[str]:
        """Return the names of all files of the repository."""
        return self._files.names()

    def folders(self) -> set[str]:
        """Return the names of its folders."""
        return self._files.folders()

    def contents(self) -> dict[str, bytes]:
        """Return all values of the latest snapshot, and the messages of all commits."""
        session = latest_session(self._files.url)
        return {**asyncio.run(_values(session.store)), "commits": "\n".join(self._messages()).encode()}

    def _messages(self) -> list[str]:
        import icechunk

        repository = icechunk.Repository.open(icechunk.local_filesystem_storage(self._files.url))
        return [commit.message for commit in repository.ancestry(branch="main")]

    def fill(self, values: Mapping[str, bytes]) -> None:
        """Replace the repository with one that contains values; without values, with none."""
        import icechunk

        shutil.rmtree(self._files.url, ignore_errors=True)
        if values:
            storage = icechunk.local_filesystem_storage(self._files.url)
            session = icechunk.Repository.create(storage).writable_session("main")
            asyncio.run(_store(session.store, {key: data for key, data in values.items() if key != "commits"}))
            session.commit("before the job")

    def dataset(self) -> xr.Dataset:
        """Return the dataset as xarray reads it, without its values."""
        return xr.open_zarr(latest_session(self._files.url).store, consolidated=False, chunks=None)

    def groups(self) -> list[Any]:
        """Return the group as zarr-python reads it."""
        return [zarr.open_group(latest_session(self._files.url).store, mode="r")]


async def _values(store: Any) -> dict[str, bytes]:
    prototype = default_buffer_prototype()
    return {key: (await store.get(key, prototype)).to_bytes() async for key in store.list_prefix("")}


async def _store(store: Any, values: Mapping[str, bytes]) -> None:
    prototype = default_buffer_prototype()
    for key, data in values.items():
        await store.set(key, prototype.buffer.from_bytes(data))


Place = FolderPlace | BucketPlace | RepositoryPlace
