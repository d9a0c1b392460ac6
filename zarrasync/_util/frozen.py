"""Dicts and lists that say how to change what they show, instead of losing the change."""

from __future__ import annotations

from typing import Any, Never

__all__ = ["FrozenDict", "FrozenList", "freeze"]

_REMEDY = (
    "attributes are read-only here, as storing them takes a request: use "
    "`await node.update_attributes({...})`, or on the synchronous side `node.attrs[name] = value` with the whole value"
)


def _refuse(self: object, *args: Any, **kwargs: Any) -> Never:
    raise TypeError(_REMEDY)


class FrozenDict(dict[str, Any]):
    """A dict to look at: equal to a plain one, and copies and pickles are plain ones."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class FrozenList(list[Any]):
    """A list to look at: equal to a plain one, and copies and pickles are plain ones."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def freeze(value: Any) -> Any:
    """A JSON value whose dicts and lists, at any depth, refuse to be changed."""
    if isinstance(value, dict):
        return value if type(value) is FrozenDict else FrozenDict({name: freeze(item) for name, item in value.items()})
    if isinstance(value, list):
        return value if type(value) is FrozenList else FrozenList([freeze(item) for item in value])
    return value
