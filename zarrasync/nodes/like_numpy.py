"""Lazy arrays and NumPy: hints for operations that need values in memory, and the memory of other libraries to read into."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Never, TypeVar

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

C = TypeVar("C", bound=type)
_EQUALITY = {"__eq__", "__ne__"}
_OPERATORS = [
    name for name, method in vars(NDArrayOperatorsMixin).items() if callable(method) and name not in _EQUALITY
]
"""The methods of NumPy's operators. Equal nodes may be compared."""
_NUMPY = frozenset(name for name in dir(np.ndarray) if not name.startswith("_"))
_LARGE = "for more than fits in memory, zarrasync.integrations.dask.from_zarr(array)"


def missing_attribute(owner: object, name: str, values: str) -> AttributeError:
    """Return the error for an attribute that does not exist. Names of NumPy's attributes get a hint.

    Args:
        owner: The object.
        name: The name of the attribute.
        values: The expression for the values in memory.
    """
    message = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if name in _NUMPY:
        message += f", because its values are not in memory; use {values}.{name}, or {_LARGE}"
    return AttributeError(message, name=name, obj=owner)


def without_arithmetic(values: str, refuses: Callable[[object], bool]) -> Callable[[C], C]:
    """Return a decorator that makes the operators of a class raise an error with a hint.

    Args:
        values: The expression for the values in memory.
        refuses: Whether an operand is refused. Others, such as NumPy's arrays, may compute with the object.
    """

    def refuse(self: object, *others: object) -> Any:
        if others and not refuses(others[0]):
            return NotImplemented
        raise TypeError(
            f"{type(self).__name__} does not compute, because its values are not in memory; compute with {values}, or, {_LARGE}"
        )

    def decorate(cls: C) -> C:
        for name in _OPERATORS:
            setattr(cls, name, refuse)
        return cls

    return decorate


@without_arithmetic("await array[...]", lambda other: True)
class NotAwaited:
    """A base class of objects to await. Python and NumPy would otherwise treat them as sequences of elements."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers would accept any attribute

        def __getattr__(self, name: str) -> Never:
            raise missing_attribute(self, name, "(await array[...])")

    def __setitem__(self, key: object, value: object) -> Never:
        raise TypeError("an assignment cannot be awaited; use await array[...].write(values)")

    def __array__(self, dtype: object = None, copy: object = None) -> Never:
        raise TypeError("NumPy cannot await a selection; use np.asarray(await array[...])")

    def __dlpack__(self, **options: object) -> Never:
        raise TypeError("DLPack cannot await a selection; use np.from_dlpack(await array[...])")

    def __dlpack_device__(self) -> Never:
        self.__dlpack__()

    def __contains__(self, value: object) -> Never:
        raise TypeError("a value cannot be searched in an asynchronous selection; use value in await array[...]")

    def __iter__(self) -> Never:
        raise TypeError(
            "an asynchronous selection cannot be iterated; use await array[...], or async for region, block in "
            "array.view.chunks()"
        )


def memory_of(out: Any) -> npt.NDArray[Any]:
    """Return the memory of an object to read into, as an array that shares it.

    Args:
        out: An array of NumPy, or an object that supports DLPack or the buffer protocol.

    Raises:
        TypeError: If NumPy has no access to its memory.
    """
    if isinstance(out, np.ndarray):  # other subclasses, such as matrices, have limits that reading exceeds
        return out if isinstance(out, np.ma.MaskedArray) else out.view(np.ndarray)
    name = f"{type(out).__module__}.{type(out).__qualname__}".removeprefix("builtins.")
    if isinstance(out, NotAwaited) or hasattr(out, "async_"):
        raise TypeError(f"out must be in memory, found {name}; write to it with [...] = values")
    try:
        if not hasattr(out, "__dlpack__"):
            return np.asarray(memoryview(out))
        array = np.from_dlpack(out)
        if not array.flags.writeable and hasattr(out, "__array__"):  # an exporter of an early version of DLPack
            other = np.asarray(out)
            array = other if np.may_share_memory(other, array) else array
        return array
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise TypeError(
            f"out must be a NumPy array, or support DLPack or the buffer protocol in the memory of the CPU; found {name}: "
            f"{error}"
        ) from error
