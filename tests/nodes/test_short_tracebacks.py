"""Tracebacks of errors as IPython prints them: the user's line and few frames of the library."""

from __future__ import annotations

import pickle
import re
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from zarrasync import errors, stores, sync
from zarrasync._concurrency import bridge
from zarrasync._util import short_tracebacks

_PACKAGE = str(Path(za.__file__).parent)


def printed(error: BaseException) -> str:
    """Return the traceback of an error as IPython prints it, without colours."""
    ultratb = pytest.importorskip("IPython.core.ultratb")
    formatter = ultratb.AutoFormattedTB(mode="Context")
    text = formatter.stb2text(formatter.structured_traceback(type(error), error, error.__traceback__))
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def check(error: BaseException, *, lines: int = 20) -> None:
    """Check the number of lines below the user's last frame, and of the library's frames in them."""
    text = printed(error)
    below = text.split("\nFile ")[1:]
    while below and not below[0].startswith(_PACKAGE):
        below.pop(0)
    assert 1 <= len(below) <= 2, text
    assert "\n".join(below).count("\n") + 1 <= lines, text
    assert all(part.startswith(_PACKAGE) for part in below), text
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
    "an unknown choice": lambda root: sync.open_array(root, path="t2m").view[:].read(missing="raise"),
    "an object that is not a store": lambda root: sync.open(5),
    "an unknown protocol": lambda root: sync.open("s4://bucket/x.zarr"),
    "an unknown setting": lambda root: sync.open(root, config={"retrys": 3}),
    "an option of another backend": lambda root: sync.open("s3://b/x.zarr", storage_options={"backend": "boto"}),
}
ASYNC: dict[str, Callable[[str], Awaitable[Any]]] = {}


def asynchronous(name: str) -> Callable[[Callable[[str], Awaitable[Any]]], None]:
    """Return a decorator that adds a case."""
    return partial(ASYNC.__setitem__, name)


@asynchronous("a misspelt member")
async def _(root: str) -> None:
    group: Any = await za.open_group(root)
    await group["t2"]


@asynchronous("a misspelt path")
async def _(root: str) -> None:
    await za.open(root, path="t2")


@asynchronous("an index out of range")
async def _(root: str) -> None:
    array = await za.open_array(root, path="t2m")
    await array[100]


@asynchronous("a damaged chunk")
async def _(root: str) -> None:
    (Path(root) / "t2m" / "c" / "0" / "0").write_bytes(b"damaged")
    array = await za.open_array(root, path="t2m")
    await array[...]


@pytest.mark.parametrize("name", SYNC)
def test_sync_errors_end_at_the_called_function(root: str, name: str) -> None:
    with pytest.raises(errors.ZarrError) as caught:
        SYNC[name](root)
    check(caught.value)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_checks_of_arguments_end_at_the_called_function(root: str, name: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        ARGUMENTS[name](root)
    check(caught.value)


@pytest.mark.parametrize("name", ASYNC)
async def test_async_errors_end_at_the_called_function(root: str, name: str) -> None:
    with pytest.raises((errors.ZarrError, TypeError)) as caught:
        await ASYNC[name](root)
    check(caught.value)


@asynchronous("an unknown parameter")
async def _(root: str) -> None:
    await za.open_array(root, path="t2m", chunk=2)


@pytest.mark.filterwarnings("ignore")
def test_a_missing_store_through_xarray(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    with pytest.raises(errors.NodeNotFoundError) as caught:
        xarray.open_dataset(tmp_path / "none.zarr", engine="zarrasync")
    text = printed(caught.value)
    assert text.count("\n") + 1 <= 40, text
    assert _PACKAGE not in text


@pytest.mark.parametrize("is_async", [False, True])
async def test_s3_without_credentials(aws_config: Path, monkeypatch: pytest.MonkeyPatch, is_async: bool) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(errors.StoreError) as caught:
        if is_async:
            await za.open_group("s3://bucket/x.zarr", config={"retries": 0})
        else:
            sync.open_group("s3://bucket/x.zarr", config={"retries": 0})
    check(caught.value)
    assert "no credentials were found; for public data pass the storage option anon=True" in str(caught.value)
    assert "http://127.0.0.1:9" not in printed(caught.value)


def test_all_frames_are_kept_on_request(root: str) -> None:
    with za.config.set(debug_errors=True), pytest.raises(errors.NodeNotFoundError) as caught:
        sync.open_group(root)["t2"]
    assert len(re.findall(r"^File ", printed(caught.value), re.MULTILINE)) > 5


def test_frames_and_errors_of_users_are_kept(root: str) -> None:
    def values(region: Any) -> Any:
        return sync.open(root, path="none")[region]

    with pytest.raises(errors.NodeNotFoundError) as caught:
        sync.ingest(values, {}, shape=(4,), dtype="f8")
    assert functions(caught.value) == ["test_frames_and_errors_of_users_are_kept", "ingest", "values"]


def test_the_error_that_users_were_handling_is_kept(root: str) -> None:
    group = sync.open_group(root)
    with pytest.raises(errors.NodeNotFoundError) as caught:
        try:
            raise RuntimeError
        except RuntimeError:
            group["none"]
    assert isinstance(caught.value.__context__, RuntimeError)
    assert not caught.value.__suppress_context__


FAIL = """
def fail(cause):
    try:
        try:
            raise KeyError("inner")
        except KeyError:
            raise cause
    except Exception as error:
        raise errors.CodecError("could not decode 'a': OSError: disk full") from error

async def parse(value):
    number = int(value)
    if number < 0:
        raise ValueError("below 0")
"""


def module() -> dict[str, Any]:
    """Return the functions of a module of the library that contains ``FAIL``."""
    names: dict[str, Any] = {"errors": errors}
    exec(compile(FAIL, str(Path(_PACKAGE) / "codecs" / "some.py"), "exec"), names)
    return names


def functions(error: BaseException) -> list[str]:
    """Return the names of the functions in a traceback."""
    return [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]


def fail(cause: Exception) -> None:
    """Raise a ``CodecError`` with a cause that has a context, as a module of the library does."""
    module()["fail"](cause)


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


def test_causes_are_kept_if_the_message_lacks_them() -> None:
    def shortened(cause: Exception) -> errors.ZarrError:
        with pytest.raises(errors.CodecError) as caught:
            fail(cause)
        short_tracebacks.shorten(caught.value)
        return caught.value

    repeated = shortened(OSError("disk full"))
    assert repeated.__cause__ is None
    assert repeated.__suppress_context__
    assert isinstance(repeated.__context__, OSError)
    new = shortened(ValueError("no space"))
    assert isinstance(new.__cause__, ValueError)
    assert new.__cause__.__traceback__ is None
    assert new.__cause__.__context__ is None
    short_tracebacks.shorten(repeated)  # as another function of the library does on the way up
    assert isinstance(repeated.__context__, OSError)
    explicit = ValueError("no space")
    explicit.__cause__ = RuntimeError("the disk is full")
    assert isinstance((shortened(explicit).__cause__ or explicit).__cause__, RuntimeError)
    assert shortened(ExceptionGroup("several", [ValueError()])).__context__ is None


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
