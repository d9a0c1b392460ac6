"""Read-only dicts and lists. Their mutating methods raise an error that explains how to change attributes."""

from __future__ import annotations

from typing import Any, Never

_MESSAGE = (
    "attributes are read-only here, because storing them takes a request; call `await node.update_attributes({...})`, "
    "or assign a whole value with `node.attrs[name] = value` in the synchronous API"
)


def _refuse(self: object, *args: Any, **kwargs: Any) -> Never:
    raise TypeError(_MESSAGE)


class FrozenDict(dict[str, Any]):
    """A read-only dict. It is equal to a plain dict with the same items. Copies and pickles are plain dicts."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class FrozenList(list[Any]):
    """A read-only list. It is equal to a plain list with the same items. Copies and pickles are plain lists."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def freeze(value: Any) -> Any:
    """Return a JSON value with read-only dicts and lists at all levels."""
    if isinstance(value, dict):
        return value if type(value) is FrozenDict else FrozenDict({name: freeze(item) for name, item in value.items()})
    if isinstance(value, list):
        return value if type(value) is FrozenList else FrozenList([freeze(item) for item in value])
    return value
