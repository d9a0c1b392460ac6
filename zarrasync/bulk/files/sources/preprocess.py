"""Functions of users that change each opened file, such as for ``xarray.open_mfdataset``; recorded by name and digest."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

_functions: dict[str, Callable[[Any], Any]] = {}
"""The functions of this process by name and digest."""


def register_preprocess(function: Any, *, is_local: bool) -> str:
    """Return the name and the digest of a function, by which ``preprocessed`` finds it, also in other processes.

    Args:
        function: The function, or ``"module:function"``.
        is_local: Whether only this process uses it.

    Raises:
        ValueError: If it does not exist, or other processes cannot import it.
        TypeError: If it is not a function.
    """
    if isinstance(function, str):
        name, function = function, _import(function)
    elif callable(function):
        name = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', type(function).__qualname__)}"
    else:
        raise TypeError(f"preprocess must be a function or 'module:function', found {function!r}")
    if not is_local and (name.startswith("__main__:") or "<" in name):
        raise ValueError(
            f"other processes cannot import the function {name}; write it into a module, and pass preprocess='module:function'"
        )
    key = f"{name}@{_digest(function)}"
    _functions[key] = function
    return key


def _import(name: str) -> Callable[[Any], Any]:
    module, colon, path = name.partition(":")
    if not (colon and module and path):
        raise ValueError(f"preprocess={name!r} is not the name of a module and a function, such as 'recipes:wrap'")
    if os.getcwd() not in sys.path:  # which commands do not look into
        sys.path.append(os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"preprocess={name!r} cannot be imported: {error}") from error
    return found  # type: ignore[no-any-return]


def _digest(function: Any) -> str:
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        source = repr(getattr(getattr(function, "__code__", None), "co_code", function))
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def preprocessed(key: str, dataset: Any) -> Any:
    """Return the dataset that a function makes of one.

    Raises:
        ValueError: If the function has changed since it was registered, or returns something else than a dataset.
    """
    name = key.rpartition("@")[0]
    if key not in _functions and register_preprocess(name, is_local=True) != key:
        raise ValueError(f"the function {name} has changed since the job was planned; make a new plan")
    result = _functions[key](dataset)
    if not isinstance(result, type(dataset)):
        raise ValueError(f"the function {name} must return a dataset of xarray, found {type(result).__name__}")
    return result
