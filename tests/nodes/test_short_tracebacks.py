"""Tracebacks of errors of synchronous calls: the user's line and few frames of the library."""

from __future__ import annotations

import pickle
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from zarrasync import errors, stores, sync
from zarrasync._concurrency import bridge
from zarrasync.testing import LatencyStore

_PACKAGE = str(Path(za.__file__).parent)


def functions(error: BaseException, *, package: bool = False) -> list[str]:
    """Return the names of the functions in a traceback; with ``package``, only those of the library."""
    frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return [code.co_name for code in frames if not package or code.co_filename.startswith(_PACKAGE)]


def check(error: BaseException, most: int = 2) -> None:
    """Check that the traceback has only the frames of the called function and of the facade, and that causes are kept."""
    found = functions(error, package=True)
    assert len(found) <= most, found
    assert not isinstance(error.__context__, BaseExceptionGroup)


@pytest.fixture
def root(tmp_path: Path) -> str:
    group = sync.create_group(tmp_path / "x.zarr")
    group.create_array("t2m", data=np.ones((4, 4)), chunks=(2, 2))
    group.create_array("tp", data=np.ones((4, 4)))
    return str(tmp_path / "x.zarr")


SYNC: dict[str, Callable[[str], Any]] = {
    "a misspelt member": lambda root: sync.open_group(root)["t2"],
    "a misspelt path": lambda root: sync.open(root, path="t2"),
    "an index out of range": lambda root: sync.open_group(root)["t2m"][100],
    "an orthogonal index": lambda root: sync.open_group(root)["t2m"].oindex[[100]],
    "a write to a node opened for reading": lambda root: sync.open_group(root).create_group("h"),
    "values of another shape": lambda root: sync.open_array(root, path="t2m", mode="r+").append(np.ones(3)),
}
ARGUMENTS: dict[str, Callable[[str], Any]] = {
    "an unknown mode": lambda root: sync.open(root, mode="x"),  # type: ignore[arg-type]
    "an unknown parameter": lambda root: sync.open_array(root, path="t2m", chunk=2),
    "an unknown choice": lambda root: sync.open_array(root, path="t2m").view[:].read(missing="raise"),  # type: ignore[arg-type]
    "an object that is not a store": lambda root: sync.open(5),
    "an unknown protocol": lambda root: sync.open("s4://bucket/x.zarr"),
    "an unknown setting": lambda root: sync.open(root, config={"retrys": 3}),
    "an option of another backend": lambda root: sync.open("s3://b/x.zarr", storage_options={"backend": "boto"}),
}


@pytest.mark.parametrize("name", SYNC)
def test_sync_errors_end_at_the_called_function(root: str, name: str) -> None:
    with pytest.raises(errors.ZarrError) as caught:
        SYNC[name](root)
    check(caught.value, most=6)  # indices are checked before the call begins


@pytest.mark.parametrize("name", ARGUMENTS)
def test_checks_of_arguments_end_at_the_called_function(root: str, name: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        ARGUMENTS[name](root)
    check(caught.value, most=8)  # stores are made before the call begins


def test_a_damaged_chunk(root: str) -> None:
    (Path(root) / "t2m" / "c" / "0" / "0").write_bytes(b"damaged")
    array = sync.open_array(root, path="t2m")
    with pytest.raises(errors.CodecError) as caught:
        array[...]
    check(caught.value)


@pytest.mark.parametrize("is_blocking", [False, True])
def test_ctrl_c_ends_at_the_called_function(is_blocking: bool) -> None:
    """The frames in which the library was interrupted say nothing about the program."""
    store: stores.Store = stores.MemoryStore()
    array = sync.create_array(store if is_blocking else LatencyStore(store, 0.0), data=np.arange(9), chunks=1)

    def progress(nbytes: int) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever servers of other tests have set
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            array.view[...].read(progress=progress)
    finally:
        signal.signal(signal.SIGINT, before)
    check(caught.value)


async def test_errors_of_coroutines_keep_their_frames(root: str) -> None:
    with pytest.raises(errors.NodeNotFoundError) as caught:
        await za.open(root, path="t2")
    assert len(functions(caught.value, package=True)) > 1


def test_all_frames_are_kept_on_request(root: str) -> None:
    with za.config.set(debug_errors=True), pytest.raises(errors.NodeNotFoundError) as caught:
        sync.open_group(root)["t2"]
    assert len(functions(caught.value, package=True)) > 5


def test_frames_and_errors_of_users_are_kept(root: str) -> None:
    def values(region: Any) -> Any:
        return sync.open(root, path="none")[region]

    with pytest.raises(errors.NodeNotFoundError) as caught:
        sync.ingest(values, {}, shape=(4,), dtype="f8")
    assert functions(caught.value)[-1] == "values"
    assert len(functions(caught.value)) <= 4


def test_the_error_that_users_were_handling_is_kept(root: str) -> None:
    group = sync.open_group(root)
    with pytest.raises(errors.NodeNotFoundError) as caught:
        try:
            raise RuntimeError
        except RuntimeError:
            group["none"]
    assert isinstance(caught.value.__context__, RuntimeError)


PARSE = """
async def parse(value):
    number = int(value)
    if number < 0:
        raise ValueError("below 0")
"""


def module() -> dict[str, Any]:
    """Return the functions of a module of the library that contains ``PARSE``."""
    names: dict[str, Any] = {"errors": errors}
    exec(compile(PARSE, str(Path(_PACKAGE) / "codecs" / "some.py"), "exec"), names)
    return names


def test_unexpected_errors_keep_their_frames() -> None:
    parse = module()["parse"]
    with pytest.raises(ValueError, match="below 0") as expected:
        bridge.run(parse("-1"), blocking=True)
    assert functions(expected.value) == ["test_unexpected_errors_keep_their_frames"]
    with pytest.raises(ValueError, match="invalid literal") as unexpected:
        bridge.run(parse("x"), blocking=True)
    assert functions(unexpected.value)[-1] == "parse"


def test_errors_of_callbacks_keep_their_frames(root: str) -> None:
    def progress(nbytes: int) -> None:
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop") as caught:
        sync.open_array(root, path="t2m").view[...].read(progress=progress)
    assert functions(caught.value)[-1] == "progress"
    assert len(functions(caught.value)) > 4


class _Closed(stores.MemoryStore):
    """A store of a user, which fails."""

    async def fetch(self, *args: Any, **options: Any) -> Any:
        try:
            raise PermissionError("the vault is closed")
        except PermissionError as error:
            raise errors.StoreError("could not read", key="c/0") from error

    fetch_values = fetch


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
async def test_programs_find_the_cause_of_errors_of_their_stores(inside: bool, is_async: bool) -> None:
    store = _Closed()
    with pytest.raises(errors.StoreError) as caught:
        if inside:
            try:
                raise KeyError("handled by the user")
            except KeyError:
                await _read(store, is_async=is_async)
        else:
            await _read(store, is_async=is_async)
    assert isinstance(caught.value.__cause__ or caught.value.__context__, PermissionError)


async def _read(store: _Closed, *, is_async: bool) -> None:
    if is_async:
        await za.open_array(store)
    else:
        sync.open_array(store)


def test_errors_that_users_raise_keep_their_causes(root: str) -> None:
    class VaultError(errors.StoreError):
        pass

    def progress(nbytes: int) -> None:
        raise VaultError("stop", key="k") from KeyError("k")

    with pytest.raises(VaultError) as caught:
        sync.open_array(root, path="t2m").view[...].read(progress=progress)
    assert isinstance(caught.value.__cause__, KeyError)


def test_shortened_errors_can_be_pickled(root: str) -> None:
    with pytest.raises(errors.NodeNotFoundError) as caught:
        sync.open(root, path="none")
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (str(copied), copied.path) == (str(caught.value), caught.value.path)
