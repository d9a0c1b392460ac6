"""Links in a served directory: the compiled kernel and Python read the same values, and neither reads anything outside."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")

from tests.kernel.test_library import needs_kernel
from tests.support.kernel_calls import kernel_calls
from zarrasync import stores, sync
from zarrasync._kernel.library import can_confine
from zarrasync.errors import ZarrError
from zarrasync.server.confined import ConfinedStore
from zarrasync.server.limits import Forbidden

pytestmark = [needs_kernel, pytest.mark.skipif(os.name != "posix", reason="needs links")]
needs_openat2 = pytest.mark.skipif(not can_confine(), reason="the system cannot open files below a directory")
VALUES = np.arange(1, 25, dtype="u1").reshape(4, 6)
SELECTIONS: list[Any] = [..., (0, 0), (2, slice(2, 6)), (slice(None), 5)]
"""One chunk, some, and so many that the kernel keeps the folders open."""


@pytest.fixture(params=["/", "."])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory to serve, next to one that is not served, whose files have names of chunks."""
    path = make(tmp_path / "served", VALUES, request.param)
    (tmp_path / "outside").mkdir()
    for name in ("0", "1", "2", "secret"):
        (tmp_path / "outside" / name).write_bytes(b"\xee" * 4)
    return path


def make(path: Path, values: np.ndarray, separator: str) -> Path:
    """Make a group with two arrays of two rows of three chunks, of which the first one lacks a chunk."""
    options: dict[str, Any] = {"chunks": (2, 2), "compressors": None, "fill_value": 200}
    group, names = sync.create_group(path), {"name": "default", "separator": separator}
    for name in ("a", "b"):
        group.create_array(name, data=values, chunk_key_encoding=names, **options)
    chunk(path, 1, 1).unlink()
    return path


def chunk(root: Path, row: int, column: int, array: str = "a") -> Path:
    """Return the file of a chunk."""
    folder = root / array
    return folder / "c" / str(row) / str(column) if (folder / "c").is_dir() else folder / f"c.{row}.{column}"


def read(root: Path, native: str, select: Any, store: stores.Store | None = None) -> Any:
    """Return what a read of the served array results in: its values, or the type and the text of its error."""
    store = ConfinedStore(stores.LocalStore(root)) if store is None else store
    try:
        return sync.open_array(store, path="a", mode="r", config={"native": native})[select].tolist()
    except ZarrError as error:
        return type(error), str(error)


def replace(path: Path, target: Path | str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def _folder(root: Path, target: str) -> None:
    """Replace the folder of the first row of chunks, or the array's, by a link."""
    folder = chunk(root, 0, 0).parent
    folder.rename(root / "moved")
    folder.symlink_to(target)


LINKS: dict[str, Callable[[Path], Any]] = {
    "none": lambda root: None,
    "out": lambda root: replace(chunk(root, 0, 1), root.parent / "outside" / "secret"),
    "out, relative": lambda root: replace(
        chunk(root, 0, 1), os.path.relpath(root.parent / "outside" / "secret", chunk(root, 0, 1).parent)
    ),
    "to an absent file outside": lambda root: replace(chunk(root, 0, 1), root.parent / "outside" / "none"),
    "inside, relative": lambda root: replace(chunk(root, 0, 1), chunk(root, 0, 2).name),
    "inside, absolute": lambda root: replace(chunk(root, 0, 1), chunk(root, 1, 2)),
    "inside, of another array": lambda root: replace(
        chunk(root, 0, 1), os.path.relpath(chunk(root, 1, 2, "b"), chunk(root, 0, 1).parent)
    ),
    "out and in again": lambda root: replace(
        chunk(root, 0, 1), Path(os.path.relpath(root.parent, chunk(root, 0, 1).parent)) / "served" / "b" / "zarr.json"
    ),
    "nowhere": lambda root: replace(chunk(root, 0, 1), "none"),
    "nowhere, of an absent chunk": lambda root: replace(chunk(root, 1, 1), "none"),
    "to itself": lambda root: replace(chunk(root, 0, 1), chunk(root, 0, 1).name),
    "magic": lambda root: replace(chunk(root, 0, 1), "/proc/self/root/etc/passwd"),
    "of a folder, out": lambda root: _folder(root, str(root.parent / "outside")),
    "of a folder, inside": lambda root: _folder(root, os.path.relpath(root / "moved", chunk(root, 0, 0).parent.parent)),
    "of a folder, nowhere": lambda root: _folder(root, "none"),
    "in its place a folder": lambda root: chunk(root, 1, 1).mkdir(),
    "in its place a pipe": lambda root: os.mkfifo(chunk(root, 1, 1)),
}


@pytest.mark.parametrize("kind", LINKS)
@pytest.mark.parametrize("select", SELECTIONS, ids=str)
def test_the_kernel_follows_the_links_that_python_follows(root: Path, kind: str, select: Any):
    LINKS[kind](root)
    found = read(root, "require", select)
    assert found == read(root, "off", select)
    assert 0xEE not in np.asarray(found if isinstance(found, list | int) else [])
    (link := root.parent / "latest").symlink_to(root)  # the served directory itself may be a link
    assert read(link, "require", select) == read(link, "off", select)


@needs_openat2
def test_only_the_kernel_reads(root: Path, monkeypatch: pytest.MonkeyPatch):
    """No chunk passes through the store, also those behind links inside a folder, and the kernel closes what it opens."""
    calls: list[str] = []
    LINKS["inside, relative"](root)
    store = ConfinedStore(stores.LocalStore(root))
    array = sync.open_array(store, path="a", mode="r", config={"native": "require"})
    expected = VALUES.copy()
    expected[:2, 2:4], expected[2:, 2:4] = VALUES[:2, 4:], 200

    async def fail(*arguments: Any, **named: Any) -> None:
        raise AssertionError(arguments)

    monkeypatch.setattr(ConfinedStore, "fetch", fail)
    monkeypatch.setattr(ConfinedStore, "fetch_values", fail)
    with kernel_calls(partial(note, calls)):
        for select in SELECTIONS:
            np.testing.assert_array_equal(array[select], expected[select])
    assert calls.count("openat") == len(SELECTIONS), "once the served directory, and all else below it"
    assert calls.count("opened") == calls.count("close")


def note(calls: list[str], name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Note the names of calls, and of those that succeed in opening something."""
    result = real(*args)
    calls += [name, "opened"] if name in ("openat", "open_below") and result >= 0 else [name]
    return result


# ------------------------------------------------------------------ changes meanwhile


@needs_openat2
@pytest.mark.parametrize("is_folder", [False, True], ids=["a chunk", "a folder"])
def test_links_that_appear_during_a_read(root: Path, is_folder: bool):
    """Before any call of the kernel, another process may replace a chunk or a folder with a link."""
    original, spare = chunk(root, 0, 1), root.parent / "spare"
    if is_folder:
        original = original.parent
    target = root.parent / "outside" / ("" if is_folder else "secret")
    calls: list[str] = []
    with kernel_calls(partial(note, calls)):
        plain = read(root, "require", ...)
    outcomes = []
    for number in range(calls.count("openat") + calls.count("open_below")):
        seen = 0

        def handle(name: str, real: Callable[..., Any], args: tuple[Any, ...], number: int = number) -> Any:
            nonlocal seen
            if name in ("openat", "open_below"):
                seen += 1
                if seen == number + 1:
                    original.rename(spare)
                    original.symlink_to(target)
            return real(*args)

        with kernel_calls(handle):
            outcomes.append(read(root, "require", ...))
        assert seen > number
        original.unlink()
        spare.rename(original)
    assert {outcome[0] if isinstance(outcome, tuple) else "values" for outcome in outcomes} == {Forbidden, "values"}
    assert all(outcome == plain for outcome in outcomes if isinstance(outcome, list))


@pytest.mark.parametrize("native", ["require", "off"])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_directory_that_is_moved_and_replaced(root: Path, native: str, is_link: bool):
    """An open array is that at the path, whatever directory is there, and its links are those that count."""
    separator, served = "/" if (root / "a" / "c").is_dir() else ".", root
    if is_link:
        served = root.parent / "latest"
        served.symlink_to(root)
    store = ConfinedStore(stores.LocalStore(served))
    array = sync.open_array(store, path="a", mode="r", config={"native": native})
    assert array[0, 0] == 1
    served.rename(root.parent / "moved")
    assert array[0, 0] == 200, "absent"
    served.symlink_to(make(root.parent / "other", VALUES + 1, separator))
    LINKS["out"](served)
    assert array[0, 0] == 2
    with pytest.raises(Forbidden):
        array[0, 2]


# ------------------------------------------------------------------ systems that cannot confine


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.EAGAIN], ids=errno.errorcode.get)
def test_python_reads_what_the_kernel_cannot_open(root: Path, number: int):
    LINKS["out"](root)

    def handle(name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if name == "open_below":
            raise OSError(number, os.strerror(number))
        return real(*args)

    with kernel_calls(handle):
        assert read(root, "require", slice(2, None)) == [[13, 14, 200, 200, 17, 18], [19, 20, 200, 200, 23, 24]]
        assert read(root, "require", ...)[0] is Forbidden


REFUSING = """
import ctypes, struct, sys

OPENAT2, ALLOW, ERROR = 437, 0x7FFF0000, 0x00050000
program = b"".join(
    struct.pack("HBBI", *each)
    for each in [(0x20, 0, 0, 0), (0x15, 0, 1, OPENAT2), (6, 0, 0, ERROR | int(sys.argv[2])), (6, 0, 0, ALLOW)]
)
memory = ctypes.create_string_buffer(program)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, struct.pack("HxxxxxxP", 4, ctypes.addressof(memory))) == 0

from zarrasync import stores, sync
from zarrasync._kernel.library import can_confine
from zarrasync.server.confined import ConfinedStore
from zarrasync.server.limits import Forbidden

assert not can_confine()
array = sync.open_array(ConfinedStore(stores.LocalStore(sys.argv[1])), path="a", mode="r", config={"native": "require"})
assert array[2:].sum() == 148 + 4 * 200, array[2:]
try:
    array[...]
except Forbidden:
    print("refused")
"""


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"), reason="system calls")
@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM], ids=errno.errorcode.get)
def test_a_system_without_the_call(root: Path, number: int):
    """As before Linux 5.6, and in containers whose filters refuse calls that they do not know."""
    LINKS["out"](root)
    done = subprocess.run(
        [sys.executable, "-c", REFUSING, str(root), str(number)], check=True, capture_output=True, text=True
    )
    assert done.stdout == "refused\n"
