"""Temporary local folders of jobs. The folders of a process that was killed are deleted by the next one."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from zarrasync.stores.local_files import is_process_gone, process_name

_PREFIX = "zarrasync-scratch-"
"""How the names of folders begin. The name of their process follows."""


def new_scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a new folder in the directory for temporary files, which the environment variable ``TMPDIR`` can set."""
    remove_abandoned_folders()
    return tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{process_name()}-", ignore_cleanup_errors=True)


def scratch_space() -> int:
    """Return the number of free bytes on the disk of these folders."""
    return shutil.disk_usage(tempfile.gettempdir()).free


def remove_abandoned_folders() -> None:
    """Delete the folders of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).rpartition("-")[0]
        if owner.count(".") == 2 and is_process_gone(owner):
            shutil.rmtree(folder, ignore_errors=True)
